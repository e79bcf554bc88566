"""`python -m e2e.prometheus build`: build Prometheus and promtool and print their paths."""

from __future__ import annotations

import argparse

from e2e.prometheus import build
from e2e.steps import BuildError


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m e2e.prometheus", description=__doc__)
    parser.add_argument("command", choices=["build"])
    parser.parse_args()
    try:
        programs = build()
    except BuildError as error:
        raise SystemExit(f"error: {error}") from error
    print(programs.prometheus)
    print(programs.promtool)


if __name__ == "__main__":
    main()
