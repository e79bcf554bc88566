"""The pools of an input and the ConfigMaps that stand beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ballonet.api.quoting import quoted
from ballonet.api.v1alpha1 import API_VERSION, GROUP, KIND
from ballonet.api.yaml_input import InvalidInput

_LISTS: Final = ("List", f"{KIND}List")


@dataclass(frozen=True, slots=True)
class PoolDocument:
    """One pool as it was written.

    Attributes:
        origin: file it stands in.
    """

    origin: str
    body: Mapping[str, Any]

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The pool's metadata; empty when it has none."""
        metadata = self.body.get("metadata")
        return metadata if isinstance(metadata, Mapping) else {}

    @property
    def name(self) -> str:
        """The pool's name; empty when it has none."""
        return str(self.metadata.get("name") or "")

    @property
    def namespace(self) -> str | None:
        """The pool's namespace where it is written."""
        namespace = self.metadata.get("namespace")
        return None if namespace is None else str(namespace)

    @property
    def refers_to_config(self) -> bool:
        """Whether the model's config.json is to come from a ConfigMap."""
        value: Any = self.body
        for step in ("spec", "model", "config", "configMapRef"):
            value = value.get(step) if isinstance(value, Mapping) else None
        return value is not None


@dataclass(frozen=True, slots=True)
class ConfigMaps:
    """ConfigMaps by namespace and name; a namespace that is not written matches any."""

    found: tuple[Mapping[str, Any], ...]

    def text(self, namespace: str | None, name: str, key: str) -> str | None:
        """Return the text of a key, or None when it is not there."""
        for body in self.found:
            metadata = body["metadata"]
            other = metadata.get("namespace") or namespace
            if metadata.get("name") != name or other != (namespace or other):
                continue
            data = body.get("data")
            value = data.get(key) if isinstance(data, Mapping) else None
            if isinstance(value, str):
                return value
        return None


@dataclass(frozen=True, slots=True)
class Selection:
    """What an input holds.

    Attributes:
        others: what is neither pool nor ConfigMap, as "kind of apiVersion".
    """

    pools: tuple[PoolDocument, ...]
    config_maps: tuple[Mapping[str, Any], ...]
    others: tuple[str, ...]


def select(origin: str, documents: list[Any]) -> Selection:
    """Return the pools of the documents, and the ConfigMaps; everything else is only named.

    Raises:
        InvalidInput: a pool is of a version that this program does not know.
    """
    pools, config_maps, others = [], [], []
    for body in _flat(documents):
        version, kind = str(body.get("apiVersion", "")), body.get("kind")
        if kind == "ConfigMap" and version == "v1":
            if isinstance(body.get("metadata"), Mapping):
                config_maps.append(body)
        elif kind == KIND and version.split("/", maxsplit=1)[0] == GROUP:
            if version != API_VERSION:
                raise InvalidInput(f"apiVersion {quoted(version)} is not known: use {API_VERSION}")
            pools.append(PoolDocument(origin, body))
        else:
            others.append(f"kind {_shown(kind)} of apiVersion {_shown(body.get('apiVersion'))}")
    return Selection(tuple(pools), tuple(config_maps), tuple(others))


def no_pool(others: Sequence[str]) -> str:
    """Return what is said of an input without any pool: what was looked for and what was found."""
    wanted = f"holds no {KIND} of group {GROUP} (kind {KIND}, apiVersion {API_VERSION})"
    if not others:
        return wanted
    more = f" and {len(others) - _MOST_NAMED} more" if len(others) > _MOST_NAMED else ""
    return f"{wanted}; found {', '.join(others[:_MOST_NAMED])}{more}"


_MOST_NAMED: Final = 5


def _shown(value: object) -> str:
    return "(none)" if value is None else quoted(value)


def _flat(documents: list[Any]) -> Iterator[Mapping[str, Any]]:
    for document in documents:
        if not isinstance(document, Mapping):
            continue
        items = document.get("items")
        if document.get("kind") in _LISTS and isinstance(items, list):
            yield from _flat(items)
        else:
            yield document
