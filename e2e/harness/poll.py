"""Waiting for what must become true, with a bound."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
INTERVAL_SECONDS = 0.2


def eventually(
    probe: Callable[[], T | None],
    what: str,
    *,
    timeout_seconds: float = 60,
    interval_seconds: float = INTERVAL_SECONDS,
) -> T:
    """Call `probe` until it returns something true and return that.

    An AssertionError or LookupError of the probe counts as "not yet" and is shown when time is up.

    Raises:
        AssertionError: it did not happen in time; the message holds `what` and the last answer.
    """
    deadline = time.monotonic() + timeout_seconds
    while True:
        last: object
        try:
            answer = probe()
        except (AssertionError, LookupError) as error:
            last = error
        else:
            if answer:
                return answer
            last = answer
        if time.monotonic() >= deadline:
            raise AssertionError(f"{what}: not within {timeout_seconds:g} s; last seen: {last!r}")
        time.sleep(interval_seconds)


def never(
    probe: Callable[[], object], what: str, *, seconds: float, interval_seconds: float = 0.5
) -> None:
    """Check for `seconds` that `probe` returns nothing true.

    Raises:
        AssertionError: it did; the message holds `what` and the answer.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        answer = probe()
        if answer:
            raise AssertionError(f"{what}: {answer!r}")
        time.sleep(interval_seconds)
