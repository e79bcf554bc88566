"""Models: the config.json that decides their geometry, and the size of their weights."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import cached_property
from typing import Annotated, Any, ClassVar, Final, Self

from pydantic import Field, StrictInt, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from ballonet.api.v1alpha1 import HUB_NAME_PATTERN
from ballonet.catalog.entries import Confidence, Entry
from ballonet.catalog.lookup import suggest
from ballonet.kv.geometry import ModelGeometry, parse_config

LEAST_WEIGHTS_BYTES: Final = 2**20
_MOST_WEIGHTS_BYTES: Final = 2**50


class CatalogModel(Entry):
    """A model that can be named instead of described.

    Attributes:
        config: config.json, as far as it decides geometry and working memory. What a separate
            hf_quant_config.json declares stands under its ``quantization_config``.
        weights_bytes: all weights as loaded, over all ranks; None where nobody measured or worked
            it out: the geometry may then know it, or the user gives it.
    """

    FACTS: ClassVar = frozenset({"config", "weights_bytes"})

    name: Annotated[str, StringConstraints(max_length=253, pattern=HUB_NAME_PATTERN)]
    config: Annotated[dict[str, Any], Field(min_length=1)]
    weights_bytes: (
        Annotated[StrictInt, Field(ge=LEAST_WEIGHTS_BYTES, le=_MOST_WEIGHTS_BYTES)] | None
    ) = None

    @model_validator(mode="after")
    def _weights_are_not_recalled(self) -> Self:
        source = self.sources.get("weights_bytes")
        if source is not None and source.confidence is Confidence.RECALLED:
            raise PydanticCustomError(
                "weights",
                "sources.weights_bytes: a recalled size carries no promise: give where it was "
                "measured or how it was worked out, or leave it out",
            )
        return self

    @property
    def config_text(self) -> str:
        """The config as the text of a config.json."""
        return json.dumps(self.config)

    @cached_property
    def geometry(self) -> ModelGeometry:
        """Geometry of the model.

        Raises:
            InvalidModelConfig: the config cannot be used.
            LayoutNotUnderstood: its cache layout is not planned for.
        """
        return parse_config(self.config_text)

    @property
    def weights_source(self) -> str:
        """Where the size of the weights comes from; empty when it is not given."""
        source = self.sources.get("weights_bytes")
        return "" if source is None else str(source)

    @property
    def source(self) -> str:
        """Where the config was read."""
        return str(self.sources["config"])


def similar_models(name: str, known: Iterable[str]) -> list[str]:
    """Return the names that were surely meant by a name, best first; may be empty.

    Generation and size are numbers in a name: with another number it is another model, however
    alike the letters are. The organisation before the / may be missing or wrong.
    """
    by_part = {_model_part(one): one for one in known if _numbers(one) == _numbers(name)}
    return [by_part[part] for part in suggest(_model_part(name), by_part, limit=2, likeness=0.7)]


def _model_part(name: str) -> str:
    return name.rsplit("/", 1)[-1]


def _numbers(name: str) -> list[str]:
    return re.findall("[0-9]+", _model_part(name))
