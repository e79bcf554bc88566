"""The catalog as lists: a row for people and a document for programs for each entry."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from ballonet.catalog import Accelerator, Catalog, CatalogModel
from ballonet.catalog.calibration import calibration
from ballonet.catalog.flags import vllm_sampled_versions
from ballonet.cli.canvas import Table
from ballonet.engines import vllm
from ballonet.engines.vllm_abilities import Ability, abilities
from ballonet.engines.vllm_defaults import default_memory_percent
from ballonet.engines.vllm_models import versions_with
from ballonet.engines.vllm_versions import parse_version
from ballonet.kv.config import LayoutNotUnderstood
from ballonet.kv.units import GIB, Interval


@dataclass(frozen=True, slots=True)
class Row:
    """One entry.

    Attributes:
        cells: what people read.
        document: the same for programs, with more of it.
        words: what else a search finds it by.
    """

    cells: tuple[str, ...]
    document: dict[str, Any]
    words: tuple[str, ...] = ()

    def has(self, words: Iterable[str]) -> bool:
        """Return whether each word, in lower case, is part of what it can be found by."""
        text = " ".join((*self.cells, *self.words)).lower()
        return all(word in text for word in words)


@dataclass(frozen=True, slots=True)
class Listed:
    """Entries of one kind under headings."""

    headings: tuple[str, ...]
    numbers: frozenset[str]
    rows: tuple[Row, ...]

    def matching(self, search: str) -> Listed:
        """Return the entries that have all words of a search."""
        words = search.lower().split()
        return replace(self, rows=tuple(row for row in self.rows if row.has(words)))

    @property
    def table(self) -> Table:
        """The rows for people."""
        return Table(self.headings, tuple(row.cells for row in self.rows), self.numbers)

    @property
    def documents(self) -> list[dict[str, Any]]:
        """The rows for programs."""
        return [row.document for row in self.rows]


def listed_devices(devices: Iterable[Accelerator]) -> Listed:
    """Return devices with the memory that programs see."""
    return Listed(
        ("name", "memory, GiB", "seen in", "generation", "FP8 cache", "GPUs a node", "also called"),
        frozenset(),
        tuple(_device_row(device) for device in devices),
    )


def _device_row(device: Accelerator) -> Row:
    architecture = device.architecture
    cells = (
        device.name,
        device.memory_text,
        device.sources["memory_mib"].confidence if device.memory_mib else "",
        f"{architecture.generation} ({architecture.name})" if architecture else "",
        "yes" if device.fp8_kv_cache else "no",
        ", ".join(str(size) for size in device.node_sizes),
        ", ".join((*device.labels, *device.aliases)),
    )
    can = architecture and {
        "fp8Matrix": architecture.fp8_matrix,
        "fp4Matrix": architecture.fp4_matrix,
        "fp8KvCache": architecture.fp8_kv_cache,
    }
    document = device.document() | {"computed": can or {}}
    return Row(cells, document, (device.product, device.vendor, device.link or ""))


def listed_models(models: Iterable[CatalogModel]) -> Listed:
    """Return models with what a plan needs of them."""
    return Listed(
        (
            *("name", "family", "weights, GiB", "most tokens", "KV cache", "in vLLM"),
            *("config from", "also called"),
        ),
        frozenset({"weights, GiB", "most tokens"}),
        tuple(_model_row(model) for model in models),
    )


def _model_row(model: CatalogModel) -> Row:
    try:
        geometry = model.geometry
    except LayoutNotUnderstood as error:
        family = str(model.config.get("model_type", ""))
        cells = (model.name, family, _weights(model, None), "", "not planned for", "")
        computed: dict[str, Any] = {"problem": str(error)}
    else:
        longest, declared = geometry.max_position_tokens, geometry.declared_kv_cache
        stored = geometry.stored_weights
        cells = (
            model.name,
            geometry.model_type,
            _weights(model, stored),
            f"{longest:,}" if longest else "",
            declared or "",
            versions_with(geometry.architectures),
        )
        computed = {
            "parameters": geometry.parameters,
            "weightsLowBytes": stored and stored.low,
            "weightsHighBytes": stored and stored.high,
            "maxPositionTokens": longest,
            "declaredKvCache": declared,
            "vllmVersions": versions_with(geometry.architectures) or None,
        }
    where = (str(model.sources["config"].confidence), ", ".join(model.aliases))
    return Row((*cells, *where), model.document() | {"computed": computed})


def _weights(model: CatalogModel, stored: Interval | None) -> str:
    """Return the weights in GiB: as given by the entry, else as its shape is stored."""
    if model.weights_bytes is not None:
        stored = Interval.point(model.weights_bytes)
    if stored is None:
        return ""
    return " to ".join(f"{size / GIB:.1f}" for size in sorted({stored.low, stored.high}))


def listed_engines() -> Listed:
    """Return the versions of vLLM that were read, and what is new in each."""
    versions = [text for text in vllm_sampled_versions() if parse_version(text) >= vllm.OLDEST]
    rows = []
    before: tuple[Ability, ...] = ()
    for version in versions:
        can = abilities(version)
        rows.append(_engine_row(version, can, [one for one in can if one not in before]))
        before = can
    return Listed(
        ("version", "memory unless given", "boots calibrated on", "new in it"),
        frozenset({"memory unless given", "boots calibrated on"}),
        tuple(rows),
    )


def _engine_row(version: str, can: Iterable[Ability], new: Iterable[Ability]) -> Row:
    number = parse_version(version)[:3]
    percent = default_memory_percent(number)
    classes = [one for one in calibration().classes if one.first <= number < one.before]
    cells = (
        version,
        f"{percent} %",
        str(sum(one.boots for one in classes)),
        ", ".join(one.name for one in new),
    )
    document = {
        "engine": "VLLM",
        "version": version,
        "defaultMemoryPercent": percent,
        "abilities": [one.name for one in can],
        "calibration": [
            {"name": one.name, "boots": one.boots, "covered": one.covered} for one in classes
        ],
    }
    return Row(cells, document, ("vllm", *(one.name for one in can)))


def changes(before: Catalog, after: Catalog) -> str:
    """Return in words which entries a file added to a catalog, and which it replaced."""
    pairs = (
        (before.architectures.values(), after.architectures.values()),
        (before.accelerators, after.accelerators),
        (before.models, after.models),
    )
    new = [one.name for old, now in pairs for one in now if one not in old]
    replaced = {
        name
        for name in new
        if name in before.architectures or before.accelerator(name) or before.model(name)
    }
    words = [f"{name} replaced" if name in replaced else f"{name} added" for name in new]
    return ", ".join(words) or "nothing new"
