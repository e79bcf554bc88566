"""Writes the tables of docs/accuracy.md from a graded run.

Usage: ``python -m benchmarks.sizing_accuracy SCORER DATA GRADED.json``; `make bench-sizing WRITE=1`
runs it.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any, Final

from ballonet.kv.units import GIB
from benchmarks.sizing import answer
from benchmarks.sizing_calibration import Boot, boots, honest_errors, load_scorer
from hack.reference import filled

PAGE: Final = Path(__file__).parent.parent / "docs/accuracy.md"
_ERAS: Final = (
    ("0.10 to 0.16", (0, 17, 0)),
    ("0.17 to 0.20.1", (0, 20, 2)),
    ("0.20.2 to 0.26", (0, 27, 0)),
    ("0.27 and later", (1, 0, 0)),
)
# What a kind is called, where its exact answers stand in the summary, and what may not happen.
_EXACT: Final = (
    ("bytes", "bytes of a token", "exact", "wrong_over_1_percent"),
    ("capacity_dense", "tokens and concurrency, one kind of layer", "within_half_percent", None),
    ("capacity_hybrid", "concurrency, several kinds of layers", "within_half_percent", None),
    ("plan", "the planner's own plans, from config.json", "exact", "plans_promised_too_much"),
    ("layout", "the planner's own plans, from bare layers", "exact", "promised_too_much"),
)


def exact_table(summary: dict[str, dict[str, int]]) -> str:
    """Return the table of what the engine works out exactly."""
    rows = ["| question | asked | answered | right | promised too much |", "|---|---|---|---|---|"]
    for kind, name, right, wrong in _EXACT:
        figures = summary[kind]
        over = figures.get(wrong or "promised_too_much", 0)
        rows.append(
            f"| {name} | {figures['asked']:,} | {figures.get('answered', 0):,} | "
            f"{figures.get(right, 0):,} | {over:,} |"
        )
    return "\n".join(rows)


def memory_table(found: list[Boot], asked: Counter[str]) -> str:
    """Return the table of predicted KV memory, by the engine's era and for all boots."""
    rows = [
        "| boots | asked | answered | median error | nine in ten within | inside the interval "
        "| low end over 2 % too high | median half width |",
        "|---|---|---|---|---|---|---|---|",
    ]
    core = [boot for boot in found if boot.core]
    groups = [
        *((name, [boot for boot in core if era(boot.version) == name]) for name, _ in _ERAS),
        ("core, all versions", core),
        ("all", found),
    ]
    for name, members in groups:
        if not members:
            rows.append(f"| {name} | {asked[name]} | 0 | | | | | |")
            continue
        errors = sorted(boot.error() for boot in members)
        width = median(boot.half_width_bytes for boot in members) / GIB
        rows.append(
            f"| {name} | {asked[name]} | {len(members)} | {median(errors):.1%} | "
            f"{errors[9 * len(errors) // 10]:.1%} | {sum(boot.inside for boot in members)} | "
            f"{sum(boot.promised_too_much for boot in members)} | {width:.2f} GiB |"
        )
    return "\n".join(rows)


def honest_table(found: list[Boot]) -> str:
    """Return the table of errors with each source left out of its own class."""
    rows = ["| boots | median error | nine in ten within |", "|---|---|---|"]
    for name, members in (("core", [boot for boot in found if boot.core]), ("all", found)):
        errors = honest_errors(members)
        rows.append(f"| {name} | {median(errors):.1%} | {errors[9 * len(errors) // 10]:.1%} |")
    return "\n".join(rows)


def unknown_table(questions: list[dict[str, Any]]) -> str:
    """Return the table of what is refused, and why."""
    reasons: Counter[tuple[str, str]] = Counter()
    for question in questions:
        if question["kind"] not in ("plan", "layout"):
            refused = answer(question).get("refused")
            if refused:
                reason = re.sub(r"; (give|start) .*|'.*?'", "", refused).strip()
                reasons[question["kind"], reason] += 1
    rows = ["| question | boots | why |", "|---|---|---|"]
    rows += [f"| {kind} | {count} | {why} |" for (kind, why), count in sorted(reasons.items())]
    return "\n".join(rows)


def era(version: tuple[int, ...]) -> str:
    """Return the era of an engine version."""
    return next(name for name, before in _ERAS if version < before)


def main(arguments: list[str]) -> int:
    """Write the tables into the page."""
    scorer, data, graded = map(Path, arguments)
    summary = json.loads(graded.read_text())["summary"]
    questions, asked = [], Counter[str]()
    for question, truth in load_scorer(scorer).cases(str(data)):
        questions.append(question)
        if question["kind"] == "budget":
            asked["all"] += 1
            if truth["core"]:
                numbers = re.findall(r"\d+", question["version"])[:3]
                asked["core, all versions"] += 1
                asked[era(tuple(int(number) for number in numbers))] += 1
    found = list(boots(scorer, data))
    sequences = summary["sequences_core"]
    page = filled(
        PAGE.read_text(),
        {
            "exact": exact_table(summary) + "\n",
            "memory": memory_table(found, asked) + "\n",
            "honest": honest_table(found) + "\n",
            "sequences": (
                f"Of {sequences['asked']} such questions (core) {sequences['answered']} were "
                f"answered, {sequences['safe']} of them safely; the median answer is "
                f"{sequences['median_shortfall_percent']:.1f} % below what the engine held.\n"
            ),
            "unknown": unknown_table(questions) + "\n",
        },
    )
    PAGE.write_text(page)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
