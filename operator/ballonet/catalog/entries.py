"""What every entry of the catalog has in common: checked fields, and a source for each fact."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final, NamedTuple, Self

from pydantic import (
    AliasGenerator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    FieldSerializationInfo,
    StringConstraints,
    field_serializer,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import ErrorDetails, PydanticCustomError

from ballonet.api.quoting import shown
from ballonet.api.v1alpha1 import FORMS
from ballonet.catalog.lookup import suggest

_MAX_SHOWN: Final = 8


class Confidence(StrEnum):
    """How far a fact can be trusted: the word that its source begins with.

    ``log``: a driver, a framework or an engine printed it. ``sheet``: a document of the vendor.
    ``catalog``: a table of somebody else. ``config file``: the model's own config.json. ``library
    default``: what the library that reads the model takes where that is silent. ``derived``: worked
    out by a rule, or from a part that is known to be alike. ``recalled``: from memory; nothing that
    a promise rests on.
    """

    LOG = "log"
    SHEET = "sheet"
    CATALOG = "catalog"
    CONFIG_FILE = "config file"
    LIBRARY_DEFAULT = "library default"
    DERIVED = "derived"
    RECALLED = "recalled"


class Source(NamedTuple):
    """Where a fact comes from; ``where`` may be empty for what is recalled."""

    confidence: Confidence
    where: str = ""

    def __str__(self) -> str:
        word = self.confidence.value
        return f"{word}: {self.where}" if self.where else word


def _source(value: object) -> Source:
    if isinstance(value, Source):
        return value
    word, _, where = value.partition(":") if isinstance(value, str) else ("", "", "")
    try:
        source = Source(Confidence(word.strip()), where.strip())
    except ValueError:
        words = ", ".join(Confidence)
        raise PydanticCustomError(
            "source", "must begin with one of {words} and a colon", {"words": words}
        ) from None
    if not source.where and source.confidence is not Confidence.RECALLED:
        raise PydanticCustomError("source", "says nothing after the colon: say where it was read")
    return source


Text = Annotated[str, StringConstraints(min_length=1, max_length=512, strip_whitespace=True)]
Sources = dict[Text, Annotated[Source, BeforeValidator(_source)]]


class Entry(BaseModel):
    """One entry of a catalog file.

    Each fact, that is each field named in ``FACTS``, has a source whenever it is given. A file
    calls a field as it is called here, or in camelCase as programs are shown it.

    Attributes:
        name: what pools call it.
        aliases: other names of it.
        sources: where each fact was read, by field: a confidence, a colon, a place.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=AliasGenerator(serialization_alias=to_camel),
    )
    FACTS: ClassVar[frozenset[str]]

    name: Text
    aliases: Annotated[tuple[Text, ...], Field(max_length=64)] = ()
    sources: Sources = Field(default_factory=dict)

    def as_written(self) -> dict[str, Any]:
        """Return the entry as a file gives it."""
        return self.model_dump(mode="json", exclude_defaults=True)

    def document(self) -> dict[str, Any]:
        """Return the entry as programs are shown it, with camelCase names of fields."""
        return self.model_dump(mode="json", by_alias=True, exclude_defaults=True)

    @model_validator(mode="before")
    @classmethod
    def _by_field(cls, row: object) -> object:
        if not isinstance(row, dict):
            return row
        row = cls._renamed(row)
        sources = row.get("sources")
        return row | {"sources": cls._renamed(sources)} if isinstance(sources, dict) else row

    @classmethod
    def _renamed(cls, row: dict[Any, Any]) -> dict[Any, Any]:
        """Return a row with the names that fields have here, where it has no such name already."""
        fields = {to_camel(name): name for name in cls.model_fields if name not in row}
        return {fields.get(key, key): value for key, value in row.items()}

    @field_serializer("sources")
    def _written_sources(
        self, sources: dict[str, Source], info: FieldSerializationInfo
    ) -> dict[str, str]:
        spelled = to_camel if info.by_alias else str
        return {spelled(name): str(source) for name, source in sources.items()}

    def __hash__(self) -> int:
        return hash((type(self), self.name))

    @property
    def names(self) -> tuple[str, ...]:
        """Everything it is called."""
        return (self.name, *self.aliases)

    @model_validator(mode="after")
    def _every_fact_has_a_source(self) -> Self:
        given = {name for name in self.FACTS if getattr(self, name) not in (None, ())}
        for name in sorted(given - self.sources.keys()):
            raise PydanticCustomError(
                "unsourced",
                "{name} is given without a source: write sources.{name}, for example "
                "'log: nvidia-smi on one of our nodes'",
                {"name": name},
            )
        for name in self.sources:
            if name not in given:
                raise PydanticCustomError(
                    "unused_source",
                    "sources.{name} belongs to no fact that is given: remove it, or give {name}",
                    {"name": name},
                )
        return self


class InvalidCatalog(ValueError):  # noqa: N818 - the name says what is wrong
    """A file of entries that cannot be used.

    Each problem names file, entry, field and value, and says what to do.
    """

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems: Final = tuple(problems)
        more = len(self.problems) - _MAX_SHOWN
        super().__init__(
            "; ".join(self.problems[:_MAX_SHOWN]) + (f"; and {more} more" if more > 0 else "")
        )


def problems_of(errors: Iterable[ErrorDetails], fields: Iterable[str]) -> Iterator[str]:
    """Yield in words what pydantic found wrong with one entry.

    Args:
        errors: its errors, with paths below the entry.
        fields: the fields that the entry may have.
    """
    known = tuple(fields)
    for error in errors:
        path = "".join(f"[{s}]" if isinstance(s, int) else f".{s}" for s in error["loc"])
        yield f"{path.removeprefix('.')}: {_wrong(error, known)}".removeprefix(": ")


def _wrong(error: ErrorDetails, known: tuple[str, ...]) -> str:
    kind = error["type"]
    if kind == "missing":
        return "is missing: give it"
    if kind == "extra_forbidden":
        close = suggest(str(error["loc"][-1]), known, limit=1)
        return f"is not known: {f'did you mean {close[0]}?' if close else 'remove it'}"
    if kind in _SELF_EXPLAINING:
        return error["msg"]
    form = FORMS.get(error.get("ctx", {}).get("pattern", ""))
    wanted = f"use {form}" if form else _WANTED.get(kind) or error["msg"].removeprefix("Input ")
    return f"{shown(error['input'])}: {wanted}"


_SELF_EXPLAINING: Final = frozenset({"unsourced", "unused_source", "memory", "device", "weights"})
_WANTED: Final = {
    "model_type": "must be an object",
    "dict_type": "must be an object",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "int_type": "must be a whole number, without unit and quotes",
    "string_type": "must be text: write it in quotes",
    "bool_type": "must be true or false",
}
