"""Checked reading of a model's config.json.

Nothing is taken on trust: every figure has bounds, and what is wrong is refused at its field.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from ballonet.api.quoting import quoted
from ballonet.kv.units import format_bytes

MAX_CONFIG_BYTES: Final = 1_048_576
MAX_LAYERS: Final = 4096
MAX_SIZE: Final = 16_777_216
MAX_TOKENS: Final = 2**40

# Where the config of the language model lies in that of a model with encoders.
_TEXT_PARTS: Final = ("text_config", "language_config", "llm_config", "thinker_config")


class InvalidModelConfig(ValueError):  # noqa: N818 - the name says what is wrong
    """The model's config.json cannot be used; names the field, its value and what to do."""

    def __init__(self, field: str, value: object, message: str) -> None:
        self.field = field
        self.value = value
        self.message = message
        super().__init__(f"config.json {field}: {quoted(value)}: {message}")


class LayoutNotUnderstood(ValueError):  # noqa: N818 - no error of the user
    """The model keeps its cache in a way that is not planned for; names what showed it."""

    def __init__(self, marker: str, message: str) -> None:
        self.marker = marker
        self.message = message
        where = marker if marker.startswith("--") else f"config.json {marker}"
        super().__init__(f"{where}: {message}")


class Config:
    """One JSON object of a config.json, read field by field.

    Where several names are given for a figure, the first that is present and not null counts. Lists
    with ``count`` have an entry a layer: a shorter one is refused, and of a longer one the rest
    (that of draft layers) is left out.
    Every method raises InvalidModelConfig, at the field, for a value of another kind or out of
    bounds.

    Attributes:
        fields: the object as it stands.
        path: names of the objects around it, each with a dot behind.
        outer: the object that holds this one; itself at the top.
    """

    def __init__(
        self, fields: Mapping[str, Any], path: str = "", outer: Config | None = None
    ) -> None:
        self.fields = fields
        self.path = path
        self.outer = outer or self

    def name(self, key: str) -> str:
        """Return the field's name with the path of the objects around it."""
        return f"{self.path}{key}"

    def has(self, key: str) -> bool:
        """Return whether the field holds anything but null, false, 0 or empty."""
        return bool(self.fields.get(key))

    def with_defaults(self, fields: Mapping[str, Any]) -> Config:
        """Return this object with what its fields mean where they are missing."""
        return Config({**fields, **self.fields}, self.path, self.outer)

    def with_fields(self, fields: Mapping[str, Any]) -> Config:
        """Return this object with further fields, which go before its own."""
        return Config({**self.fields, **fields}, self.path, self.outer)

    def number(
        self, *keys: str, least: int = 1, most: int = MAX_SIZE, default: int | None = None
    ) -> int:
        """Return a whole number; refused where it is missing and has no default."""
        value = self.optional(*keys, least=least, most=most)
        if value is None:
            value = default
        if value is None:
            raise InvalidModelConfig(
                self.name(keys[0]),
                None,
                "is missing; give the config.json of the model itself, complete",
            )
        return value

    def optional(self, *keys: str, least: int = 1, most: int = MAX_SIZE) -> int | None:
        """Return a whole number, or None where it is missing or null."""
        for key in keys:
            value = self.fields.get(key)
            if value is None:
                continue
            return self._whole(key, value, least, most)
        return None

    def widest(self, *keys: str) -> int | None:
        """Return a whole number, or the largest of a list with one for each layer."""
        for key in keys:
            if isinstance(self.fields.get(key), list):
                return max(self.numbers(key) or (0,)) or None
        return self.optional(*keys, least=0) or None

    def flag(self, *keys: str, default: bool = False) -> bool:
        """Return a switch."""
        for key in keys:
            value = self.fields.get(key)
            if value is None:
                continue
            if not isinstance(value, bool):
                raise InvalidModelConfig(self.name(key), value, "must be true or false")
            return value
        return default

    def word(self, *keys: str) -> str | None:
        """Return a text; None where it is missing or something else."""
        for key in keys:
            value = self.fields.get(key)
            if isinstance(value, str):
                return value
        return None

    def words(self, *keys: str, count: int | None = None) -> tuple[str, ...] | None:
        """Return a list of words; None where it is missing or empty."""
        found = self._list(keys, count)
        if found is None:
            return None
        key, values = found
        for value in values:
            if not isinstance(value, str):
                raise InvalidModelConfig(self.name(key), value, "must be a list of words")
        return cast(tuple[str, ...], values)

    def kinds(self, *keys: str, count: int | None = None) -> tuple[str | int, ...] | None:
        """Return a list of words or whole numbers; None where it is missing or empty."""
        found = self._list(keys, count)
        if found is None:
            return None
        key, values = found
        for value in values:
            if isinstance(value, bool) or not isinstance(value, str | int):
                raise InvalidModelConfig(
                    self.name(key), value, "must be a list of words or of whole numbers"
                )
        return values

    def numbers(
        self, *keys: str, count: int | None = None, least: int = 0, most: int = MAX_SIZE
    ) -> tuple[int, ...] | None:
        """Return a list of whole numbers; None where it is missing or empty."""
        found = self._list(keys, count)
        if found is None:
            return None
        key, values = found
        return tuple(self._whole(key, value, least, most) for value in values)

    def part(self, key: str) -> Config | None:
        """Return the object that a field holds; None where it is missing or null."""
        value = self.fields.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise InvalidModelConfig(self.name(key), value, "must be a JSON object")
        return Config(value, f"{self.name(key)}.", self)

    def parts(self, key: str, count: int | None = None) -> tuple[Config, ...] | None:
        """Return the objects of a list; None where it is missing or empty."""
        found = self._list((key,), count)
        if found is None:
            return None
        for value in found[1]:
            if not isinstance(value, dict):
                raise InvalidModelConfig(self.name(key), value, "must be a list of JSON objects")
        return tuple(
            Config(value, f"{self.name(key)}[{index}].", self)
            for index, value in enumerate(found[1])
        )

    def _list(self, keys: Sequence[str], count: int | None) -> tuple[str, tuple[Any, ...]] | None:
        for key in keys:
            values = self.fields.get(key)
            if values is None or values == []:
                continue
            if not isinstance(values, list):
                raise InvalidModelConfig(self.name(key), values, "must be a list")
            if count is not None and len(values) < count:
                raise InvalidModelConfig(
                    self.name(key),
                    f"{len(values):,} entries",
                    f"must have one entry for each of {count} layers",
                )
            if len(values) > MAX_LAYERS:
                raise InvalidModelConfig(
                    self.name(key),
                    f"{len(values):,} entries",
                    f"must have at most {MAX_LAYERS:,}",
                )
            return key, tuple(values[:count])
        return None

    def _whole(self, key: str, value: object, least: int, most: int) -> int:
        # bool is an int to Python, but no number to anybody else.
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise InvalidModelConfig(
                self.name(key), value, f"must be a whole number from {least:,} to {most:,}"
            )
        return value


