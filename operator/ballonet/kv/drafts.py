"""What drafting tokens ahead adds to a model: layers with caches, and tokens that need room.

Source: config/speculative.py and ``num_lookahead_tokens`` in config/vllm.py (0.32.0).
"""

from __future__ import annotations

from typing import Final

from ballonet.kv.config import LayoutNotUnderstood
from ballonet.kv.geometry import ModelGeometry
from ballonet.kv.layers import Layer
from ballonet.kv.settings import EngineRefuses, Speculation

# Drafts come out of the text so far, or out of heads that keep nothing.
_WITHOUT_LAYERS: Final = frozenset(("ngram", "ngram_gpu", "suffix", "medusa", "mlp_speculator"))
# Drafts come out of another model with layers of its own.
_OWN_MODEL: Final = frozenset(("draft_model", "eagle", "eagle3"))
_FIELD: Final = "spec.engine.args"


def drafted_layers(geometry: ModelGeometry, speculation: Speculation) -> tuple[Layer, ...]:
    """Return the layers that drafting adds, in order; they lie on the last pipeline stage.

    Raises:
        EngineRefuses: the model cannot draft this way, or not so many tokens.
        LayoutNotUnderstood: it is not known what the method keeps.
    """
    method = speculation.method
    if method in _WITHOUT_LAYERS:
        return ()
    if method == "mtp":
        layers = geometry.draft
        if not layers:
            raise EngineRefuses(
                _FIELD, method, "the model brings no layers that draft tokens (MTP)"
            )
        if speculation.tokens > len(layers) and speculation.tokens % len(layers):
            raise EngineRefuses(
                _FIELD,
                f"{speculation.tokens} speculative tokens",
                f"must be a multiple of the model's {len(layers)} MTP layers",
            )
        return layers
    if method not in _OWN_MODEL:
        raise LayoutNotUnderstood(
            "--speculative-config", f"it is not known what drafting with {method!r} keeps"
        )
    if speculation.draft is None:
        raise LayoutNotUnderstood(
            "--speculative-config",
            f"drafting with {method!r} keeps what the draft model keeps, and its config.json is "
            "not known",
        )
    return speculation.draft.caches


def lookahead_tokens(speculation: Speculation | None) -> int:
    """Return the tokens behind the last one that need room because drafts are written there."""
    if speculation is None or speculation.method in _WITHOUT_LAYERS:
        return 0
    return speculation.tokens
