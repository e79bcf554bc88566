"""What vLLM takes where nobody says. Ballonet always writes it."""

from __future__ import annotations

from typing import Final

_SHARE_WIDENED: Final = (0, 20)


def default_memory_percent(version: tuple[int, ...]) -> int:
    """Return the share of the device that the engine takes (config/cache.py)."""
    return 92 if version[:2] >= _SHARE_WIDENED else 90
