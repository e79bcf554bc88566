"""Facts as data: devices, model geometries, engine flags by version; each with its source."""

from ballonet.catalog.accelerators import Accelerator, accelerator, accelerator_names
from ballonet.catalog.lookup import suggest
from ballonet.catalog.models import CatalogModel, model, model_names

__all__ = [
    "Accelerator",
    "CatalogModel",
    "accelerator",
    "accelerator_names",
    "model",
    "model_names",
    "suggest",
]
