"""Rules that the schema of the resource must keep, beyond those that the API server checks.

They are the Kubernetes API conventions (sig-architecture/api-conventions.md) and the bounds that
the API server needs to estimate what a CEL rule costs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

Schema = dict[str, Any]

# Opaque on purpose: Kubernetes' own API server checks what is in it.
OPAQUE_FIELDS: Final = frozenset({".spec.engine.podTemplate"})
_FIELD_NAME: Final = re.compile(r"[a-z][A-Za-z0-9]*")
_INTEGER_FORMATS: Final = {"int32": 2**31, "int64": 2**63}
_TYPES: Final = frozenset({"object", "array", "string", "integer"})
# The key is a smell in a name, the value is what to write instead.
_NAME_ENDINGS: Final = {
    "Ref": "object",
    "Seconds": "integer",
    "Bytes": "integer",
    "Tokens": "integer",
    "Blocks": "integer",
    "Percent": "integer",
    "PerMille": "integer",
    "Time": "string",
}


def violations(schema: Schema) -> list[str]:
    """Return what is wrong with the schema of a resource, as "path: fault"; empty when nothing is.

    Found are: a missing type, description or bound; a list without list type or a map list
    without sound keys; float, boolean, nullable and two-typed fields other than quantities; fields
    that keep unknown content other than ``OPAQUE_FIELDS``; defaults outside their bounds; required
    fields that do not exist or that have a default; units and references whose name and type
    disagree; status without list-mapped conditions.
    """
    found = [
        f"{path}: {fault}" for path, node in _nodes(schema, "") for fault in _faults(path, node)
    ]
    conditions = (
        schema.get("properties", {}).get("status", {}).get("properties", {}).get("conditions")
    )
    if conditions is None or conditions.get("x-kubernetes-list-map-keys") != ["type"]:
        found.append(".status.conditions: must be a list map by type")
    return found


def _nodes(node: Schema, path: str) -> Iterator[tuple[str, Schema]]:
    yield path, node
    for name, child in node.get("properties", {}).items():
        yield from _nodes(child, f"{path}.{name}")
    if isinstance(values := node.get("additionalProperties"), dict):
        yield from _nodes(values, f"{path}[*]")
    if isinstance(items := node.get("items"), dict):
        yield from _nodes(items, f"{path}[]")


def _faults(path: str, node: Schema) -> Iterator[str]:
    if node.get("nullable"):
        yield "is nullable; an absent field says it"
    if not path.endswith(("[]", "[*]")) and not node.get("description"):
        yield "has no description"
    if node.get("x-kubernetes-int-or-string"):
        yield from _quantity_faults(node)
        return
    kind = node.get("type")
    if kind is None or "anyOf" in node or "oneOf" in node or not isinstance(kind, str):
        yield "must have one type"
        return
    if kind not in _TYPES:
        yield f"is a {kind}; use an integer with its unit in the name, or a string enum"
        return
    yield from {
        "object": _object_faults,
        "array": _list_faults,
        "string": _string_faults,
        "integer": _integer_faults,
    }[kind](path, node)


def _quantity_faults(node: Schema) -> Iterator[str]:
    if "type" in node:
        yield "is int-or-string and must have no type"
    if "maxLength" not in node or "pattern" not in node:
        yield "is a quantity without maxLength and pattern"


def _object_faults(path: str, node: Schema) -> Iterator[str]:
    opaque = bool(node.get("x-kubernetes-preserve-unknown-fields"))
    properties = node.get("properties")
    values = node.get("additionalProperties")
    if opaque and path not in OPAQUE_FIELDS:
        yield "keeps unknown fields; only " + ", ".join(sorted(OPAQUE_FIELDS)) + " may"
    if opaque:
        return
    if properties is None and not isinstance(values, dict):
        yield "is an object without properties"
    if properties is not None and values is not None:
        yield "has properties and additionalProperties"
    if isinstance(values, dict) and "maxProperties" not in node:
        yield "is a map without maxProperties"
    for name in node.get("required", []):
        if name not in (properties or {}):
            yield f"requires {name}, which does not exist"
        elif "default" in (properties or {})[name]:
            yield f"requires {name}, which has a default"
    for name, child in (properties or {}).items():
        if not _FIELD_NAME.fullmatch(name):
            yield f"has a field {name}, which is not camelCase"
        wanted = next((t for end, t in _NAME_ENDINGS.items() if name.endswith(end)), None)
        if wanted is not None and child.get("type") != wanted:
            yield f"has a field {name}, whose name asks for type {wanted}"


def _list_faults(_: str, node: Schema) -> Iterator[str]:
    items = node.get("items")
    if not isinstance(items, dict):
        yield "is a list without items"
        return
    if "maxItems" not in node:
        yield "is a list without maxItems"
    list_type = node.get("x-kubernetes-list-type")
    if list_type not in ("map", "set", "atomic"):
        yield "is a list without list type"
    if node.get("uniqueItems"):
        yield "has uniqueItems; use list type set"
    if list_type == "map":
        keys = node.get("x-kubernetes-list-map-keys", [])
        if not keys:
            yield "is a map list without keys"
        for key in keys:
            child = items.get("properties", {}).get(key, {})
            if key not in items.get("required", []) and "default" not in child:
                yield f"has the key {key}, which is neither required nor defaulted"
    elif list_type == "set" and items.get("type") == "object":
        yield "is a set of objects"


def _string_faults(_: str, node: Schema) -> Iterator[str]:
    if "enum" in node:
        for value in node["enum"]:
            if not re.fullmatch(r"[A-Z][A-Za-z0-9]*", value):
                yield f"has the enum value {value}, which is not CamelCase"
        if "default" in node and node["default"] not in node["enum"]:
            yield f"has the default {node['default']}, which is not in its enum"
    elif "maxLength" not in node:
        yield "is a string without maxLength"
    elif len(str(node.get("default", ""))) > node["maxLength"]:
        yield "has a default longer than maxLength"


def _integer_faults(_: str, node: Schema) -> Iterator[str]:
    limit = _INTEGER_FORMATS.get(node.get("format", ""))
    if limit is None:
        yield "is an integer without format int32 or int64"
    low, high = node.get("minimum"), node.get("maximum")
    if low is None or high is None:
        yield "is an integer without minimum and maximum"
    elif limit is not None and not -limit <= low <= high < limit:
        yield f"has bounds {low} to {high} outside {node['format']}"
    elif "default" in node and not low <= node["default"] <= high:
        yield f"has the default {node['default']} outside {low} to {high}"
