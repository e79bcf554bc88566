"""Facts as data: devices, model geometries, engine flags by version; each with its source."""

from ballonet.catalog.accelerators import Accelerator, Architecture
from ballonet.catalog.catalog import Catalog
from ballonet.catalog.entries import Confidence, InvalidCatalog, Source
from ballonet.catalog.lookup import suggest
from ballonet.catalog.models import CatalogModel

__all__ = [
    "Accelerator",
    "Architecture",
    "Catalog",
    "CatalogModel",
    "Confidence",
    "InvalidCatalog",
    "Source",
    "suggest",
]


def accelerator(name: str) -> Accelerator | None:
    return Catalog.builtin().accelerator(name)


def accelerators() -> tuple[Accelerator, ...]:
    return Catalog.builtin().accelerators


def accelerator_names() -> tuple[str, ...]:
    return Catalog.builtin().accelerator_names


def model(name: str) -> CatalogModel | None:
    return Catalog.builtin().model(name)


def models() -> tuple[CatalogModel, ...]:
    return Catalog.builtin().models


def model_names() -> tuple[str, ...]:
    return Catalog.builtin().model_names


def similar_models(name: str) -> list[str]:
    return Catalog.builtin().similar_models(name)
