"""What logged boots took beyond what is worked out, by class; and the honest error of the classes.

Usage: ``python -m benchmarks.sizing_calibration SCORER DATA [--write]``. With ``--write`` the
numbers of boots of each class and of those inside its interval go into the catalog's file. The
figures themselves are chosen by hand from what is printed.

The honest error leaves out one source at a time (a repository, an issue): the usual figure of a
class is taken anew from the boots of all other sources, and the boots of this one are predicted
with it.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from ballonet.kv.units import GIB, MIB
from benchmarks.sizing_budget import memory, versions_of
from benchmarks.sizing_device import Unknown

CALIBRATION: Final = (
    Path(__file__).parent.parent / "operator/ballonet/catalog/data/calibration.json"
)
_OR: Final = " or "


@dataclass(frozen=True, slots=True)
class Boot:
    """A logged boot of one class, and its prediction.

    Attributes:
        beyond_bytes: what it took outside the trial run, communication and graphs as predicted.
        missed_bytes: predicted less printed KV memory.
        half_width_bytes: half of the interval.
        inside: whether the printed figure lies inside the interval.
        promised_too_much: whether the low end is over 2 % above it.
    """

    name: str
    source: str
    kind: str
    version: tuple[int, ...]
    core: bool
    kv_bytes: int
    beyond_bytes: int
    missed_bytes: int
    half_width_bytes: int
    inside: bool
    promised_too_much: bool

    def error(self, shift_bytes: int = 0) -> float:
        """Return the error as a share, had the class been usual by this much more."""
        return abs(self.missed_bytes - shift_bytes) / self.kv_bytes


def boots(scorer: Path, data: Path) -> Iterator[Boot]:
    """Yield the boots of a data set whose class is known."""
    score, sources = load_scorer(scorer), _sources(data)
    for question, truth in score.cases(str(data)):
        if question["kind"] != "budget":
            continue
        try:
            plan = memory(question)
        except Unknown:
            continue
        assert plan.kv_cache_bytes is not None and plan.usual_bytes is not None
        outside = next(part for part in plan.parts if part.name == "outside the trial run")
        printed, half = round(truth["kv_gib"] * GIB), round(truth["half"] * GIB)
        yield Boot(
            name=question["id"].split(".")[0],
            source=sources[question["id"].split(".")[0]],
            kind=_OR.join(found.name for found in plan.calibration),
            version=versions_of(question)[0],
            core=bool(truth["core"]),
            kv_bytes=printed,
            beyond_bytes=outside.usual_bytes + plan.usual_bytes - printed,
            missed_bytes=plan.usual_bytes - printed,
            half_width_bytes=(plan.kv_cache_bytes.high - plan.kv_cache_bytes.low) // 2,
            inside=plan.kv_cache_bytes.low - half <= printed <= plan.kv_cache_bytes.high + half,
            promised_too_much=plan.kv_cache_bytes.low > printed * 1.02 + half,
        )


def honest_errors(found: list[Boot]) -> list[float]:
    """Return the errors, each with the usual figure of its class from the other sources."""
    errors = []
    for boot in found:
        others = [
            other.beyond_bytes
            for other in found
            if other.kind == boot.kind and other.source != boot.source
        ]
        usual = boot.beyond_bytes - boot.missed_bytes
        errors.append(
            boot.error(round(median(others)) - usual) if len(others) > 1 else boot.error()
        )
    return sorted(errors)


def main(arguments: list[str]) -> int:
    """Print what each class took; write the numbers of boots where asked to."""
    found = list(boots(Path(arguments[0]), Path(arguments[1])))
    by_kind: dict[str, list[Boot]] = defaultdict(list)
    for boot in found:
        by_kind[boot.kind].append(boot)
    for kind, members in sorted(by_kind.items()):
        taken = sorted((boot.beyond_bytes // MIB, boot.name) for boot in members if boot.core)
        inside = sum(boot.inside for boot in members)
        print(f"{kind}: {len(members)} boots, {inside} inside, core MiB beyond: {taken}")
    for name, group in (("core", [boot for boot in found if boot.core]), ("all", found)):
        errors = honest_errors(group)
        print(
            f"{name}: {len(group)} boots; each source left out: median error "
            f"{errors[len(errors) // 2]:.1%}, nine in ten within "
            f"{errors[9 * len(errors) // 10]:.1%}"
        )
    if "--write" in arguments:
        data = json.loads(CALIBRATION.read_text())
        for row in data["classes"]:
            members = [boot for boot in found if row["name"] in boot.kind.split(_OR)]
            row["boots"] = len(members)
            row["covered"] = sum(boot.inside for boot in members)
        CALIBRATION.write_text(_dumped(data))
    return 0


def _dumped(data: dict[str, Any]) -> str:
    """Return the file's form: one class a line."""
    lines = [
        f" {json.dumps(key)}: {json.dumps(value)}"
        for key, value in data.items()
        if key != "classes"
    ]
    classes = ",\n".join(f"  {json.dumps(row)}" for row in data["classes"])
    return "{\n" + ",\n".join([*lines, f' "classes": [\n{classes}\n ]']) + "\n}\n"


def load_scorer(path: Path) -> Any:
    """Return the scorer's module."""
    spec = importlib.util.spec_from_file_location("scorer", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _sources(data: Path) -> dict[str, str]:
    rows = (
        json.loads(line)
        for path in sorted(data.glob("kv_logs*.jsonl"))
        for line in path.read_text().splitlines()
    )
    return {row["id"]: row["source"].split(":")[0].split(" (")[0] for row in rows}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
