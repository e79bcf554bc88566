"""Models: their geometry and the size of their weights."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from ballonet.catalog.lookup import folded, load, suggest
from ballonet.kv.geometry import ModelGeometry, parse_config


@dataclass(frozen=True, slots=True)
class CatalogModel:
    """A model that can be named instead of described.

    Attributes:
        weights_bytes: all weights as loaded, over all ranks.
        weights_source: whether that was measured in a boot or computed from the shape.
        source: where the geometry was read.
    """

    name: str
    aliases: tuple[str, ...]
    geometry: ModelGeometry
    weights_bytes: int
    weights_source: str
    source: str


@cache
def _rows() -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    for row in load("models.json")["models"]:
        for name in (row["name"], *row["aliases"]):
            rows[folded(name)] = row
    return rows


@lru_cache(maxsize=64)
def model(name: str) -> CatalogModel | None:
    """Return the model of a hub name or alias, without regard to case; None when unknown."""
    row = _rows().get(folded(name))
    if row is None:
        return None
    return CatalogModel(
        name=str(row["name"]),
        aliases=tuple(str(alias) for alias in row["aliases"]),
        geometry=parse_config(json.dumps(row["config"])),
        weights_bytes=int(str(row["weights_bytes"])),
        weights_source=str(row["weights_source"]),
        source=str(row["source"]),
    )


def model_names() -> tuple[str, ...]:
    """Return the hub names of all models, sorted."""
    return tuple(sorted({str(row["name"]) for row in _rows().values()}))


def models() -> tuple[CatalogModel, ...]:
    """Return all models, sorted by name."""
    found = (model(name) for name in model_names())
    return tuple(one for one in found if one is not None)


def similar_models(name: str) -> list[str]:
    """Return the names and aliases that were surely meant by a name, best first; may be empty.

    Generation and size are numbers in a name: with another number it is another model, however
    alike the letters are. The organisation before the / may be missing or wrong.
    """
    known = {
        _model_part(one): one
        for found in models()
        for one in (found.name, *found.aliases)
        if _numbers(one) == _numbers(name)
    }
    return [known[part] for part in suggest(_model_part(name), known, limit=2, likeness=0.7)]


def _model_part(name: str) -> str:
    return name.rsplit("/", 1)[-1]


def _numbers(name: str) -> list[str]:
    return re.findall("[0-9]+", _model_part(name))
