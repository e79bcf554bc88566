"""The benchmark reads a question and nothing else; what it does not know it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from ballonet.kv.settings import Version
from ballonet.kv.units import GIB
from benchmarks.sizing import answer
from benchmarks.sizing_budget import versions_of
from benchmarks.sizing_defaults import batch_defaults
from benchmarks.sizing_device import Unknown, device_of

BOOT: dict[str, Any] = {
    **{"id": "1.budget", "kind": "budget", "engine": "vllm", "version": "0.11.0"},
    **{"gpu": "NVIDIA L4 (24 GB)", "gpu_memory_utilization": 0.9, "weights_gib_rank": 15.0},
    **{"max_num_seqs": 128, "max_num_batched_tokens": 2048, "max_model_len": 8192},
    "geometry": {
        **{"model": "a/model", "model_type": "llama", "num_hidden_layers": 32},
        **{"num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096},
        "vocab_size": 128256,
    },
}


@pytest.mark.parametrize(
    ("text", "weights", "low", "high"),
    [
        ("NVIDIA_H100_80GB_HBM3", 10, 79.0, 79.4),
        ("Tesla T4 (16 GB)", 8, 14.5, 14.8),
        ("A100 (80GB class)", 10, 79.1, 79.3),
        ("A100", 60, 79.1, 79.3),
        ("RTX 4090", 15, 23.5, 23.7),
        ("RTX 4090 (24 GB, WSL2)", 15, 23.9, 24.0),
        ("24 GB NVIDIA (FlashAttention 2)", 8, 22.0, 23.8),
        ("RTX PRO 6000 Blackwell (95.01 GiB)", 8, 95.0, 95.02),
    ],
)
def test_a_device_is_found_however_it_is_spelled(
    text: str, weights: float, low: float, high: float
) -> None:
    memory = device_of({"gpu": text, "weights_gib_rank": weights}).memory
    assert low * GIB <= memory.low <= memory.high <= high * GIB


def test_a_build_on_the_way_to_a_release_may_be_like_either() -> None:
    assert versions_of({**BOOT, "version": "0.26.0"}) == ((0, 26, 0),)
    assert versions_of({**BOOT, "version": "0.26.1rc1.dev156+g0eec.d20260731"}) == (
        (0, 26, 1),
        (0, 27, 0),
    )


def test_a_boot_is_answered_from_what_the_question_says() -> None:
    kv_gib = answer(BOOT)["kv_gib"]
    assert 0 < kv_gib["low"] < kv_gib["mid"] < kv_gib["high"] < 0.9 * 23 - 15
    fewer = answer({**BOOT, "max_num_seqs": 16})["kv_gib"]
    assert fewer["mid"] > kv_gib["mid"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"version": None}, "no version"),
        ({"gpu": "Ascend NPU"}, "no device"),
        ({"gpu": "MI300X"}, "amd"),
        ({"gpu_memory_utilization": None}, "share of the device"),
        ({"version": "0.8.5"}, "No boots"),
        ({"weights_gib_rank": 30.0}, "leaves room"),
    ],
)
def test_what_is_not_known_is_refused_with_the_reason(change: dict[str, Any], why: str) -> None:
    assert why in answer({**BOOT, **change})["refused"]


def test_a_device_that_is_not_named_is_unknown() -> None:
    with pytest.raises(Unknown, match="no device"):
        device_of({"gpu": "Ascend NPU (A3)"})


@pytest.mark.parametrize(
    ("version", "gib", "name", "tokens", "sequences"),
    [
        ((0, 10, 2), 24, "L4-24GB", 2048, 256),
        ((0, 10, 2), 80, "H100-80GB", 8192, 1024),
        ((0, 31, 0), 80, "A100-80GB", 2048, 256),
        ((0, 27, 1), 120, "GB10-128GB", 2048, 256),
        ((0, 27, 1), 180, "B200-180GB", 8192, 1024),
        ((0, 28, 0), 180, "B200-180GB", 16384, 1024),
    ],
)
def test_a_large_device_takes_a_large_step(
    version: Version, gib: int, name: str, tokens: int, sequences: int
) -> None:
    found = batch_defaults(version, device_bytes=gib * GIB, device_name=name)
    assert (found.max_batched_tokens, found.max_num_seqs) == (tokens, sequences)
