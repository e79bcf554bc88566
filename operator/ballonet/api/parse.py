"""A pool as it stands in a file or in the cluster, read or refused by the names of its fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic import ValidationError

from ballonet.api.crdgen import Schema, pool_schema
from ballonet.api.v1alpha1 import NAME_RULE, InferencePoolSpec

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
        InvalidPoolError: a bound or a rule does not hold.
    """
    problems = [] if NAME_RULE.holds(_name(pool)) else [NAME_RULE.message]
    try:
        spec = InferencePoolSpec.model_validate(pool.get("spec", {}))
    except ValidationError as error:
        found = [
            f"{field_path(('spec', *problem['loc']))}: {problem['msg'].removeprefix(_PREFIX)}"
            for problem in error.errors(include_url=False)
        ]
        raise InvalidPoolError(problems + found) from None
    if problems:
        raise InvalidPoolError(problems)
    return spec


def unknown_fields(pool: Mapping[str, Any]) -> list[str]:
    """Return the paths in a pool's spec that the resource does not have; kubectl refuses them."""
    return list(_unknown(pool_schema()["properties"]["spec"], pool.get("spec"), ("spec",)))


def field_path(steps: tuple[int | str, ...]) -> str:
    """Return a path as the API server writes it, for example spec.topologies[0].name."""
    return "".join(f"[{s}]" if isinstance(s, int) else f".{s}" for s in steps).removeprefix(".")


_PREFIX: Final = "Value error, "


def _name(pool: Mapping[str, Any]) -> str:
    metadata = pool.get("metadata")
    return str(metadata.get("name", "")) if isinstance(metadata, Mapping) else ""


def _unknown(schema: Schema, value: object, path: tuple[int | str, ...]) -> Iterator[str]:
    properties = schema.get("properties")
    if isinstance(value, Mapping) and properties is not None:
        for key, child in value.items():
            if key in properties:
                yield from _unknown(properties[key], child, (*path, key))
            else:
                yield field_path((*path, str(key)))
    elif isinstance(value, list) and "items" in schema:
        for index, item in enumerate(value):
            yield from _unknown(schema["items"], item, (*path, index))
