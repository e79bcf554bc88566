"""Versions of vLLM whose sources have all that is read here (docs/probe.md)."""

from __future__ import annotations

import re

OLDEST, NEWEST = (0, 17), (0, 33)


def is_known(version: str) -> bool:
    """Return whether this version of vLLM is one that the probe can read."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return match is not None and OLDEST <= (int(match[1]), int(match[2])) <= NEWEST
