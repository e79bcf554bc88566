"""Geometry of a model, read from its config.json."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

MAX_CONFIG_BYTES: Final = 1_048_576
MAX_LAYERS: Final = 4096
MAX_SIZE: Final = 16_777_216
ELEMENT_BYTES: Final = {"bfloat16": 2, "float16": 2, "float32": 4}


class InvalidModelConfig(ValueError):  # noqa: N818 - the name says what is wrong
    """The model's config.json cannot be used; names the field, its value and what to do."""

    def __init__(self, field: str, value: object, message: str) -> None:
        shown = repr(value)
        self.field = field
        self.value = value
        self.message = message
        text = shown if len(shown) <= 60 else f"{shown[:57]}..."
        super().__init__(f"config.json {field}: {text}: {message}")


class LayoutNotUnderstood(ValueError):  # noqa: N818 - no error of the user
    """The model keeps its cache in a way that is not planned for."""

    def __init__(self, marker: str, message: str) -> None:
        self.marker = marker
        self.message = message
        super().__init__(f"config.json {marker}: {message}")


@dataclass(frozen=True, slots=True)
class ModelGeometry:
    """The figures of a model that decide the size of its KV cache and of its weights.

    Attributes:
        kv_heads: key/value heads of one layer over all ranks.
        dtype: number format of the activations, and of the KV cache unless declared otherwise.
        parameters: number of parameters worked out from the shape; None where the shape of the
            family is not known.
        quantization: method that config.json declares for the weights.
        declared_kv_cache: KV cache format that the checkpoint itself declares.
    """

    model_type: str
    layers: int
    attention_heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    intermediate: int
    vocab: int
    dtype: str
    max_position_tokens: int | None = None
    parameters: int | None = None
    quantization: str | None = None
    declared_kv_cache: str | None = None


def parse_config(text: str) -> ModelGeometry:
    """Return the geometry that a config.json describes.

    Raises:
        InvalidModelConfig: the text is no usable config.json.
        LayoutNotUnderstood: the model is not of plain full attention.
    """
    try:
        config: Any = json.loads(text)
    except ValueError as error:
        raise InvalidModelConfig("(file)", text[:40], f"is not JSON: {error}") from None
    if not isinstance(config, dict):
        raise InvalidModelConfig("(file)", config, "must be a JSON object")
    heads = config["num_attention_heads"]
    return ModelGeometry(
        model_type=config.get("model_type", ""),
        layers=config["num_hidden_layers"],
        attention_heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or config["hidden_size"] // heads,
        hidden=config["hidden_size"],
        intermediate=config["intermediate_size"],
        vocab=config["vocab_size"],
        dtype=config.get("torch_dtype") or config.get("dtype") or "bfloat16",
        max_position_tokens=config.get("max_position_embeddings"),
    )
