"""Blocks and concurrency against vLLM's own KV planner (see data/README.md)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ballonet.kv.geometry import parse_config
from ballonet.kv.settings import CPU
from tests.layouts import layout

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
    version = tuple(map(int, line["engine_version"].split(".")))
    found = layout(
        parse_config(json.dumps(line["config"])),
        version=version,
        max_model_tokens=line["tokens"],
        block_tokens=line["block_tokens"],
        kv_cache_type="fp8" if line["fp8"] else "auto",
        tensor=line["tensor"],
        pipeline=line["pipeline"],
    )
    assert found.bytes_per_block == line["bytes_per_block"]
    assert found.blocks(line["tokens"]) == line["blocks_per_sequence"]
    for plan in line["plans"]:
        size = plan["kv_cache_bytes"]
        # None: vLLM refuses to start, because one sequence does not fit.
        assert found.holds_one(size, line["tokens"]) is (plan["blocks"] is not None)
        if plan["blocks"] is not None:
            assert found.blocks_in(size) == plan["blocks"]
            assert float(found.concurrency(size)) == pytest.approx(plan["max_concurrency"])


@pytest.mark.parametrize("line", lines("vllm_other_layouts.jsonl"), ids=case_id)
def test_models_of_other_layouts_keep_the_kinds_of_cache_that_vllm_makes(
    line: dict[str, Any],
) -> None:
    found = layout(
        parse_config(json.dumps(line["config"])), max_model_tokens=8192, block_tokens=None
    )
    kinds = {spec.kind for group in found.groups for spec in group.layers.values()}
    # What only the newer format of DeepSeek-V4 has is not in the list.
    assert {kind.value for kind in kinds} - {"circular_buffer"} == set(line["kinds"])


@pytest.mark.parametrize("line", lines("vllm_uniform_layouts.jsonl"), ids=case_id)
def test_uniform_layers_are_planned_as_by_vllm(line: dict[str, Any]) -> None:
    heads = {"num_attention_heads": line["kv_heads"], "num_key_value_heads": line["kv_heads"]}
    config = {**TINY, **heads, "num_hidden_layers": line["layers"], "head_dim": line["head_dim"]}
    found = layout(
        parse_config(json.dumps(config)),
        max_model_tokens=line["tokens"],
        block_tokens=line["block_tokens"],
        kv_cache_type={1: "fp8", 2: "bfloat16"}[line["element_bytes"]],
    )
    assert found.bytes_per_block == line["bytes_per_block"]
    assert found.blocks(line["tokens"]) == line["blocks_per_sequence"]
    assert found.blocks_in(line["kv_cache_bytes"]) == line["blocks"]


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
    found = layout(
        parse_config(json.dumps(config)),
        platform=CPU,
        max_model_tokens=tokens,
        block_tokens=block,
    )
    assert found.blocks_in(kv_bytes) == blocks
    assert found.concurrency(kv_bytes) == concurrency
