"""Which lever is named against a verdict, and with which patch."""

from __future__ import annotations

from typing import Any

import pytest

from ballonet.api.conditions import Reason
from ballonet.api.v1alpha1 import MAX_REPLICAS
from ballonet.diagnosis.levers import advise
from ballonet.planning.plan import Remedy
from ballonet.planning.planner import plan_pool
from tests.pools import patched_spec, spec

GPU: dict[str, Any] = {
    "model": {"name": "meta-llama/Llama-3.1-8B-Instruct"},
    "engine": {"version": "0.32.0"},
    "accelerator": {"type": "H100-80GB"},
    "sequence": {"maxTokens": 4096},
}


def anything(_patch: Any) -> bool:
    return True


def nothing(_patch: Any) -> bool:
    return False


NAMED = [
    (Reason.SLOT_BOUND, {}, anything, "Replicas", {"replicas": 2}),
    (Reason.SLOT_BOUND, {}, nothing, "Ceiling", None),
    (Reason.SLOT_BOUND, {"replicas": MAX_REPLICAS}, anything, "Ceiling", None),
    (Reason.LIMIT_TOO_TIGHT, {}, anything, "Ceiling", None),
    (Reason.ENGINE_STUCK, {}, anything, "RestartPod", None),
    (Reason.REJECTING, {}, anything, "Replicas", {"replicas": 2}),
    (Reason.CEILING_HIT, {}, anything, "RaiseCeiling", {"sequence": {"maxTokens": 5120}}),
    (Reason.CEILING_HIT, {}, nothing, "Compaction", None),
    (Reason.PREFIX_MISS, {}, anything, "PrefixSharing", None),
    (
        Reason.PREFIX_MISS,
        {"sequence": {"prefixCaching": "Disabled"}},
        anything,
        "PrefixCaching",
        {"sequence": {"prefixCaching": "Enabled"}},
    ),
    (Reason.OVERPROVISIONED, {}, anything, "SmallerDevice", None),
    (Reason.OVERPROVISIONED, {"replicas": 3}, anything, "FewerReplicas", {"replicas": 2}),
    (Reason.OVERPROVISIONED, {"replicas": 3}, nothing, "SmallerDevice", None),
    (
        Reason.OFFLOAD_THRASH,
        {"offload": {"mode": "Enabled", "hostMemory": "8Gi"}},
        anything,
        "HostMemory",
        {"offload": {"hostMemory": str(16 * 1024**3)}},
    ),
]


@pytest.mark.parametrize(("verdict", "changes", "fits", "name", "change"), NAMED)
def test_the_first_lever_that_can_be_pulled_is_named(
    verdict: Reason, changes: Any, fits: Any, name: str, change: Any
) -> None:
    plan = plan_pool("pool", spec(GPU, **changes), with_remedies=False)
    found = advise(verdict, plan, fits=fits)
    assert found is not None
    assert found.name == name
    assert found.patch == (None if change is None else {"spec": change})


def test_a_missed_prefix_is_not_always_the_clients_text() -> None:
    """The evidence may say that blocks were evicted, or that each engine has a cache of its own."""
    found = advise(
        Reason.PREFIX_MISS, plan_pool("pool", spec(GPU), with_remedies=False), fits=anything
    )
    assert found is not None
    for words in ("the evidence says", "the same to the byte", "one engine", "make room"):
        assert words in found.text


@pytest.mark.parametrize("calm", [Reason.HEALTHY, Reason.IDLE, Reason.NO_VERDICT])
def test_where_nothing_is_wrong_nothing_is_to_be_done(calm: Reason) -> None:
    plan = plan_pool("pool", spec(GPU), with_remedies=False)
    assert advise(calm, plan, fits=anything) is None


def test_what_makes_topologies_fit_goes_first_where_they_do_not() -> None:
    plan = plan_pool("pool", spec(GPU), with_remedies=False)
    remedy = Remedy("LowerCeiling", "Lower it.", {"spec": {"sequence": {"maxTokens": 9}}}, "less")
    found = advise(Reason.BLOCK_BOUND, plan, fits=anything, remedies=[remedy])
    assert found is not None
    assert (found.name, found.patch) == ("LowerCeiling", remedy.patch)


def test_offload_is_proposed_with_as_much_host_memory_as_the_cache_has_and_starts() -> None:
    plan = plan_pool("pool", spec(GPU), with_remedies=False)
    found = advise(Reason.CACHE_CHURN, plan, fits=anything)
    assert found is not None and found.patch is not None and plan.memory is not None
    assert found.name == "Offload"
    cache = plan.memory.kv_cache_bytes
    assert cache is not None
    gib = int(found.patch["spec"]["offload"]["hostMemory"].removesuffix("Gi"))
    assert 0 <= gib * 1024**3 - cache.high < 1024**3
    after = plan_pool("pool", patched_spec(spec(GPU), found.patch), with_remedies=False)
    assert after.gates is not None and not after.refused_arguments
