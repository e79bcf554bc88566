"""Merging and comparing partial Kubernetes objects, by the keys that the API server merges by."""

from __future__ import annotations

import hashlib
import json
from decimal import Decimal
from typing import Any, Final

from ballonet.api.quantity import parse_quantity

# Lists whose items are merged by a key instead of the list being replaced, by field name.
LIST_KEYS: Final[dict[str, tuple[str, ...]]] = {
    "containers": ("name",),
    "initContainers": ("name",),
    "env": ("name",),
    "volumes": ("name",),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "imagePullSecrets": ("name",),
    "hostAliases": ("ip",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
    "ports": ("containerPort", "port"),
    "ownerReferences": ("uid",),
}
# Maps whose values the API server writes in its own normal form of a quantity.
_QUANTITY_MAPS: Final = frozenset({"limits", "requests"})
# Fields whose False is not stored (not pointers in the API's types).
_BOOLEANS_OFF_BY_DEFAULT: Final = frozenset(
    {"hostNetwork", "hostPID", "hostIPC", "readOnly", "stdin", "stdinOnce", "tty"}
)
_QUANTITY_FIELDS: Final = frozenset({"sizeLimit", "divisor"})


def merge(base: Any, over: Any, *, field: str = "") -> Any:
    """Return base with over laid on top; neither is changed.

    Maps are merged, lists of LIST_KEYS by item, everything else is replaced by over.
    """
    if isinstance(base, dict) and isinstance(over, dict):
        merged = dict(base)
        for key, value in over.items():
            merged[key] = merge(base[key], value, field=key) if key in base else value
        return merged
    if isinstance(base, list) and isinstance(over, list) and field in LIST_KEYS:
        items = {_identity(item, field, index): item for index, item in enumerate(base)}
        for index, item in enumerate(over):
            identity = _identity(item, field, index)
            items[identity] = merge(items[identity], item) if identity in items else item
        return list(items.values())
    return over


def covers(live: Any, desired: Any, *, field: str = "") -> bool:
    """Return whether the live value holds everything that is desired.

    What the API server or others added is no difference, nor is an absent value for an empty one.
    """
    # Most parts are as they were written.
    if live == desired:
        return True
    if isinstance(desired, dict):
        return _covers_map(live, desired, field)
    if isinstance(desired, list):
        return _covers_list(live, desired, field)
    return live is None and bool(field) and _is_left_out(field, desired)


def _is_left_out(field: str, value: Any) -> bool:
    """Return whether the API server leaves this value out instead of storing it.

    A False that it stores must be told from none: it may switch off what is on by default.
    """
    return value in ("", 0) and (value is not False or field in _BOOLEANS_OFF_BY_DEFAULT)


def fingerprint(value: Any) -> str:
    """Return a short hash of a JSON value that does not depend on the order of members."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _covers_map(live: Any, desired: dict[str, Any], field: str) -> bool:
    if not isinstance(live, dict):
        return live is None and not desired
    return all(
        _same_quantity(live.get(key), value)
        if field in _QUANTITY_MAPS or key in _QUANTITY_FIELDS
        else covers(live.get(key), value, field=key)
        for key, value in desired.items()
    )


def _covers_list(live: Any, desired: list[Any], field: str) -> bool:
    if not isinstance(live, list):
        return live is None and not desired
    if field in LIST_KEYS and desired:
        items = {_identity(item, field, index): item for index, item in enumerate(live)}
        return all(
            covers(items.get(_identity(item, field, index)), item)
            for index, item in enumerate(desired)
        )
    return len(live) == len(desired) and all(map(covers, live, desired))


def _identity(item: Any, field: str, index: int) -> Any:
    if not isinstance(item, dict):
        return index
    for key in LIST_KEYS[field]:
        if key in item:
            return (key, item[key], item.get("protocol", "TCP"))
    return index


def _same_quantity(live: Any, desired: Any) -> bool:
    return live is not None and (live == desired or _value(live) == _value(desired))


def _value(quantity: Any) -> Decimal | Any:
    try:
        return parse_quantity(quantity)
    except ValueError:
        return quantity
