"""Facts as data: devices, model geometries, engine flags by version; each with its source."""

from ballonet.catalog.accelerators import (
    Accelerator,
    accelerator,
    accelerator_names,
    accelerators,
)
from ballonet.catalog.lookup import suggest
from ballonet.catalog.models import CatalogModel, model, model_names, models, similar_models

__all__ = [
    "Accelerator",
    "CatalogModel",
    "accelerator",
    "accelerator_names",
    "accelerators",
    "model",
    "model_names",
    "models",
    "similar_models",
    "suggest",
]
