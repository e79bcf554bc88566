"""Answers questions about sizes with the product's own code, for the scorer to grade.

Usage: ``python -m benchmarks.sizing QUESTIONS.jsonl ANSWERS.jsonl``; `make bench-sizing` asks,
answers and grades. A question is all that an answer may know; what is not known is refused with
the reason.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter
from typing import Any, Final

from ballonet.kv.config import InvalidModelConfig, LayoutNotUnderstood
from ballonet.kv.settings import EngineRefuses
from benchmarks import sizing_boot, sizing_budget, sizing_layout, sizing_plan
from benchmarks.sizing_device import Unknown

_ANSWERS: Final[Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]]] = {
    "bytes": sizing_boot.answer_bytes,
    "capacity": sizing_boot.answer_capacity,
    "plan": sizing_plan.answer_plan,
    "layout": sizing_layout.answer_layout,
    "budget": sizing_budget.answer_budget,
    "sequences": sizing_budget.answer_sequences,
}


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to a question, or why there is none."""
    try:
        return _ANSWERS[question["kind"]](question)
    except (Unknown, EngineRefuses, InvalidModelConfig, LayoutNotUnderstood) as problem:
        return {"refused": str(problem)}
    except Exception as problem:  # a fault must not cost the other answers
        print(f"{question['id']}: {problem!r}", file=sys.stderr)
        return {"refused": f"fault: {problem!r}"}


def main(arguments: list[str]) -> int:
    """Answer a file of questions; print how many were asked and how long one took."""
    questions, answers = map(Path, arguments)
    asked: Counter[str] = Counter()
    started = perf_counter()
    with questions.open() as lines, answers.open("w") as out:
        for question in map(json.loads, lines):
            asked[question["kind"]] += 1
            out.write(json.dumps({"id": question["id"], **answer(question)}) + "\n")
    milliseconds = 1000 * (perf_counter() - started) / max(1, asked.total())
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(asked.items()))
    print(f"{kinds}: {milliseconds:.2f} ms each", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
