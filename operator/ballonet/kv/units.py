"""Whole-number arithmetic of bytes, tokens and blocks, and intervals of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

KIB: Final = 1024
MIB: Final = 1024**2
GIB: Final = 1024**3


@dataclass(frozen=True, slots=True)
class Interval:
    """A quantity known to lie between two whole numbers, both included.

    Promises use the low end, refusals the high end.

    Raises:
        ValueError: low is more than high.
    """

    low: int
    high: int

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"interval {self.low}..{self.high} is upside down")

    @classmethod
    def point(cls, value: int) -> Interval:
        """Return the interval that holds one number."""
        return cls(value, value)

    @property
    def exact(self) -> bool:
        """Whether only one number is possible."""
        return self.low == self.high

    def __add__(self, other: Interval) -> Interval:
        return Interval(self.low + other.low, self.high + other.high)

    def __sub__(self, other: Interval) -> Interval:
        return Interval(self.low - other.high, self.high - other.low)


def ceil_div(dividend: int, divisor: int) -> int:
    """Return the quotient rounded up."""
    return -(-dividend // divisor)


def round_up(value: int, multiple: int) -> int:
    """Return the least multiple that is not below the value."""
    return ceil_div(value, multiple) * multiple


def largest(low: int, high: int, holds: Callable[[int], bool]) -> int | None:
    """Return the largest number of a range for which a falling predicate holds, or None."""
    if low > high or not holds(low):
        return None
    while low < high:
        middle = (low + high + 1) // 2
        if holds(middle):
            low = middle
        else:
            high = middle - 1
    return low


def least(low: int, high: int, holds: Callable[[int], bool]) -> int | None:
    """Return the smallest number of a range for which a rising predicate holds, or None."""
    found = largest(-high, -low, lambda negated: holds(-negated))
    return None if found is None else -found


def format_bytes(value: int) -> str:
    """Return bytes for people: GiB with two decimals, MiB below one GiB.

    Rounded half up in whole numbers, so the text is the same on every machine.
    """
    sign, size = ("-", -value) if value < 0 else ("", value)
    unit, name = (GIB, "GiB") if size >= GIB else (MIB, "MiB")
    number = _hundredths(size, unit)
    if unit == MIB:
        number = number.removesuffix(".00")
    return f"{sign}{number} {name}"


def gib(size: Interval) -> str:
    """Return bytes as numbers of GiB, none below 0, for columns whose heading has the unit."""
    ends = sorted({max(0, size.low), max(0, size.high)})
    return " to ".join(_hundredths(end, GIB) for end in ends)


def _hundredths(value: int, unit: int) -> str:
    whole, rest = divmod((200 * value + unit) // (2 * unit), 100)
    return f"{whole:,}.{rest:02}"


def counted(value: int, noun: str) -> str:
    """Return a number with its noun for people: ``1 block``, ``1,234 blocks``."""
    return f"{value:,} {noun}{'' if value == 1 else 's'}"
