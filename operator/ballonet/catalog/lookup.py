"""Reading of the catalog's data files, and suggestions for names that are not in them."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from functools import cache
from importlib import resources
from typing import Any


@cache
def load(name: str) -> Any:
    """Return the content of a data file of the catalog."""
    return json.loads(resources.files("ballonet.catalog").joinpath("data", name).read_text("utf-8"))


def folded(name: str) -> str:
    """Return the form in which names are compared: no case, and one kind of separator."""
    return name.strip().lower().replace("_", "-").replace(" ", "-")


def suggest(name: str, known: Iterable[str], *, limit: int = 3, likeness: float = 0.4) -> list[str]:
    """Return the known names that are most like a name, best first; may be empty.

    Args:
        name: what was written.
        known: what could have been meant.
        limit: most suggestions.
        likeness: least ratio of difflib, 0 to 1, that counts as like.
    """
    spelled = {folded(candidate): candidate for candidate in known}
    close = difflib.get_close_matches(folded(name), spelled, n=limit, cutoff=likeness)
    return [spelled[candidate] for candidate in close]
