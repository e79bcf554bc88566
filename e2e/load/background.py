"""A load that runs beside a test, for the length of a `with` block."""

from __future__ import annotations

import asyncio
import itertools
import threading
from typing import Self

from e2e.load.fanout import served_first
from e2e.load.prompts import Prompt
from e2e.load.steady import steady_load

# Longer than any test: the block's end is what ends it.
LONGEST_SECONDS = 3600.0
# Prompts of an earlier load would be known to the prefix cache.
_numbers = itertools.count(1)


class Background:
    """Clients that ask without end; requests that still run at the end are cut."""

    def __init__(
        self,
        url: str,
        prompt: Prompt,
        output_tokens: int,
        clients: int,
        *,
        pause_seconds: float = 0.0,
        model: str = "tiny",
    ) -> None:
        self._load = steady_load(
            url,
            model=model,
            seconds=LONGEST_SECONDS,
            clients=clients,
            prompt=prompt,
            output_tokens=output_tokens,
            pause_seconds=pause_seconds,
            seed=f"background-{next(_numbers)}",
        )
        self._loop = asyncio.new_event_loop()
        self._task = self._loop.create_task(self._load)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join()
        self._loop.close()

    def _run(self) -> None:
        # Clients that wait for a processor would leave the engine idle between their requests.
        with served_first():
            try:
                self._loop.run_until_complete(self._task)
            except asyncio.CancelledError:
                # Connections close in the turns that follow.
                self._loop.run_until_complete(asyncio.sleep(0.1))
