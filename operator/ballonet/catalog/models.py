"""Models: their geometry and the size of their weights."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache, lru_cache

from ballonet.catalog.lookup import folded, load
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
    geometry: ModelGeometry
    weights_bytes: int
    weights_source: str
    source: str


@cache
def _rows() -> dict[str, dict[str, object]]:
    rows: dict[str, dict[str, object]] = {}
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
        geometry=parse_config(json.dumps(row["config"])),
        weights_bytes=int(str(row["weights_bytes"])),
        weights_source=str(row["weights_source"]),
        source=str(row["source"]),
    )


def model_names() -> tuple[str, ...]:
    """Return the hub names of all models, sorted."""
    return tuple(sorted({str(row["name"]) for row in _rows().values()}))
