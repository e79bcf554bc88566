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
