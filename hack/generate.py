"""Write every generated file of the tree, or say which ones are not as they should be.

Usage: ``python hack/generate.py [--check]``; ``make generate`` runs it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "operator"), str(ROOT / "probe")]

from ballonet.api import crdgen  # noqa: E402 - found by the line above
from hack import diagnosis, reference  # noqa: E402

PAGES: Final = {
    "crds/ballonet.io_inferencepools.yaml": crdgen.crd_yaml,
    "docs/conditions.md": reference.conditions_page,
    "docs/inferencepool.md": reference.pool_page,
}
"""Files that are generated as a whole."""
PARTS: Final = {
    "README.md": {"glance": reference.glance_part},
    "docs/catalog.md": {
        "devices": reference.devices_part,
        "slices": reference.slices_part,
        "models": reference.models_part,
        "versions": reference.versions_part,
    },
    "docs/diagnosis.md": {
        "chain": diagnosis.chain_part,
        "thresholds": diagnosis.thresholds_part,
    },
    "docs/fit.md": {"fit": reference.fit_part, "gpus": reference.gpus_part},
    "docs/memory.md": {"classes": reference.classes_part},
    "docs/metrics-sources.md": {"series": reference.series_part},
    "docs/plan.md": {"sample": reference.sample_part},
    "docs/runtime-budget.md": {"budget": reference.budget_part},
    "docs/workers.md": {"workers": reference.workers_part},
}
"""Marked places of pages that are otherwise written by hand."""


def generated() -> dict[str, str]:
    """Return the text of each generated file by its path below the root of the tree."""
    whole = {path: page() for path, page in PAGES.items()}
    filled = {
        path: reference.filled(
            (ROOT / path).read_text(), {name: part() for name, part in parts.items()}
        )
        for path, parts in PARTS.items()
    }
    return whole | filled


def outdated() -> dict[str, str]:
    """Return the files whose content is not what the generator gives, with what it gives."""
    return {
        path: text
        for path, text in generated().items()
        if not (ROOT / path).is_file() or (ROOT / path).read_text() != text
    }


def main(arguments: list[str]) -> int:
    """Run the program; return 1 when --check finds an outdated file."""
    stale = outdated()
    for path, text in stale.items():
        if "--check" in arguments:
            print(f"{path} is not what the code gives: run `make generate`")
        else:
            (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
            (ROOT / path).write_text(text)
            print(f"wrote {path}")
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
