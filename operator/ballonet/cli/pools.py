"""The pools of an input and the ConfigMaps that stand beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ballonet.api.v1alpha1 import API_VERSION, GROUP, KIND
from ballonet.cli.yaml_input import InvalidInput

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


def select(origin: str, documents: list[Any]) -> tuple[list[PoolDocument], list[Mapping[str, Any]]]:
    """Return the pools of the documents, and the ConfigMaps; everything else is left out.

    Raises:
        InvalidInput: a pool is of a version that this program does not know.
    """
    pools, config_maps = [], []
    for body in _flat(documents):
        version, kind = str(body.get("apiVersion", "")), body.get("kind")
        if kind == "ConfigMap" and version == "v1" and isinstance(body.get("metadata"), Mapping):
            config_maps.append(body)
        if kind == KIND and version.split("/", maxsplit=1)[0] == GROUP:
            if version != API_VERSION:
                raise InvalidInput(f"apiVersion {version} is not known: use {API_VERSION}")
            pools.append(PoolDocument(origin, body))
    return pools, config_maps


def _flat(documents: list[Any]) -> Iterator[Mapping[str, Any]]:
    for document in documents:
        if not isinstance(document, Mapping):
            continue
        items = document.get("items")
        if document.get("kind") in _LISTS and isinstance(items, list):
            yield from _flat(items)
        else:
            yield document
