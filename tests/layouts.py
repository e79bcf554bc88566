"""Cache layouts for tests, with the settings that a test does not care about filled in."""

from __future__ import annotations

from typing import Any

from ballonet.kv.geometry import ModelGeometry
from ballonet.kv.layout import CacheLayout, cache_layout
from ballonet.kv.settings import CUDA, EngineSettings

LONGEST_TOKENS = 2**24


def layout(geometry: ModelGeometry, **changes: Any) -> CacheLayout:
    """Return the layout of a model on one GPU with blocks of 16 tokens, but for what changes."""
    settings = EngineSettings(
        **{
            "version": (0, 32, 0),
            "platform": CUDA,
            "max_model_tokens": LONGEST_TOKENS,
            "max_batched_tokens": 8192,
            "block_tokens": 16,
            **changes,
        }
    )
    return cache_layout(geometry, settings)
