"""`python -m e2e.images build [operator|engine|stub-engine|all]`: print each archive's path."""

from __future__ import annotations

import argparse

from e2e.images import IMAGES, BuildError, build


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m e2e.images", description=__doc__)
    parser.add_argument("command", choices=["build"])
    parser.add_argument("image", nargs="?", default="all", choices=[*IMAGES, "all"])
    arguments = parser.parse_args()
    try:
        for name in IMAGES if arguments.image == "all" else [arguments.image]:
            print(build(name), flush=True)
    except BuildError as error:
        raise SystemExit(f"error: {error}") from error


if __name__ == "__main__":
    main()
