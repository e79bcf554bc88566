"""Blocks and concurrency against vLLM's own KV planner (see data/README.md)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ballonet.kv.geometry import parse_config
from ballonet.kv.settings import CPU, CUDA, cuda_platform
from benchmarks.sizing_plan import EMULATED_GPU, answer_plan
from tests.layouts import layout

DATA = Path(__file__).parent / "data"


def lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / name).read_text().splitlines()]


def case_id(line: dict[str, Any]) -> str:
    return f"{line['case']}-{line.get('model', '')}"


def test_samples_are_as_large_as_documented() -> None:
    assert len(lines("vllm_plans.jsonl")) == 147
    assert len(lines("vllm_other_layouts.jsonl")) == 49
    assert len(lines("vllm_other_plans.jsonl")) == 171
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


CONFIGS = {line["model"]: line["config"] for line in lines("vllm_other_layouts.jsonl")}


def variant_id(line: dict[str, Any]) -> str:
    return f"{line['case']}-{line['model']}-{line['profile']}-{line['variant']}"


@pytest.mark.parametrize("line", lines("vllm_other_plans.jsonl"), ids=variant_id)
def test_models_of_other_layouts_are_planned_as_by_vllm(line: dict[str, Any]) -> None:
    answer = answer_plan({**line, "config": CONFIGS[line["model"]]})
    for mine, real in zip(answer["plans"], line["plans"], strict=True):
        if real is None:
            assert mine == {"refused": True}
        else:
            blocks, per_request, concurrency = real
            assert (mine["num_blocks"], mine["blocks_per_request"]) == (blocks, per_request)
            assert mine["max_concurrency"] == pytest.approx(concurrency, rel=1e-5)


def test_the_product_plans_for_real_gpus_where_the_emulated_one_has_artefacts() -> None:
    """Only benchmarks/sizing_plan.py knows the emulated one."""
    gemma = parse_config(json.dumps(CONFIGS["gemma_2_9b"]))
    stages = {"max_model_tokens": 8192, "pipeline": 2}
    # The older runner schedules one batch a stage; the newer prepares one more.
    emulated = layout(gemma, platform=EMULATED_GPU, **stages)
    assert emulated.limits.in_flight_tokens == 2 * 8192
    assert layout(gemma, **stages).limits.in_flight_tokens == 3 * 8192
    # FlashMLA's blocks of 64 stand for the kernels of every generation.
    kimi = parse_config(json.dumps(CONFIGS["moonshotai/Kimi-K2-Instruct"]))
    latent = {"max_model_tokens": 8192, "block_tokens": None}
    assert layout(kimi, platform=EMULATED_GPU, **latent).block_tokens == 64
    assert layout(kimi, platform=cuda_platform(10), **latent).block_tokens == 32
    # 8 bits of sparse latents are a format of their own there, and plain numbers on Blackwell.
    sparse = parse_config(json.dumps(CONFIGS["deepseek-ai/DeepSeek-V3.2"]))
    eight_bits = {**latent, "kv_cache_type": "fp8"}
    index = 61 * 132
    for platform, cell in ((EMULATED_GPU, 656), (CUDA, 656), (cuda_platform(10), 576)):
        found = layout(sparse, platform=platform, **eight_bits)
        assert found.bytes_per_block == found.block_tokens * (61 * cell + index)


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
