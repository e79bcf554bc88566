"""Write every generated file of the tree, or say which ones are not as they should be.

Usage: ``python hack/generate.py [--check]``; ``make generate`` runs it.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "operator"), str(ROOT / "probe")]

from ballonet.api import crdgen  # noqa: E402 - found by the line above
from hack import diagnosis, reference  # noqa: E402


def generated() -> dict[str, str]:
    """Return the text of each generated file by its path below the root of the tree."""
    return {
        "crds/ballonet.io_inferencepools.yaml": crdgen.crd_yaml(),
        "docs/conditions.md": reference.conditions_page(),
        "docs/inferencepool.md": reference.pool_page(),
        "docs/catalog.md": reference.filled(
            (ROOT / "docs/catalog.md").read_text(),
            {
                "devices": reference.devices_part(),
                "slices": reference.slices_part(),
                "models": reference.models_part(),
                "versions": reference.versions_part(),
            },
        ),
        "docs/plan.md": reference.filled(
            (ROOT / "docs/plan.md").read_text(), {"sample": reference.sample_part()}
        ),
        "docs/memory.md": reference.filled(
            (ROOT / "docs/memory.md").read_text(), {"classes": reference.classes_part()}
        ),
        "docs/metrics-sources.md": reference.filled(
            (ROOT / "docs/metrics-sources.md").read_text(), {"series": reference.series_part()}
        ),
        "docs/diagnosis.md": reference.filled(
            (ROOT / "docs/diagnosis.md").read_text(),
            {"chain": diagnosis.chain_part(), "thresholds": diagnosis.thresholds_part()},
        ),
        "docs/fit.md": reference.filled(
            (ROOT / "docs/fit.md").read_text(),
            {"fit": reference.fit_part(), "gpus": reference.gpus_part()},
        ),
    }


def outdated() -> list[str]:
    """Return the paths whose content is not what the generator gives."""
    return [
        path
        for path, text in generated().items()
        if not (ROOT / path).is_file() or (ROOT / path).read_text() != text
    ]


def main(arguments: list[str]) -> int:
    """Run the program; return 1 when --check finds an outdated file."""
    stale = outdated()
    for path in stale:
        if "--check" in arguments:
            print(f"{path} is not what the code gives: run `make generate`")
        else:
            (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
            (ROOT / path).write_text(generated()[path])
            print(f"wrote {path}")
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
