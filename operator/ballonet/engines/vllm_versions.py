"""Versions of vLLM and the flags that each of them takes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Final, NamedTuple

from ballonet.api.quoting import quoted
from ballonet.catalog.flags import Ranges, vllm_flag_ranges, vllm_sampled_versions


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


@dataclass(frozen=True)
class Names:
    """Names that versions of vLLM know, as they were read in some of them.

    A version between two that were read surely knows what both know, and possibly what either
    knows; a patch after the newest one is taken to be like it.

    Attributes:
        read: the versions that were read, oldest first.
        ranges: by name, the first and the last of them that know it, for each stretch.
    """

    read: tuple[Version, ...]
    ranges: Mapping[str, tuple[tuple[Version, Version], ...]]

    @classmethod
    def of(cls, read: Iterable[str], ranges: Ranges) -> Names:
        """Return the names of a data file of the catalog."""
        return cls(
            tuple(parse_version(text) for text in read),
            {
                name: tuple((parse_version(first), parse_version(last)) for first, last in spans)
                for name, spans in ranges.items()
            },
        )

    def sure(self, version: str) -> frozenset[str]:
        """Return what a version surely knows."""
        return frozenset.intersection(*(self._of(near) for near in self._neighbours(version)))

    def possible(self, version: str) -> frozenset[str]:
        """Return what a version may know: what either neighbour knows."""
        return frozenset.union(*(self._of(near) for near in self._neighbours(version)))

    def _neighbours(self, version: str) -> tuple[Version, ...]:
        parsed = parse_version(version)
        if parsed in self.read:
            return (parsed,)
        below = [read for read in self.read if read < parsed]
        above = [read for read in self.read if read > parsed]
        return (*below[-1:], *above[:1])

    def _of(self, version: Version) -> frozenset[str]:
        return frozenset(
            name
            for name, spans in self.ranges.items()
            if any(first <= version <= last for first, last in spans)
        )


@cache
def _flags() -> Names:
    return Names.of(vllm_sampled_versions(), vllm_flag_ranges())


@lru_cache(maxsize=64)
def flags(version: str) -> frozenset[str]:
    """Return the flags that this version surely takes."""
    return _flags().sure(version)


@lru_cache(maxsize=64)
def possible_flags(version: str) -> frozenset[str]:
    """Return the flags that this version may take: those of either neighbour."""
    return _flags().possible(version)


def lifetime(flag: str) -> tuple[Version, Version] | None:
    """Return the first and the last version that were seen to take a flag."""
    spans = _flags().ranges.get(flag)
    return None if spans is None else (spans[0][0], spans[-1][1])