def load_config(text: str) -> Config:
    """Return the object that the text of a config.json holds.

    Raises:
        InvalidModelConfig: the text is not the JSON object of a model.
    """
    if len(text) > MAX_CONFIG_BYTES:
        raise InvalidModelConfig(
            "(file)",
            text,
            f"has {format_bytes(len(text))}; a model's config.json is far below "
            f"{format_bytes(MAX_CONFIG_BYTES)}. Give config.json itself, not weights or tokenizer",
        )
    if not text.strip():
        raise InvalidModelConfig("(file)", text, "is empty; give the text of config.json")
    try:
        fields = json.loads(text)
    except RecursionError:
        raise InvalidModelConfig(
            "(file)", text, "is nested too deeply to be a config.json"
        ) from None
    except ValueError as error:
        raise InvalidModelConfig(
            "(file)", text, f"is not JSON ({error}); give the text of config.json"
        ) from None
    if not isinstance(fields, dict):
        raise InvalidModelConfig("(file)", text, "must be a JSON object")
    return Config(fields)


def text_part(config: Config) -> Config:
    """Return the config of the language model: the config itself where it has no parts."""
    for key in _TEXT_PARTS:
        if isinstance(config.fields.get(key), dict):
            part = config.part(key)
            assert part is not None
            return text_part(part)
    return config
