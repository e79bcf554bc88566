"""Answers to questions of kind "layout": the engine's plan from bare layer specs.

Contract: the docstring of the scorer. The planner's own code answers; this module only reads the
question.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any

from ballonet.engines.vllm_versions import parse_version
from ballonet.kv.layout import CacheLayout, RankCache, specs_layout
from ballonet.kv.rules import SequenceLimits, layout_rules
from ballonet.kv.settings import EngineRefuses
from ballonet.kv.specs import CacheKind, CacheSpec
from ballonet.kv.units import largest


def answer_layout(question: dict[str, Any]) -> dict[str, Any]:
    """Return blocks and concurrency, or that the engine would not start."""
    settings = question["settings"]
    specs = layer_specs(question["layers"])
    cuts = settings["worker_layer_cuts"] or [0, len(specs)]
    (rules,) = layout_rules(parse_version(question["engine_version"])[:3])
    try:
        layout = specs_layout(
            [specs[start:end] for start, end in pairwise(cuts)],
            rules,
            SequenceLimits(
                settings["max_in_flight_tokens"],
                settings["dcp"],
                settings["max_num_encoder_input_tokens"] or 0,
            ),
            max_model_tokens=settings["max_model_len"],
            hybrid_manager=not settings["disable_hybrid"],
            packs_blocks=settings["supported_layouts"][0].startswith("B"),
            strided_pages=settings.get("strided_pages", False),
            prefix_caching=settings.get("prefix_caching", False),
        )
    except EngineRefuses:
        return {"refused": True}
    return _plan(layout, settings)


def _plan(layout: CacheLayout, settings: dict[str, Any]) -> dict[str, Any]:
    memory = settings["kv_bytes_per_worker"]
    if settings["override"] is not None:
        memory = [settings["override"] * rank.bytes_per_block for rank in layout.ranks]
    ranks = list(zip(layout.ranks, memory, strict=True))
    tokens = settings["max_model_len"]
    if settings["auto_fit"]:
        tokens = largest(1, tokens, lambda length: _holds_one(layout, ranks, length))
    if tokens is None or not _holds_one(layout, ranks, tokens):
        return {"refused": True}
    blocks = min(kv_bytes // rank.bytes_per_block for rank, kv_bytes in ranks)
    return {
        "num_blocks": blocks,
        "blocks_per_request": layout.blocks(tokens),
        "max_concurrency": blocks / layout.printed_blocks(tokens),
    }


def _holds_one(layout: CacheLayout, ranks: Sequence[tuple[RankCache, int]], tokens: int) -> bool:
    return all(layout.rank_holds_one(rank, kv_bytes, tokens) for rank, kv_bytes in ranks)


def layer_specs(layers: dict[str, Any]) -> list[CacheSpec]:
    """Return one spec for each cache, from distinct specs and runs of their indices."""
    specs = [_spec(fields) for fields in layers["specs"]]
    return [specs[index] for index, count in layers["order_rle"] for _ in range(count)]


def _spec(fields: dict[str, Any]) -> CacheSpec:
    kind = CacheKind(fields["kind"])
    alignment = str(fields.get("block_stride_alignment", 1))
    multiple = re.fullmatch(r"MultipleOf\((\d+)\)", alignment)
    names = ("kv_quant_mode", "cache_dtype_str", "cache_role", "max_tp_shards", "mamba_type")
    return CacheSpec(
        kind=kind,
        block_tokens=fields["block_size"],
        kv_heads=fields.get("num_kv_heads", 1),
        head_dim=fields.get("head_size", 0),
        value_dim=fields.get("head_size_v", 0),
        element=fields.get("dtype", "bfloat16"),
        cell_bytes=fields.get("state_content_bytes"),
        tokens_per_cell=Fraction(fields.get("tokens_per_state", 1)),
        window_tokens=fields.get("sliding_window"),
        chunk_tokens=fields.get("attention_chunk_size"),
        padded_page_bytes=None if fields.get("alignment") else fields.get("page_size_padded"),
        page_alignment_bytes=fields.get("alignment", 1),
        stride_alignment_bytes=1 if multiple else int(alignment),
        kernel_block_tokens=int(multiple[1]) if multiple else None,
        dcp_sharded=fields.get("dcp_sharded", True),
        variant=" ".join(str(fields.get(name)) for name in names),
        state_shapes=tuple(map(tuple, fields.get("state_shapes", ()))),
        state_elements=tuple(fields.get("state_dtypes", ())),
        state_mode=fields.get("mamba_cache_mode", "none"),
        speculative_blocks=fields.get("num_speculative_blocks", 0),
        checkpoint_blocks=fields.get("num_prefill_checkpoint_blocks", 0),
    )
