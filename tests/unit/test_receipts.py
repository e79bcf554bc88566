"""What a plan makes of receipts, and how they are kept."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from ballonet.api.status import Source
from ballonet.engines.vllm_written import Limits, given_kv_bytes, without_limits, written_limits
from ballonet.kv.units import GIB, Interval
from ballonet.planning.plan import Plan
from ballonet.planning.planner import plan_pool
from ballonet.planning.receipts import (
    MAX_BYTES,
    NO_RECEIPTS,
    Receipt,
    Receipts,
    basis,
)
from ballonet.reconcile.starts import device_of
from tests.boots import LLAMA, PREDICTED, boot, kept, limits_of, usual_bytes
from tests.pools import spec


def kv(plan: Plan) -> Interval:
    assert plan.memory is not None and plan.memory.kv_cache_bytes is not None
    return plan.memory.kv_cache_bytes


def planned(receipts: Receipts, **changes: Any) -> Plan:
    return plan_pool("pool", spec(LLAMA, **changes), receipts=receipts)


# --- what a plan begins from ----------------------------------------------------------------------


def test_one_boot_is_taken_as_three_tenths_of_a_gib_or_one_percent_either_way() -> None:
    plan = planned(kept(boot()))
    margin = max(3 * GIB // 10, -(-usual_bytes() // 100))
    assert limits_of(plan) == limits_of(PREDICTED)
    assert kv(plan) == Interval(usual_bytes() - margin, usual_bytes() + margin)
    assert plan.source is Source.RECEIPT
    assert "receipt: 1 boot of this configuration" in plan.budget_computed.message


def test_more_boots_are_trusted_more() -> None:
    low, high = usual_bytes() - GIB // 10, usual_bytes() + GIB // 10
    plan = planned(kept(boot(0, low), boot(1, high), boot(2, high), boot(3, low)))
    margin = max(3 * GIB // 10, -(-low // 100)) // 4
    assert kv(plan) == Interval(low - margin, high + margin)


def test_boots_on_devices_that_a_plan_cannot_tell_apart_are_one_range() -> None:
    other = boot(1, usual_bytes() - GIB // 2, device="NVIDIA-H100-PCIe 81559")
    plan = planned(kept(boot(), boot(2), boot(3), other))
    assert kv(plan).low < usual_bytes() - GIB // 2
    assert kv(plan).high > usual_bytes()


@pytest.mark.parametrize("ceiling", [4096, 16_384, 65_536])
def test_between_other_limits_only_what_they_change_is_predicted(ceiling: int) -> None:
    changed = {"sequence": {"maxTokens": ceiling}}
    plan, predicted = planned(kept(boot()), **changed), planned(NO_RECEIPTS, **changed)
    assert plan.source is Source.RECEIPT
    assert kv(predicted).low <= kv(plan).low <= kv(plan).high <= kv(predicted).high
    assert kv(plan).high - kv(plan).low < kv(predicted).high - kv(predicted).low
    assert "with 32,768 tokens a sequence" in plan.budget_computed.message
    assert "corrected for these limits" in plan.budget_computed.message


@pytest.mark.parametrize("size", [usual_bytes() - 8 * GIB, usual_bytes() + 8 * GIB])
def test_what_was_not_thought_possible_is_not_used(size: int) -> None:
    assert replace(planned(kept(boot(size=size))), receipts=()) == PREDICTED


@pytest.mark.parametrize(
    "changes",
    [
        {"engine": {"image": "registry.example/vllm:other"}},
        {"engine": {"env": [{"name": "NCCL_DEBUG", "value": "INFO"}]}},
        {"engine": {"args": ["--enforce-eager"]}},
        {"engine": {"version": "0.31.0"}},
        {"model": {"revision": "main"}},
        {"model": {"claim": {"name": "models"}}},
        {"accelerator": {"type": "H200-141GB"}},
        {"accelerator": {"memoryPercent": 91}},
        {"parallelism": {"tensor": 2}},
        {"sequence": {"kvCacheType": "FP8"}},
    ],
)
def test_another_configuration_begins_from_nothing(changes: dict[str, Any]) -> None:
    receipts = kept(boot())
    assert planned(receipts, **changes) == plan_pool("pool", spec(LLAMA, **changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"replicas": 3},
        {"topologies": [{"name": "t", "roles": [{"name": "planner"}]}]},
        {"budget": {"safetyPercent": 80}},
        {"rollout": {"drainSeconds": 1}},
        {"accelerator": {"nodeSelector": {"pool": "gpu"}}},
    ],
)
def test_what_the_engine_is_not_told_is_no_other_configuration(changes: dict[str, Any]) -> None:
    assert planned(kept(boot()), **changes).source is Source.RECEIPT


def test_given_memory_goes_before_receipts() -> None:
    given = {"budget": {"kvCacheMemoryPerRank": "40Gi", "pin": "Receipt"}}
    plan = planned(kept(boot()), **given)
    assert plan.source is Source.GIVEN
    assert kv(plan) == Interval.point(40 * GIB)


# --- pin ------------------------------------------------------------------------------------------

PIN = {"budget": {"pin": "Receipt"}}


def test_pinned_memory_is_the_lowest_less_the_margin_of_one_boot() -> None:
    low = usual_bytes() - GIB // 10
    plan = planned(kept(boot(0), boot(1, low), boot(2)), **PIN)
    lowest = low - max(3 * GIB // 10, -(-low // 100))
    assert plan.gates is not None
    assert plan.gates.kv_cache_memory_bytes == lowest
    assert kv(plan) == Interval.point(lowest)
    assert plan.source is Source.RECEIPT
    assert not plan.engine_sizes_itself
    assert "the lowest of 3 boots of this configuration" in plan.budget_computed.message


def test_a_pinned_engine_is_never_told_more_than_boots_with_its_work_had() -> None:
    small = Limits(max_model_tokens=4096, max_num_seqs=1, max_batched_tokens=2048)
    plan = planned(kept(boot(limits=small)), **PIN)
    assert plan.gates is not None and plan.gates.kv_cache_memory_bytes is None
    assert plan.source is Source.RECEIPT


def test_what_was_not_thought_possible_pins_nothing() -> None:
    plan = planned(kept(boot(size=usual_bytes() + 8 * GIB)), **PIN)
    assert plan.gates is not None and plan.gates.kv_cache_memory_bytes is None


# --- arguments ------------------------------------------------------------------------------------


def test_limits_are_read_back_from_the_arguments_and_are_all_that_is_left_out() -> None:
    plan = planned(NO_RECEIPTS, budget={"kvCacheMemoryPerRank": "40Gi"})
    assert plan.gates is not None
    assert written_limits(plan.engine_args) == Limits(
        plan.gates.max_model_tokens, plan.gates.max_num_seqs, plan.gates.max_batched_tokens
    )
    assert given_kv_bytes(plan.engine_args) == 40 * GIB
    assert given_kv_bytes(PREDICTED.engine_args) is None
    other = planned(NO_RECEIPTS, sequence={"maxTokens": 1024}, admission={"queue": "Bounded"})
    assert without_limits(other.engine_args) == without_limits(plan.engine_args)


@pytest.mark.parametrize(
    ("labels", "resource", "device"),
    [
        (
            {"nvidia.com/gpu.product": "Tesla-T4", "nvidia.com/gpu.memory": "15360"},
            "nvidia.com/gpu",
            "Tesla-T4 15360",
        ),
        # Two sizes of slices on one node are resources with labels of their own.
        (
            {
                "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB",
                "nvidia.com/mig-1g.5gb.product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb",
                "nvidia.com/mig-1g.5gb.memory": "4864",
            },
            "nvidia.com/mig-1g.5gb",
            "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb 4864",
        ),
        (
            {"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM", "amd.com/gpu.vram": "192G"},
            "amd.com/gpu",
            "AMD_Instinct_MI300X_OAM 192G",
        ),
        ({"nvidia.com/gpu.memory": "15360"}, "nvidia.com/gpu", None),
        ({"nvidia.com/gpu.product": "Tesla-T4"}, None, None),
    ],
)
def test_labels_name_product_memory_and_slice(
    labels: dict[str, str], resource: str | None, device: str | None
) -> None:
    assert device_of(labels, resource) == device


# --- how they are kept ----------------------------------------------------------------------------


def test_receipts_come_back_from_text_as_they_were() -> None:
    receipts = kept(boot(0), boot(1), boot(2, device="other"))
    assert Receipts.read(receipts.text()) == receipts


@pytest.mark.parametrize(
    "line",
    [
        "",
        "no json",
        "{}",
        "[1]",
        "null",
        json.dumps({**json.loads(Receipt.of(boot()).line()), "boots": -1}),
        json.dumps({**json.loads(Receipt.of(boot()).line()), "boots": 2**31}),
        json.dumps({**json.loads(Receipt.of(boot()).line()), "configuration": "x"}),
        json.dumps({**json.loads(Receipt.of(boot()).line()), "lastBoot": "yesterday"}),
        json.dumps({**json.loads(Receipt.of(boot()).line()), "kvCacheLowBytes": 2**53}),
        json.dumps({**json.loads(Receipt.of(boot()).line()), "maxNumSeqs": 0}),
        json.dumps({**json.loads(Receipt.of(boot()).line()), "device": "a\u202eb"}),
    ],
)
def test_a_line_that_is_no_receipt_takes_no_other_along(line: str) -> None:
    receipts = kept(boot())
    assert Receipts.read(f"{line}\n{receipts.text()}") == receipts


def test_boots_are_counted_no_further_than_status_takes_them() -> None:
    line = json.dumps({**json.loads(Receipt.of(boot()).line()), "boots": 2**31 - 1})
    (one,) = Receipts.read(line).with_boots([boot(1)]).all
    assert one.boots == 2**31 - 1
    assert Receipts.read(one.line()).all == (one,)


def test_a_receipt_of_a_newer_operator_is_read() -> None:
    line = json.dumps({**json.loads(Receipt.of(boot()).line()), "fromTheFuture": {"a": 1}})
    assert Receipts.read(line) == kept(boot())


def test_a_chatty_configuration_does_not_drive_out_the_others() -> None:
    quiet = boot(configuration="0" * 16)
    receipts = NO_RECEIPTS.joined(
        [
            Receipt.of(quiet),
            *(
                Receipt.of(boot(n, limits=Limits(1024 + n, 8, 8192), configuration="f" * 16))
                for n in range(1, 1000)
            ),
        ],
        lambda one, other: one.boots + other.boots,
    )
    assert len(receipts.text()) <= MAX_BYTES < 1000 * len(Receipt.of(quiet).line())
    assert receipts.of("0" * 16) == (Receipt.of(quiet),)
    # What is left out is the oldest.
    left = [receipt.max_model_tokens for receipt in receipts.all if receipt.configuration[0] == "f"]
    assert sorted(left) == list(range(1024 + 1000 - len(left), 1024 + 1000))


def test_many_starts_of_one_configuration_stay_one_short_receipt() -> None:
    receipts = kept(*(boot(n) for n in range(100)))
    (receipt,) = receipts.all
    assert receipt.boots == 100
    assert len(receipt.line()) < 2000
    assert kept(*(boot(n) for n in range(100)), boot(0), boot(99)) == receipts
    assert len(basis(receipts.all).text()) < 700
