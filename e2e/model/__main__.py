"""`python -m e2e.model make DIR`: write the tiny model into DIR and print its path."""

from __future__ import annotations

import argparse
from pathlib import Path

from e2e.model import make_model


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m e2e.model", description=__doc__)
    parser.add_argument("command", choices=["make"])
    parser.add_argument("directory", type=Path)
    arguments = parser.parse_args()
    print(make_model(arguments.directory.resolve()))


if __name__ == "__main__":
    main()
