"""The catalog as a value: the entries of this package, and a user's own over them."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Final, TypeVar

from pydantic import ValidationError

from ballonet.api.quoting import quoted
from ballonet.catalog.accelerators import SHARED, Accelerator, Architecture
from ballonet.catalog.entries import Entry, InvalidCatalog, problems_of
from ballonet.catalog.lookup import folded, load, suggest
from ballonet.catalog.models import CatalogModel, similar_models
from ballonet.kv.config import InvalidModelConfig, LayoutNotUnderstood
from ballonet.kv.units import counted

SECTIONS: Final = ("architectures", "accelerators", "models")

E = TypeVar("E", bound=Entry)


@dataclass(frozen=True)
class Catalog:
    """Devices and models that a pool can name.

    Made at the edge of the program and handed down; nothing in it ever changes.

    Attributes:
        architectures: generations of devices, by name.
        accelerators: all devices, sorted by name.
        models: all models, sorted by name.
    """

    architectures: Mapping[str, Architecture]
    accelerators: tuple[Accelerator, ...]
    models: tuple[CatalogModel, ...]

    @staticmethod
    def builtin() -> Catalog:
        """Return the catalog of this package."""
        return _builtin()

    def with_entries(self, text: str, where: str) -> Catalog:
        """Return this catalog with the entries of a file over it.

        An entry takes the place of one of the same name.

        Args:
            text: YAML or JSON: one object with the lists ``architectures``, ``accelerators`` and
                ``models``, each of which may be missing.
            where: what messages call the file.

        Raises:
            InvalidCatalog: with every problem of every entry.
        """
        from ballonet.api.yaml_input import (  # noqa: PLC0415 - PyYAML is slow to import
            InvalidInput,
            read_documents,
        )

        try:
            documents = read_documents(text)
        except InvalidInput as error:
            raise InvalidCatalog([f"{where}: {error}"]) from None
        if len(documents) != 1:
            raise InvalidCatalog(
                [f"{where}: holds {counted(len(documents), 'document')}: write one"]
            )
        problems: list[str] = []
        merged = self._over(documents[0], problems)
        problems.extend(_unreadable_configs(merged.models, but=self.models))
        if problems:
            raise InvalidCatalog(f"{where}: {problem}" for problem in problems)
        return merged

    def _over(self, document: Any, problems: list[str]) -> Catalog:
        """Return this catalog with the entries of a document over it; adds what is wrong."""
        sections = _sections(document, problems)
        architectures = {
            **self.architectures,
            **{one.name: one for one in _read(Architecture, sections, "architectures", problems)},
        }
        accelerators = _read(Accelerator, sections, "accelerators", problems, architectures)
        models = _read(CatalogModel, sections, "models", problems)
        return Catalog(
            architectures,
            _merged(self.accelerators, accelerators, problems),
            _merged(self.models, models, problems),
        )

    def accelerator(self, name: str) -> Accelerator | None:
        """Return the device of a name, alias or node label, without regard to case.

        A label of a shared device names the device; one of a MIG slice names the slice, and none
        at all where that slice is not in the catalog.
        """
        return self._devices_by_name.get(folded(name).removesuffix(SHARED))

    def model(self, name: str) -> CatalogModel | None:
        """Return the model of a hub name or alias, without regard to case."""
        return self._models_by_name.get(folded(name))

    def similar_accelerators(self, name: str) -> list[str]:
        """Return the names of devices that are most like a name, best first; may be empty."""
        return suggest(name, (one.name for one in self.accelerators))

    def similar_models(self, name: str) -> list[str]:
        """Return the names of models that were surely meant, best first; may be empty."""
        return similar_models(name, (known for one in self.models for known in one.names))

    @cached_property
    def _devices_by_name(self) -> dict[str, Accelerator]:
        return {folded(name): one for one in self.accelerators for name in one.names}

    @cached_property
    def _models_by_name(self) -> dict[str, CatalogModel]:
        return {folded(name): one for one in self.models for name in one.names}


@cache
def _builtin() -> Catalog:
    document = load("accelerators.json") | load("models.json")
    del document["about"]
    problems: list[str] = []
    catalog = Catalog({}, (), ())._over(document, problems)
    if problems:
        raise InvalidCatalog(problems)
    return catalog


def _sections(document: Any, problems: list[str]) -> dict[str, list[Any]]:
    """Return the lists of a document; what is no list of entries becomes a problem."""
    if not isinstance(document, dict):
        problems.append(f"must be an object with {', '.join(SECTIONS)}, not {quoted(document)}")
        return {}
    found = {}
    for name, entries in document.items():
        if name not in SECTIONS:
            problems.append(f"{name}: is not known: use {', '.join(SECTIONS)}")
        elif not isinstance(entries, list):
            problems.append(f"{name}: must be a list of entries, not {quoted(entries)}")
        else:
            found[name] = entries
    return found


def _read(
    kind: type[E],
    sections: Mapping[str, list[Any]],
    section: str,
    problems: list[str],
    context: Mapping[str, Architecture] | None = None,
) -> list[E]:
    """Return the entries of a section that are in order; the others become problems."""
    entries = []
    for index, row in enumerate(sections.get(section, [])):
        try:
            entries.append(kind.model_validate(row, context=context))
        except ValidationError as error:
            name = row.get("name") if isinstance(row, dict) else None
            place = f"{section}[{index}]" + (f" ({quoted(name)})" if name else "")
            errors = error.errors(include_url=False)
            problems.extend(
                f"{place}: {problem}" for problem in problems_of(errors, kind.model_fields)
            )
    return entries


def _unreadable_configs(
    models: Iterable[CatalogModel], *, but: Container[CatalogModel]
) -> Iterator[str]:
    for one in models:
        if one in but:
            continue
        try:
            _ = one.geometry
        except InvalidModelConfig as error:
            yield f"models ({one.name}): {error}"
        except LayoutNotUnderstood:
            pass  # It can be named, and its plans are Unknown.


def _merged(below: Iterable[E], over: Iterable[E], problems: list[str]) -> tuple[E, ...]:
    """Return entries with others over them, sorted; a name of two entries is a problem."""
    own: dict[str, E] = {}
    for entry in over:
        if folded(entry.name) in own:
            problems.append(f"{entry.name}: is there twice: keep one")
        own[folded(entry.name)] = entry
    merged = {folded(one.name): one for one in below} | own
    owners: dict[str, str] = {}
    for one in merged.values():
        for name in one.names:
            if (owner := owners.setdefault(folded(name), one.name)) != one.name:
                problems.append(
                    f"{one.name}: the name or alias {quoted(name)} belongs to {owner}: remove it "
                    "from one of them"
                )
    return tuple(sorted(merged.values(), key=lambda one: one.name.lower()))
