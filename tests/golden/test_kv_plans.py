"""Blocks and concurrency against vLLM's own KV planner (see data/README.md)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ballonet.api.v1alpha1 import KvCacheType
from ballonet.kv.geometry import LayoutNotUnderstood, parse_config
from ballonet.kv.layout import CacheGroup, CacheLayout, LayerSpec, cache_layout, element_bytes

DATA = Path(__file__).parent / "data"


def lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / name).read_text().splitlines()]


def case_id(line: dict[str, Any]) -> str:
    return f"{line['case']}-{line.get('model', '')}"


def test_samples_are_as_large_as_documented() -> None:
    assert len(lines("vllm_plans.jsonl")) == 147
    assert len(lines("vllm_other_layouts.jsonl")) == 49
    assert len(lines("vllm_uniform_layouts.jsonl")) == 28


@pytest.mark.parametrize("line", lines("vllm_plans.jsonl"), ids=case_id)
def test_full_attention_models_are_planned_as_by_vllm(line: dict[str, Any]) -> None:
    geometry = parse_config(json.dumps(line["config"]))
    kind = KvCacheType.FP8 if line["fp8"] else KvCacheType.AUTO
    layout = cache_layout(
        geometry,
        block_tokens=line["block_tokens"],
        kv_element_bytes=element_bytes(geometry, kind),
        tensor=line["tensor"],
        pipeline=line["pipeline"],
    )
    assert layout.bytes_per_block == line["bytes_per_block"]
    assert layout.blocks(line["tokens"]) == line["blocks_per_sequence"]
    for plan in line["plans"]:
        blocks = layout.blocks_in(plan["kv_cache_bytes"])
        if plan["blocks"] is None:  # vLLM refuses to start: one sequence does not fit
            usable = blocks if line["engine_version"] == "0.28.0" else blocks - 1
            assert layout.blocks(line["tokens"]) > usable
        else:
            assert blocks == plan["blocks"]
            concurrency = blocks / layout.blocks(line["tokens"])
            assert concurrency == pytest.approx(plan["max_concurrency"], rel=1e-5)


@pytest.mark.parametrize("line", lines("vllm_other_layouts.jsonl"), ids=case_id)
def test_models_of_other_layouts_are_refused_by_name(line: dict[str, Any]) -> None:
    with pytest.raises(LayoutNotUnderstood) as caught:
        parse_config(json.dumps(line["config"]))
    assert caught.value.marker in str(caught.value)
    assert "let the engine report its blocks" in caught.value.message


@pytest.mark.parametrize("line", lines("vllm_uniform_layouts.jsonl"), ids=case_id)
def test_uniform_layers_are_planned_as_by_vllm(line: dict[str, Any]) -> None:
    spec = LayerSpec(line["kv_heads"], line["head_dim"], line["element_bytes"])
    group = CacheGroup(spec, line["layers"], line["block_tokens"])
    layout = CacheLayout((group,), line["block_tokens"], group.bytes_per_block)
    assert layout.bytes_per_block == line["bytes_per_block"]
    assert layout.blocks(line["tokens"]) == line["blocks_per_sequence"]
    assert layout.blocks_in(line["kv_cache_bytes"]) == line["blocks"]


# Figures that running servers and vLLM's planner gave for shapes written by hand.
TINY = {
    **{"model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "vocab_size": 4096},
    **{"num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64},
    **{"torch_dtype": "bfloat16", "tie_word_embeddings": True},
}
LLAMA_8B = {
    **{"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336},
    **{"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8},
    **{"vocab_size": 128256, "torch_dtype": "bfloat16"},
}
QWEN3_32B = {
    **{"model_type": "qwen3", "hidden_size": 5120, "intermediate_size": 25600, "head_dim": 128},
    **{"num_hidden_layers": 64, "num_attention_heads": 64, "num_key_value_heads": 8},
    **{"vocab_size": 151936, "torch_dtype": "bfloat16"},
}
MIB, GIB = 1024**2, 1024**3


@pytest.mark.parametrize(
    ("config", "kv_bytes", "tokens", "block", "blocks", "concurrency"),
    [
        (TINY, 8 * MIB, 1024, 32, 128, 4.0),
        (TINY, 64 * MIB, 1024, 32, 1024, 32.0),
        (LLAMA_8B, 40 * GIB, 32768, 32, 10240, 10.0),
        (LLAMA_8B, 40 * GIB, 131072, 128, 2560, 2.5),
        (LLAMA_8B, 40 * GIB, 8192, 16, 20480, 40.0),
        (QWEN3_32B, 60 * GIB, 32768, 32, 7680, 7.5),
    ],
)
def test_shapes_seen_on_real_engines(
    config: dict[str, Any],
    *,
    kv_bytes: int,
    tokens: int,
    block: int,
    blocks: int,
    concurrency: float,
) -> None:
    geometry = parse_config(json.dumps(config))
    layout = cache_layout(geometry, block_tokens=block, kv_element_bytes=2)
    assert layout.blocks_in(kv_bytes) == blocks
    assert blocks / layout.blocks(tokens) == concurrency
