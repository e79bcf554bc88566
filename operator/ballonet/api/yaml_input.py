"""YAML of unknown origin, read as Kubernetes reads it, within bounds.

The text is read event by event, so depth, size and what aliases expand to are bounded before
anything is built. Duplicate keys are refused; dates stay text, as in the API.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

import yaml
from yaml.constructor import SafeConstructor
from yaml.resolver import Resolver

from ballonet.api.quoting import quoted

# What files of a folder end in that are read, as kubectl takes them.
SUFFIXES: Final = (".json", ".yaml", ".yml")
MAX_INPUT_BYTES: Final = 4 * 1024 * 1024
MAX_DEPTH: Final = 100
MAX_VALUES: Final = 500_000
_TOO_DEEP: Final = f"is nested deeper than {MAX_DEPTH} levels"
_MERGE: Final = "tag:yaml.org,2002:merge"
_Loader: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class InvalidInput(ValueError):  # noqa: N818 - the name says what is wrong
    """The text is no usable YAML or JSON; the message says where and why."""


@dataclass(slots=True)
class _Open:
    """A list or map that is being read; ``key`` is the map key that waits for its value."""

    anchor: str | None
    line: int
    items: list[Any] | None = None
    fields: dict[Any, Any] = field(default_factory=dict)
    merged: list[dict[Any, Any]] = field(default_factory=list)
    key: Any = None
    waits: bool = False
    values: int = 1


class _MergeKey:
    """Stands for the key ``<<`` while its map is read."""


def decode(data: bytes, *, advice: str) -> str:
    """Return the text of an input.

    Args:
        data: at least one byte more than MAX_INPUT_BYTES when there is more.
        advice: what to give instead of an input that is too long.

    Raises:
        InvalidInput: it is too long or not UTF-8.
    """
    if len(data) > MAX_INPUT_BYTES:
        raise InvalidInput(f"is larger than {MAX_INPUT_BYTES // 1024**2} MiB: {advice}")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"is not UTF-8 text (byte {error.start})") from None


def read_documents(text: str) -> list[Any]:
    """Return the documents of a YAML stream or of a JSON text; empty ones are left out.

    Raises:
        InvalidInput: with the line where it goes wrong.
    """
    if text.lstrip()[:1] in ("{", "["):
        try:
            found = json.loads(
                text,
                object_pairs_hook=_unique,
                parse_constant=_no_constant,
                parse_int=_json_number,
                parse_float=_json_number,
            )
        except RecursionError:
            raise InvalidInput(_TOO_DEEP) from None
        except json.JSONDecodeError:
            pass  # Flow style YAML looks like JSON.
        else:
            _check_size(found)
            return [found]
    try:
        return _Reader().documents(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = "" if mark is None else f"line {mark.line + 1}: "
        raise InvalidInput(f"{where}is not YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        first = str(error).splitlines()[0]
        raise InvalidInput(f"is not YAML: {first}") from None


def _check_size(value: Any) -> None:
    """Hold JSON to the bounds of YAML.

    Raises:
        InvalidInput: it has too many levels or values.
    """
    layer, levels, values = [value], 0, 1
    while layer:
        deeper = [one for one in layer if isinstance(one, dict | list)]
        levels += bool(deeper)
        if levels > MAX_DEPTH:
            raise InvalidInput(_TOO_DEEP)
        layer = [
            item
            for one in deeper
            for item in (chain(one, one.values()) if isinstance(one, dict) else one)
        ]
        values += len(layer)
        if values > MAX_VALUES:
            raise InvalidInput(f"holds more than {MAX_VALUES} values")


def _json_number(text: str) -> int | float:
    number = _number(int if _INTEGER.fullmatch(text) else float, text)
    if number is None:
        raise InvalidInput(f"has the number {quoted(text)}, which is too large")
    return number


_INTEGER: Final = re.compile(r"-?[0-9]+")


def _number(read: Callable[[Any], int | float], written: Any) -> int | float | None:
    """Return a number that Kubernetes can hold, or None."""
    try:
        number = read(written)
    except (ValueError, OverflowError):
        return None
    whole = isinstance(number, int)
    # A float of a larger integer would be another number.
    return number if (-(2**63) <= number < 2**64 if whole else math.isfinite(number)) else None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise InvalidInput(f"has the key {quoted(key)} twice in one map")
        found[key] = value
    return found


def _no_constant(name: str) -> None:
    raise InvalidInput(f"has the value {name}, which is no JSON number")


class _Reader:
    """Builds values from the events of one stream."""

    def __init__(self) -> None:
        self.resolve: Callable[..., str] = Resolver().resolve
        self.constructor = SafeConstructor()
        self.anchors: dict[str, tuple[Any, int]] = {}
        self.stack: list[_Open] = []
        self.found: list[Any] = []
        self.values = 0

    def documents(self, text: str) -> list[Any]:
        for event in yaml.parse(text, Loader=_Loader):
            line = 0 if event.start_mark is None else event.start_mark.line + 1
            if isinstance(event, yaml.DocumentStartEvent):
                self.anchors = {}
            elif isinstance(event, yaml.ScalarEvent):
                self._add(self._scalar(event, line), 1, event.anchor, line)
            elif isinstance(event, yaml.AliasEvent):
                if event.anchor not in self.anchors:
                    raise InvalidInput(
                        f"line {line}: alias *{event.anchor} has no anchor before it"
                    )
                value, size = self.anchors[event.anchor]
                self._add(value, size, None, line)
            elif isinstance(event, yaml.SequenceStartEvent | yaml.MappingStartEvent):
                if len(self.stack) >= MAX_DEPTH:
                    raise InvalidInput(f"line {line}: {_TOO_DEEP}")
                items: list[Any] | None = [] if isinstance(event, yaml.SequenceStartEvent) else None
                self.stack.append(_Open(event.anchor, line, items))
            elif isinstance(event, yaml.SequenceEndEvent | yaml.MappingEndEvent):
                done = self.stack.pop()
                self._add(
                    _value(done), done.values, done.anchor, done.line, counted=done.values - 1
                )
        return [document for document in self.found if document is not None]

    def _scalar(self, event: yaml.ScalarEvent, line: int) -> Any:
        tag = event.tag or self.resolve(yaml.ScalarNode, event.value, event.implicit)
        top = self.stack[-1] if self.stack else None
        if tag == _MERGE and top is not None and top.items is None and not top.waits:
            return _MergeKey
        kind = tag.removeprefix("tag:yaml.org,2002:")
        if kind == "null":
            return None
        read = {
            "bool": self.constructor.construct_yaml_bool,
            "int": self.constructor.construct_yaml_int,
            "float": self.constructor.construct_yaml_float,
        }.get(kind)
        # Sexagesimal numbers ("1:30") are text everywhere but in YAML 1.1.
        if read is None or ":" in event.value:
            return event.value
        try:
            number = _number(read, yaml.ScalarNode(tag, event.value))
        except (IndexError, KeyError):  # only with a tag of its own, for example !!int ''
            number = None
        if number is None and event.tag:
            raise InvalidInput(f"line {line}: {quoted(event.value)} is no {kind}")
        return event.value if number is None else number

    def _add(
        self, value: Any, size: int, anchor: str | None, line: int, *, counted: int = 0
    ) -> None:
        """Put a value into the list or map that is open; ``counted`` of its size are known."""
        self.values += size - counted
        if self.values > MAX_VALUES:
            raise InvalidInput(f"line {line}: holds more than {MAX_VALUES} values with its aliases")
        if anchor is not None:
            self.anchors[anchor] = (value, size)
        if not self.stack:
            self.found.append(value)
            return
        top = self.stack[-1]
        top.values += size
        if top.items is not None:
            top.items.append(value)
        elif not top.waits:
            top.key, top.waits = _key(value, top, line), True
        else:
            top.waits = False
            if top.key is _MergeKey:
                top.merged.extend(_maps(value, line))
            else:
                top.fields[top.key] = value


def _value(done: _Open) -> Any:
    if done.items is not None:
        return done.items
    merged: dict[Any, Any] = {}
    for earlier in reversed(done.merged):
        merged.update(earlier)
    return {**merged, **done.fields}


def _key(value: Any, parent: _Open, line: int) -> Any:
    if value is _MergeKey:
        return value
    if not isinstance(value, Hashable):
        raise InvalidInput(f"line {line}: a map key must be text")
    # As in JSON, keys are text: 1 and "1" are the same key.
    text = value if isinstance(value, str) else json.dumps(value)
    if text in parent.fields:
        raise InvalidInput(f"line {line}: has the key {quoted(text)} twice in one map")
    return text


def _maps(value: Any, line: int) -> list[dict[Any, Any]]:
    maps = value if isinstance(value, list) else [value]
    if not all(isinstance(one, dict) for one in maps):
        raise InvalidInput(f"line {line}: << must name a map or a list of maps")
    return maps
