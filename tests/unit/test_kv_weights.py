from __future__ import annotations

from typing import Any

import pytest

from ballonet.catalog import Catalog
from ballonet.kv.geometry import ModelGeometry
from ballonet.kv.units import GIB, Interval
from ballonet.kv.weights import rank_weights
from tests.models import llama


def named(name: str) -> ModelGeometry:
    entry = Catalog.builtin().model(name)
    assert entry is not None
    return entry.geometry


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        # As their authors publish them, without draft layers and encoders.
        ("meta-llama/Llama-3.1-8B-Instruct", "8.030"),
        ("Qwen/Qwen2.5-7B-Instruct", "7.616"),
        ("Qwen/Qwen3-235B-A22B", "235.09"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "46.703"),
        ("deepseek-ai/DeepSeek-V3", "671.03"),
        ("moonshotai/Kimi-K2-Instruct", "1026.4"),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", "79.67"),
        ("openai/gpt-oss-120b", "116.8"),
        ("zai-org/GLM-4.5-Air", "106.85"),
        ("google/gemma-2-9b", "9.241"),
        ("CohereForAI/c4ai-command-r-v01", "34.98"),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "31.6"),
        ("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8", "121"),
        ("nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16", "549"),
        ("nvidia/Llama-3_3-Nemotron-Super-49B-v1", "49.9"),
        ("google/gemma-4-26B-A4B", "25.2"),
        ("google/gemma-4-31B-it", "30.7"),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", "107.8"),
        ("meta-llama/Llama-4-Maverick-17B-128E-Instruct", "400.7"),
        ("XiaomiMiMo/MiMo-V2-Flash", "309"),
        ("stepfun-ai/Step-3.7-Flash", "196"),
        ("THUDM/chatglm3-6b", "6.2"),
        ("baichuan-inc/Baichuan2-7B-Chat", "7.5"),
    ],
)
def test_parameters_are_those_that_were_published(name: str, billions: str) -> None:
    parameters = named(name).parameters
    assert parameters is not None
    digits = len(billions.partition(".")[2])
    assert f"{parameters / 1e9:.{digits}f}" == billions


@pytest.mark.parametrize(
    "name",
    [
        "nvidia/Llama-3.1-70B-Instruct-FP8",
        "nvidia/GLM-5.2-NVFP4",
        "openai/gpt-oss-120b",
        "openai/gpt-oss-20b",
        "Qwen/Qwen3-235B-A22B-FP8",
        "Qwen/Qwen3-8B-FP8",
        "meta-llama/Meta-Llama-3.1-405B-Instruct-FP8",
    ],
)
def test_logged_weights_of_quantized_checkpoints_lie_inside(name: str) -> None:
    entry = Catalog.builtin().model(name)
    assert entry is not None and entry.weights_bytes is not None
    stored = entry.geometry.stored_weights
    assert stored is not None
    assert stored.low <= entry.weights_bytes <= stored.high


@pytest.mark.parametrize(
    ("quantization", "percent_of_16_bits"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, (35, 55)),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, (56, 75)),
        ({"quant_method": "fp8"}, (56, 75)),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 8, "group_size": -1}}},
            },
            (56, 75),
        ),
        ({"quantization": {"quant_algo": "NVFP4"}, "quant_method": "modelopt"}, (37, 56)),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 128}}},
            },
            (35, 55),
        ),
    ],
)
def test_a_scheme_says_what_a_weight_takes(
    quantization: dict[str, Any], percent_of_16_bits: tuple[int, int]
) -> None:
    plain, stored = llama().stored_weights, llama(quantization_config=quantization).stored_weights
    assert plain is not None and stored is not None
    least, most = percent_of_16_bits
    assert least * plain.low <= 100 * stored.low <= 100 * stored.high <= most * plain.high


@pytest.mark.parametrize(
    "changes",
    [
        {"quantization_config": {"quant_method": "of tomorrow"}},
        {"quantization_config": {"quant_method": "awq", "bits": "four"}},
        {"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {}}},
        {"intermediate_size": None},
    ],
)
def test_what_is_not_known_has_no_weights_but_a_layout(changes: dict[str, Any]) -> None:
    geometry = llama(**changes)
    assert geometry.stored_weights is None
    assert geometry.layers == 32


@pytest.mark.parametrize(
    "encoder",
    [
        {"hidden_size": 1152, "num_hidden_layers": 27, "intermediate_size": 4304},
        {"depth": 27, "hidden_size": 1152, "intermediate_size": 4304},
        {"vt_hidden_size": 1152, "vt_num_hidden_layers": 27, "vt_intermediate_size": 4304},
    ],
)
def test_weights_of_an_encoder_may_come_on_top(encoder: dict[str, Any]) -> None:
    text, both = llama().stored_weights, llama(vision_config=encoder).stored_weights
    assert text is not None and both is not None
    assert both.low == text.low
    layers = 27 * 2 * (4 * 1152**2 + 3 * 1152 * 4304)
    assert both.high - text.high == 2 * layers


@pytest.mark.parametrize("encoder", [{"model_type": "of_tomorrow"}, {"depth": "27"}, "a name"])
def test_weights_beside_an_encoder_of_unknown_size_are_not_known(encoder: object) -> None:
    assert llama(vision_config=encoder).stored_weights is None


def test_ranks_share_what_can_be_divided() -> None:
    whole = Interval.point(16 * GIB)
    one = rank_weights(llama(), whole, tensor=1, pipeline=1)
    two = rank_weights(llama(), whole, tensor=2, pipeline=1)
    assert one.low <= 16 * GIB <= one.high
    assert two.low <= 8 * GIB <= two.high
    # Sixteen ranks, eight heads: projections of keys and values are copied.
    sixteen = rank_weights(llama(), whole, tensor=16, pipeline=1)
    assert sixteen.high > one.high // 16


def test_latents_are_projected_by_every_rank() -> None:
    deepseek = named("deepseek-ai/DeepSeek-V3")
    whole = Interval.point(640 * GIB)
    eight = rank_weights(deepseek, whole, tensor=8, pipeline=1)
    assert eight.low > 80 * GIB * 99 // 100


def test_the_fullest_stage_has_most_layers_and_perhaps_an_embedding() -> None:
    whole = Interval.point(16 * GIB)
    stage = rank_weights(llama(), whole, tensor=1, pipeline=3)
    assert stage.low < 16 * GIB * 11 // 32 < stage.high
