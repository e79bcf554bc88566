"""Models for tests that care about few of their fields."""

from __future__ import annotations

import json
from typing import Any

from ballonet.kv.geometry import ModelGeometry, parse_config

# The shape of Llama 3.1 8B.
LLAMA: dict[str, Any] = {
    **{"model_type": "llama", "num_hidden_layers": 32, "num_attention_heads": 32},
    **{"num_key_value_heads": 8, "hidden_size": 4096, "intermediate_size": 14336},
    **{"vocab_size": 128256, "torch_dtype": "bfloat16"},
}


def llama(**changes: Any) -> ModelGeometry:
    """Return a dense model whose config.json says this and what changes."""
    return parse_config(json.dumps({**LLAMA, **changes}))
