"""What drafting tokens ahead adds to a model: layers with caches, and tokens that need room.

Source: config/speculative.py and ``num_lookahead_tokens`` in config/vllm.py (0.32.0).
"""

from __future__ import annotations

from typing import Final

from ballonet.kv.config import LayoutNotUnderstood
from ballonet.kv.geometry import ModelGeometry
from ballonet.kv.layers import Layer
from ballonet.kv.settings import EngineRefuses, Speculation, Version

# Drafts come out of the text so far, or out of heads that keep nothing.
_WITHOUT_LAYERS: Final = frozenset(("ngram", "ngram_gpu", "suffix", "medusa", "mlp_speculator"))
# Drafts come out of another model with layers of its own.
_OWN_MODEL: Final = frozenset(("draft_model", "eagle", "eagle3"))
_FIELD: Final = "spec.engine.args"
# Before, "Draft model speculative decoding is not supported yet" (engine/arg_utils.py, 0.14.1;
# 0.16.0 takes it).
_DRAFT_MODELS_SINCE: Final[Version] = (0, 15, 0)


def drafted_layers(
    geometry: ModelGeometry, speculation: Speculation, version: Version
) -> tuple[Layer, ...]:
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
                _FIELD,
                method,
                "the model brings no layers that draft tokens (MTP): use another method",
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
    if method == "draft_model":
        _check_draft_model(geometry, speculation.draft, version)
    return speculation.draft.caches


def _check_draft_model(geometry: ModelGeometry, draft: ModelGeometry, version: Version) -> None:
    """Check that whole models can draft, and that this one speaks the model's language.

    Raises:
        EngineRefuses: they cannot, or it does not (verify_equal_vocab_size_if_draft_model).
    """
    if version < _DRAFT_MODELS_SINCE:
        raise EngineRefuses(
            _FIELD, "draft_model", "needs vLLM 0.15 or later: use another method, or that"
        )
    if draft.vocab != geometry.vocab:
        raise EngineRefuses(
            _FIELD,
            "draft_model",
            f"the model that drafts knows {draft.vocab:,} words and the model {geometry.vocab:,}, "
            "and the engine would not start: use one of as many",
        )


def lookahead_tokens(speculation: Speculation | None) -> int:
    """Return the tokens behind the last one that need room because drafts are written there."""
    if speculation is None or speculation.method in _WITHOUT_LAYERS:
        return 0
    return speculation.tokens
