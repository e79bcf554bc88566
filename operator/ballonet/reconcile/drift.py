"""Whether an object has to be written at all: an unchanged pool must cause no write."""

from __future__ import annotations

from ballonet.cluster.port import Json
from ballonet.reconcile.children import HASH_ANNOTATION
from ballonet.reconcile.merge import covers


def must_apply(live: Json | None, desired: Json) -> bool:
    """Return whether applying desired would change the live object.

    The hash finds what we no longer want; the comparison finds what others changed by hand.
    """
    if live is None:
        return True
    applied = live["metadata"].get("annotations", {}).get(HASH_ANNOTATION)
    wanted = desired["metadata"]["annotations"][HASH_ANNOTATION]
    return bool(applied != wanted) or not covers(live, desired)
