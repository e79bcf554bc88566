"""What parts of the resource are made of: bounds, rules in both languages, and lists with keys."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain
from operator import attrgetter
from typing import Any, ClassVar, Final, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    StringConstraints,
    model_validator,
)
from pydantic.alias_generators import to_camel, to_snake
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from ballonet.api.quoting import quoted

# A path below the object that is looked at, as the API server writes it (.topologies[0].name), and
# what is wrong there: the value, and what to do.
Problem = tuple[str, str]


@dataclass(frozen=True)
class Rule:
    """A static rule over several fields, in the language of either place that checks it.

    ``cel`` is for the API server, which shows ``message`` at ``field``; ``problems`` is for plans
    without one, and finds every element that breaks the rule. Both see the object that the rule
    stands at and must agree.
    """

    cel: str
    message: str
    problems: Callable[[Any], Iterable[Problem]]
    field: str = ""

    def holds(self, value: Any) -> bool:
        """Return whether nothing breaks the rule."""
        return not list(self.problems(value))

    def schema(self) -> dict[str, str]:
        """Return the rule as an entry of x-kubernetes-validations."""
        entry = {"rule": self.cel, "message": self.message}
        return {**entry, "fieldPath": self.field} if self.field else entry


class BrokenRules(ValueError):  # noqa: N818 - the name says what is wrong
    """What an object breaks: the text gives the rules, ``problems`` every place and its value."""

    def __init__(self, rules: Iterable[str], problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(rules))


class Model(BaseModel):
    """Base of every part of the resource: immutable, camelCase on the wire."""

    model_config = ConfigDict(
        frozen=True, extra="ignore", alias_generator=to_camel, populate_by_name=True
    )
    RULES: ClassVar[tuple[Rule, ...]] = ()

    @model_validator(mode="after")
    def _check(self) -> Self:
        broken: dict[str, list[Problem]] = {}
        for rule in self.RULES:
            if problems := list(rule.problems(self)):
                broken[rule.message] = problems
        for found in _keyed_lists(type(self)):
            if problems := list(found.repeated(getattr(self, found.name))):
                broken[f"{found.alias} has entries twice"] = problems
        if broken:
            raise BrokenRules(broken, chain.from_iterable(broken.values()))
        return self

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        schema = handler(core_schema)
        if cls.RULES:
            found = handler.resolve_ref_schema(schema)
            found["x-kubernetes-validations"] = [rule.schema() for rule in cls.RULES]
        return schema


@dataclass(frozen=True)
class _KeyedList:
    """A list field that is a set or a map: no entry may stand in it twice.

    Attributes:
        key: what tells an entry apart; of several fields a tuple.
    """

    name: str
    alias: str
    key: Callable[[Any], Any]

    def repeated(self, items: list[Any]) -> Iterator[Problem]:
        """Yield what stands once more in the list."""
        seen: set[Any] = set()
        for index, item in enumerate(items):
            key = self.key(item)
            if key in seen:
                twice = quoted("/".join(key) if isinstance(key, tuple) else key)
                text = f"{twice} stands there already: rename or remove it"
                yield f".{self.alias}[{index}]", text
            seen.add(key)


@cache
def _keyed_lists(model: type[Model]) -> tuple[_KeyedList, ...]:
    """Return the sets and maps of a model: found once, because many small parts are checked."""
    found = []
    for name, field in model.model_fields.items():
        extra = field.json_schema_extra
        if not isinstance(extra, dict):
            continue
        keys: Any = extra.get("x-kubernetes-list-map-keys", ())
        if keys:
            key = attrgetter(*(to_snake(key) for key in keys))
            found.append(_KeyedList(name, str(field.alias), key))
        elif extra.get("x-kubernetes-list-type") == "set":
            found.append(_KeyedList(name, str(field.alias), str))
    return tuple(found)


def integer(low: int, high: int, *, bits: int = 32) -> Any:
    """Return the bounds of an integer field; strict, because the API server takes no "5"."""
    return Field(strict=True, ge=low, le=high, json_schema_extra={"format": f"int{bits}"})


def text(high: int, pattern: str | None = None, *, low: int = 1) -> StringConstraints:
    """Return the bounds of a string field, in characters."""
    return StringConstraints(min_length=low or None, max_length=high, pattern=pattern)


def list_map(*keys: str) -> dict[str, Any]:
    """Return the schema extra of a list that is merged by the given keys."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}


ATOMIC: Final[dict[str, Any]] = {"x-kubernetes-list-type": "atomic"}
SET: Final[dict[str, Any]] = {"x-kubernetes-list-type": "set"}
