"""`python -m e2e.vllm build|path|lock [--version V]`.

build  make the environment if it is missing and print its path
path   print where it is or would be
lock   write the hashes for the versions in the lock's .in files
"""

from __future__ import annotations

import argparse

from e2e.steps import BuildError
from e2e.vllm import DEFAULT_VERSION, build, environment_path, write_lock


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m e2e.vllm",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=["build", "path", "lock"])
    parser.add_argument("--version", default=DEFAULT_VERSION)
    arguments = parser.parse_args()
    try:
        if arguments.command == "lock":
            write_lock(arguments.version)
        elif arguments.command == "build":
            print(build(arguments.version))
        else:
            print(environment_path(arguments.version))
    except BuildError as error:
        raise SystemExit(f"error: {error}") from error


if __name__ == "__main__":
    main()
