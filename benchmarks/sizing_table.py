"""Prints what the scorer graded, one line a kind: ``python -m benchmarks.sizing_table FILE``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def table(summary: dict[str, dict[str, Any]]) -> str:
    """Return a Markdown table of the scorer's summary."""
    rows = ["| kind | asked | answered | graded |", "|---|---|---|---|"]
    for kind, figures in summary.items():
        graded = ", ".join(
            f"{name.replace('_', ' ')} {value:,}"
            for name, value in figures.items()
            if name not in ("asked", "answered", "unknown") and value is not None
        )
        answered = figures.get("answered", 0)
        rows.append(
            f"| {kind.replace('_', ' ')} | {figures['asked']:,} | {answered:,} | {graded} |"
        )
    return "\n".join(rows)


def main(arguments: list[str]) -> int:
    """Print the table of a graded run."""
    print(table(json.loads(Path(arguments[0]).read_text())["summary"]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
