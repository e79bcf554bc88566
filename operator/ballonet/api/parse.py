"""A pool as it stands in a file or in the cluster, read or refused by the names of its fields."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from ballonet.api.crdgen import Schema, pool_schema
from ballonet.api.model import BrokenRules
from ballonet.api.quoting import quoted, shown
from ballonet.api.v1alpha1 import FORMS, NAME_RULE, InferencePoolSpec

MAX_PROBLEMS: Final = 8


class InvalidPoolError(Exception):
    """A pool that the API server would refuse; each problem names its field."""

    def __init__(self, problems: list[str]) -> None:
        """Keep the first problems and say how many more there are."""
        more = len(problems) - MAX_PROBLEMS
        self.problems = tuple(problems[:MAX_PROBLEMS])
        super().__init__("; ".join(self.problems) + (f"; and {more} more" if more > 0 else ""))


def parse_spec(pool: Mapping[str, Any]) -> InferencePoolSpec:
    """Return the spec of a pool; fields that this version does not know are ignored.

    Raises:
        InvalidPoolError: a bound or a rule does not hold; each problem gives the path of the wrong
            element, its value (but where it may be secret) and what to do.
    """
    problems = list(_metadata_problems(pool.get("metadata")))
    try:
        spec = InferencePoolSpec.model_validate(pool.get("spec", {}))
    except ValidationError as error:
        for details in error.errors(include_url=False):
            problems.extend(_located(details))
        raise InvalidPoolError(problems) from None
    if problems:
        raise InvalidPoolError(problems)
    return spec


@dataclass(frozen=True, slots=True)
class UnknownField:
    """A field that the resource does not have.

    Attributes:
        path: where it stands, for example spec.sequence.maxToken.
        name: the last step of the path.
        siblings: the fields that the resource has there.
    """

    path: str
    name: str
    siblings: tuple[str, ...]


@cache
def _spec_schema() -> Schema:
    """Return the schema of a spec, made once: it is only read here, and making it is slow."""
    return pool_schema()["properties"]["spec"]  # type: ignore[no-any-return]


def unknown_fields(pool: Mapping[str, Any]) -> list[UnknownField]:
    """Return the fields in a pool's spec that the resource does not have; kubectl refuses them."""
    return list(_unknown(_spec_schema(), pool.get("spec"), ("spec",)))


def field_path(steps: tuple[int | str, ...]) -> str:
    """Return a path as the API server writes it, for example spec.topologies[0].name."""
    return "".join(f"[{s}]" if isinstance(s, int) else f".{s}" for s in steps).removeprefix(".")


def _located(details: ErrorDetails) -> Iterator[str]:
    """Yield "path: what is wrong there" for one error of pydantic."""
    path = field_path(("spec", *details["loc"]))
    error = details.get("ctx", {}).get("error")
    if isinstance(error, BrokenRules):
        yield from (f"{path}{below}: {text}" for below, text in error.problems)
    elif isinstance(error, ValueError):
        yield f"{path}: {error}"
    else:
        yield f"{path}: {_bound(details)}"


# What pydantic says around the bound itself: the value takes its place.
_AROUND: Final = re.compile(r"^(Input|String|List|Dictionary) (?=should )| after validation, .*")
# Kinds of error for what this resource calls an object.
_OBJECT: Final = frozenset({"model_type", "model_attributes_type", "dict_type"})
_INTEGER: Final = frozenset({"int_type", "int_parsing", "int_parsing_size", "int_from_float"})


def _bound(details: ErrorDetails) -> str:
    """Return which bound of one field does not hold, with the value."""
    kind, context = details["type"], details.get("ctx", {})
    if kind == "missing":
        return details["msg"]
    value = _shown(details["loc"], details["input"])
    if kind == "greater_than_equal":
        return f"{value} is below {context['ge']:,}: give at least {context['ge']}"
    if kind == "less_than_equal":
        return f"{value} is above {context['le']:,}: give at most {context['le']}"
    return f"{value} {_wanted(details)}"


def _wanted(details: ErrorDetails) -> str:
    """Return what a value is not, and what to write."""
    kind = details["type"]
    if kind in _OBJECT:
        return "should be an object"
    if kind in _INTEGER:
        return "is not a whole number: write its digits, without unit, point and quotes"
    if kind == "string_type" and isinstance(details["input"], bool | int | float):
        form = _form(details["loc"])
        return "is not text: write it in quotes" + (f", {form}" if form else "")
    if kind == "string_pattern_mismatch" and (form := _form(details["loc"])):
        return f"is not of the right form: use {form}"
    return _AROUND.sub("", details["msg"])


def _form(steps: tuple[int | str, ...]) -> str | None:
    """Return in words what the text of a field must be like."""
    node: Schema = _spec_schema()
    for step in steps:
        deeper = node["items"] if isinstance(step, int) else node.get("properties", {}).get(step)
        node = deeper or node.get("additionalProperties") or {}
    return FORMS.get(node.get("pattern", ""))


# What people put secrets into; nothing at, in or around it is ever repeated.
_SECRET: Final = (("engine", "env"), ("engine", "args"), ("engine", "podTemplate"))


def _shown(steps: tuple[int | str, ...], value: object) -> str:
    """Return a value for a message; of what may be secret no more than its kind."""
    secret = any(steps[: len(place)] == place[: len(steps)] for place in _SECRET)
    return "the value" if secret and not isinstance(value, Mapping | list) else shown(value)


def _metadata_problems(metadata: object) -> Iterator[str]:
    """Yield what is wrong with name and namespace; without a namespace it is the client's own."""
    known = metadata if isinstance(metadata, Mapping) else {}
    name, namespace = known.get("name", ""), known.get("namespace")
    if isinstance(name, str):
        yield from (text for _, text in NAME_RULE.problems(name))
    else:
        yield f"metadata.name: {shown(name)} must be text"
    if namespace is None:
        return
    if not isinstance(namespace, str):
        yield f"metadata.namespace: {shown(namespace)} must be text"
    elif not _NAMESPACE.fullmatch(namespace):
        yield (
            f"metadata.namespace: {quoted(namespace)} is not the name of a namespace: use a-z, 0-9 "
            "and -, at most 63 characters"
        )


_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def _unknown(schema: Schema, value: object, path: tuple[int | str, ...]) -> Iterator[UnknownField]:
    properties = schema.get("properties")
    if isinstance(value, Mapping) and properties is not None:
        for key, child in value.items():
            if key in properties:
                yield from _unknown(properties[key], child, (*path, key))
            else:
                yield UnknownField(field_path((*path, str(key))), str(key), tuple(properties))
    elif isinstance(value, list) and "items" in schema:
        for index, item in enumerate(value):
            yield from _unknown(schema["items"], item, (*path, index))
