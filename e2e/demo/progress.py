"""Progress of long steps, for a person who watches."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from e2e.harness.poll import eventually

T = TypeVar("T")
HEARTBEAT_SECONDS = 5.0


@dataclass
class Progress:
    """Says what happens and, while something long goes on, that it still does."""

    write: Callable[[str], None]
    started: float = field(default_factory=time.monotonic)

    def step(self, title: str) -> None:
        self.write("")
        self.say(title)

    def say(self, line: str) -> None:
        self.write(f"[{time.monotonic() - self.started:6.1f} s] {line}")

    def quote(self, text: str) -> None:
        """Show what an object or a tool said."""
        for line in text.splitlines():
            self.write(f"             | {line}")

    def wait(
        self,
        probe: Callable[[], T | None],
        what: str,
        *,
        timeout_seconds: float,
        detail: Callable[[], str] = lambda: "",
    ) -> T:
        """Wait until `probe` returns something true; every few seconds say so, with `detail`."""
        start = time.monotonic()
        spoken = start

        def probe_and_speak() -> T | None:
            nonlocal spoken
            answer = probe()
            if not answer and time.monotonic() - spoken >= HEARTBEAT_SECONDS:
                spoken = time.monotonic()
                more = detail()
                self.say(
                    f"... until {what}: {spoken - start:.0f} s" + (f" ({more})" if more else "")
                )
            return answer

        return eventually(probe_and_speak, what, timeout_seconds=timeout_seconds)
