"""Versions of vLLM and the flags that each of them takes."""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import Final, NamedTuple

from ballonet.api.quoting import quoted
from ballonet.catalog.flags import vllm_flag_ranges, vllm_sampled_versions


class Version(NamedTuple):
    """A vLLM version; ``final`` is 0 for builds before the release of that number."""

    major: int
    minor: int
    patch: int
    final: int = 1

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


OLDEST: Final = Version(0, 10, 2)
NEWEST: Final = Version(0, 33, 0)

_VERSION: Final = re.compile(r"v?(\d{1,4})\.(\d{1,4})\.(\d{1,4})(\D.*)?", re.ASCII)
_BEFORE_RELEASE: Final = re.compile(r"[.\-]?(a|b|rc|dev)\d*", re.IGNORECASE)


def parse_version(text: str) -> Version:
    """Return the version of a text such as ``0.32.0``, ``0.20.1rc2`` or ``0.32.0+cpu``.

    Raises:
        ValueError: the text is no version.
    """
    match = _VERSION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{quoted(text)} is not a vLLM version: write for example {NEWEST}")
    before = match[4] is not None and _BEFORE_RELEASE.match(match[4]) is not None
    return Version(int(match[1]), int(match[2]), int(match[3]), 0 if before else 1)


def is_known(version: str) -> bool:
    """Return whether the flags of this version are known: 0.10.2 to any patch of 0.33."""
    try:
        parsed = parse_version(version)
    except ValueError:
        return False
    return parsed >= OLDEST and parsed[:2] <= NEWEST[:2]


@lru_cache(maxsize=64)
def flags(version: str) -> frozenset[str]:
    """Return the flags that this version surely takes.

    A version between two whose flags were read takes a flag only if both have it; a patch after
    the newest one is taken to be like it.
    """
    return frozenset.intersection(*(_sampled_flags(near) for near in _neighbours(version)))


@lru_cache(maxsize=64)
def possible_flags(version: str) -> frozenset[str]:
    """Return the flags that this version may take: those of either neighbour."""
    return frozenset.union(*(_sampled_flags(near) for near in _neighbours(version)))


def lifetime(flag: str) -> tuple[Version, Version] | None:
    """Return the first and the last version that were seen to take a flag."""
    ranges = vllm_flag_ranges().get(flag)
    if ranges is None:
        return None
    return parse_version(ranges[0][0]), parse_version(ranges[-1][1])


@cache
def _sampled() -> tuple[Version, ...]:
    return tuple(parse_version(text) for text in vllm_sampled_versions())


def _neighbours(version: str) -> tuple[Version, ...]:
    parsed = parse_version(version)
    if parsed in _sampled():
        return (parsed,)
    below = [sampled for sampled in _sampled() if sampled < parsed]
    above = [sampled for sampled in _sampled() if sampled > parsed]
    return (*below[-1:], *above[:1])


@cache
def _sampled_flags(version: Version) -> frozenset[str]:
    return frozenset(
        flag
        for flag, ranges in vllm_flag_ranges().items()
        if any(parse_version(first) <= version <= parse_version(last) for first, last in ranges)
    )
