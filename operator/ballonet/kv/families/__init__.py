"""From the fields of a config.json to the caches of each layer, one entry a family of models.

A family is a function from the config of the language model to its layers; ``families`` joins the
tables of the modules here. A new architecture is an entry in one of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from ballonet.kv.config import Config
from ballonet.kv.layers import Layer

# Layers of the decoder, in the order in which the model builds them.
Family: TypeAlias = Callable[[Config], tuple[Layer, ...]]

FAMILIES: Final[dict[str, Family]] = {}
