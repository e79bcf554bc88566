from __future__ import annotations

import re

import pytest

from ballonet.catalog import (
    accelerator,
    accelerator_names,
    model,
    model_names,
    similar_models,
    suggest,
)
from ballonet.catalog.flags import vllm_flag_ranges, vllm_sampled_versions, vllm_switches
from ballonet.kv.layout import cache_layout
from ballonet.kv.units import GIB


def test_there_are_as_many_devices_and_models_as_promised() -> None:
    assert len(accelerator_names()) >= 21  # 20 GPU types and CPU
    assert len(model_names()) >= 15


@pytest.mark.parametrize("name", accelerator_names())
def test_a_device_is_plausible_and_sourced(name: str) -> None:
    device = accelerator(name)
    assert device is not None
    assert device.name == name
    assert device.source
    assert device.confidence in {"log", "derived"}
    if device.device == "cpu":
        assert device.memory_bytes is None
        assert device.resource_name is None
        return
    assert device.memory_bytes is not None
    nominal = int(re.search(r"-(\d+)GB$", name)[1])  # type: ignore[index]
    # Programs see less than the name says, GB or GiB, but never less than 90 %.
    assert nominal * 10**9 * 85 // 100 < device.memory_bytes.low
    assert device.memory_bytes.low <= device.memory_bytes.high < nominal * GIB
    assert device.resource_name in {"nvidia.com/gpu", "amd.com/gpu"}
    assert device.max_per_node is not None
    assert device.max_per_node >= 1


def test_names_are_found_without_regard_to_case_and_by_what_kubernetes_calls_them() -> None:
    assert accelerator("h100-80gb") is accelerator("H100-80GB")
    assert accelerator("NVIDIA-H100-80GB-HBM3") is accelerator("H100-80GB")
    assert accelerator("nvidia a100-sxm4-40gb") is accelerator("A100-40GB")
    assert accelerator("cpu") is accelerator("CPU")


def test_a_name_of_two_devices_is_no_alias() -> None:
    assert accelerator("A100") is None
    assert set(suggest("A100", accelerator_names())) >= {"A100-40GB", "A100-80GB"}


@pytest.mark.parametrize("name", model_names())
def test_a_model_is_complete_and_its_weights_follow_from_its_shape(name: str) -> None:
    found = model(name)
    assert found is not None
    assert found.geometry.weights_bytes == found.weights_bytes
    assert found.geometry.intermediate is not None
    assert found.source
    assert found.weights_source
    assert cache_layout(found.geometry, block_tokens=16, kv_element_bytes=2).bytes_per_block > 0


def test_models_are_found_by_alias_and_without_regard_to_case() -> None:
    assert model("qwen/qwen3-32b") == model("Qwen/Qwen3-32B")
    instruct = model("meta-llama/Llama-3.1-70B-Instruct")
    assert instruct is not None
    assert instruct.name == "meta-llama/Llama-3.3-70B-Instruct"


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("H100-80", "H100-80GB"), ("L40S-48", "L40S-48GB"), ("T4", "T4-16GB")],
)
def test_suggestions_are_near(typed: str, meant: str) -> None:
    assert suggest(typed, accelerator_names())[0] == meant


def test_there_is_no_suggestion_for_what_is_like_nothing() -> None:
    assert suggest("zzzzzz", accelerator_names()) == []
    assert suggest("", accelerator_names()) == []


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("Qwen3-32B", ["Qwen/Qwen3-32B"]),
        ("qwen/qwen3-8", ["Qwen/Qwen3-8B"]),
        ("meta-lama/Llama-3.1-8B-Instruct", ["meta-llama/Llama-3.1-8B-Instruct"]),
        ("llama-3.3-70b", ["meta-llama/Llama-3.3-70B-Instruct"]),
        ("google/gemma-3-27b-it", []),
        ("mistralai/Mistral-7B-v0.3", []),
        ("Qwen/Qwen3-32B-FP8", []),
        ("Qwen/Qwen2.5-3B-Instruct", []),
        ("deepseek-ai/DeepSeek-R1", []),
        ("", []),
    ],
)
def test_only_another_spelling_of_a_model_is_suggested(typed: str, meant: list[str]) -> None:
    assert similar_models(typed)[: len(meant) or None] == meant


def test_flag_ranges_lie_between_sampled_versions() -> None:
    sampled = vllm_sampled_versions()
    for flag, ranges in vllm_flag_ranges().items():
        assert re.fullmatch(r"--[a-z0-9-]+", flag)
        for first, last in ranges:
            assert sampled.index(first) <= sampled.index(last)
    assert vllm_switches() <= vllm_flag_ranges().keys()
