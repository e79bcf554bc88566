from __future__ import annotations

from fractions import Fraction

import pytest

from ballonet.catalog import Catalog
from ballonet.engines import sglang
from ballonet.kv.config import LayoutNotUnderstood
from ballonet.kv.units import GIB, Interval
from tests.models import llama


def gib(value: str) -> int:
    return int(Fraction(value) * GIB)


# Logs of two RTX 3090 (24 GB) with --tp 2: fraction, weights GB, all pools GB as printed.
@pytest.mark.parametrize(
    ("fraction", "weights", "pools"),
    [
        ("0.85", "9.34", "10.11"),
        ("0.85", "11.07", "8.33"),
        ("0.92", "11.07", "9.93"),
    ],
)
def test_logged_boots_lie_inside_and_near_the_usual_figure(
    fraction: str, weights: str, pools: str
) -> None:
    device = Catalog.builtin().accelerator("RTX-3090-24GB")
    assert device is not None and device.memory_bytes is not None
    plan = sglang.rank_memory(
        device_bytes=device.memory_bytes,
        weights=Interval.point(gib(weights)),
        memory_fraction=Fraction(fraction),
        tensor=2,
    )
    assert plan.kv_cache_bytes is not None and plan.usual_bytes is not None
    assert plan.kv_cache_bytes.low <= gib(pools) <= plan.kv_cache_bytes.high
    assert abs(plan.usual_bytes - gib(pools)) < gib("0.1")


def test_the_default_share_keeps_room_for_a_chunk_the_ranks_and_the_graphs() -> None:
    least, most = sglang.default_fraction(80 * GIB, tensor=2)
    assert (1 - most) * 80 * 1024 == 512 + 12288 + 2 * 128 + 2 * 256
    assert (1 - least) * 80 * 1024 == 512 + 12288 + 2 * 128 + 2 * 512 + 8 * 60


def test_other_vendors_are_unknown_by_name() -> None:
    plan = sglang.rank_memory(
        device_bytes=Interval.point(64 * GIB), weights=Interval.point(GIB), vendor="amd"
    )
    assert plan.kv_cache_bytes is None
    assert plan.reason is not None and "amd" in plan.reason


def test_a_token_takes_its_keys_and_values_in_every_layer() -> None:
    pools = sglang.token_pools(llama())
    assert pools.full_bytes == 2 * 8 * 128 * 2 * 32
    assert sglang.token_pools(llama(), tensor=16).full_bytes == 2 * 1 * 128 * 2 * 32
    assert pools.tokens(pools.full_bytes * 8192) == 2 * pools.held(4096)
    assert pools.tokens(pools.full_bytes * 8192 - 1) == 8191


def test_windows_have_a_pool_of_four_fifths_of_the_tokens() -> None:
    gemma = llama(
        model_type="gemma3_text", sliding_window=1024, sliding_window_pattern=2, head_dim=128
    )
    pools = sglang.token_pools(gemma)
    assert pools.full_bytes == pools.window_bytes
    assert pools.tokens(pools.full_bytes * 1800) == 1000


def test_models_with_states_are_not_planned() -> None:
    qwen = llama(
        model_type="qwen3_next",
        full_attention_interval=4,
        linear_num_key_heads=16,
        linear_num_value_heads=32,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        linear_conv_kernel_dim=4,
    )
    with pytest.raises(LayoutNotUnderstood, match="pool of its own"):
        sglang.token_pools(qwen)


def test_a_device_smaller_than_the_reserve_has_nothing_for_the_pools() -> None:
    plan = sglang.rank_memory(
        device_bytes=Interval(gib("4.7"), gib("4.8")), weights=Interval.point(GIB), latent=True
    )
    assert plan.kv_cache_bytes is not None and plan.kv_cache_bytes.high < 0
