"""How a value that somebody else wrote is shown in a message: as in YAML or JSON, and cut short."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

_MOST_CHARACTERS: Final = 40


def quoted(value: object) -> str:
    """Return a value for a message, of about 40 characters at most."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, str):
        return repr(_cut(value))
    if isinstance(value, int):
        return _cut(f"{value:,}")
    return _cut(repr(value))


def shown(value: object) -> str:
    """Return a value for a message; a list or an object, which may hold anything, only by kind."""
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    return quoted(value)


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 3]}..."
