"""Long steps of a build: each says when it begins, and how long it took or how it failed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

STEP_TIMEOUT_SECONDS = 3600
SHOWN_LINES = 20


class BuildError(RuntimeError):
    """Something cannot be built; the text says why and what to do."""


def say(line: str) -> None:
    """One line of progress."""
    print(line, file=sys.stderr, flush=True)


def run_step(
    title: str, command: Sequence[str], environment: Mapping[str, str] | None = None
) -> None:
    """Run `command`, silent unless it fails, with these variables beside those of the process.

    Raises:
        BuildError: it ended with an error or took longer than an hour.
    """
    start = time.monotonic()
    say(f"{title} ...")
    try:
        done = subprocess.run(
            command,
            env=os.environ | (environment or {}),
            capture_output=True,
            text=True,
            check=False,
            timeout=STEP_TIMEOUT_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"{title}: no end after {STEP_TIMEOUT_SECONDS} s: {error.cmd}") from error
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-SHOWN_LINES:])
        raise BuildError(f"{title} failed ({' '.join(command)}):\n{tail}")
    say(f"{title}: {time.monotonic() - start:.0f} s")
