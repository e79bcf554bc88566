"""Changes that make a pool fit: exact, proven, cheapest first."""

from __future__ import annotations

from typing import Any

import pytest

from ballonet.api.status import Verdict
from ballonet.catalog import Catalog
from ballonet.planning.plan import Plan, Remedy
from ballonet.planning.planner import plan_pool
from ballonet.planning.remedies import apply_merge_patch
from tests.pools import DEMO, H100, kv_memory, patched_spec, role, spec, topology


def planned(base: dict[str, Any] = DEMO, /, **changes: Any) -> Plan:
    return plan_pool("p", spec(base, **changes))


def remedy(plan: Plan, name: str) -> Remedy:
    return next(found for found in plan.remedies if found.name == name)


def names(plan: Plan) -> list[str]:
    return [found.name for found in plan.remedies]


def test_the_remedies_of_the_demo() -> None:
    plan = planned()
    assert {found.name: found.patch["spec"] for found in plan.remedies} == {
        "LowerCeiling": {"sequence": {"maxTokens": 608}},
        "FewerWorkers": {
            "topologies": [
                {
                    "name": "research",
                    "roles": [{"name": "planner"}, {"name": "worker", "count": 2}],
                }
            ]
        },
        "MoreMemory": {"budget": {"kvCacheMemoryPerRank": "14Mi"}},
    }


def test_what_gives_up_least_comes_first_and_devices_last() -> None:
    assert names(planned()) == ["LowerCeiling", "FewerWorkers", "MoreMemory"]
    wide = [topology(role("planner"), role("worker", 5), runs=2)]
    devices = ["MoreTensorParallel", "MoreDataParallel", "MoreReplicas"]
    assert names(planned(H100, topologies=wide))[-3:] == devices


def test_a_lowered_ceiling_also_lowers_the_roles_above_it() -> None:
    roles = [role("planner", maxTokens=1024), role("worker", 5, maxTokens=1000)]
    found = remedy(planned(topologies=[topology(*roles)]), "LowerCeiling").patch["spec"]
    assert found["sequence"] == {"maxTokens": 608}
    assert [r["maxTokens"] for r in found["topologies"][0]["roles"]] == [608, 608]


def test_a_lowered_ceiling_never_cuts_a_shared_prefix() -> None:
    prefix = {"name": "p", "tokens": 700}
    plan = planned(
        sharedPrefixes=[prefix],
        topologies=[topology(role("planner", sharedPrefix="p"), role("worker", 5))],
    )
    assert "LowerCeiling" not in names(plan)
    assert "FewerWorkers" in names(plan)


def test_fewer_runs_of_the_one_topology_that_is_enough() -> None:
    plan = planned(
        topologies=[
            topology(role("a"), role("b", 2, maxTokens=320), runs=5, name="large"),
            topology(role("c", maxTokens=32), name="small"),
        ]
    )
    runs = [t.get("concurrentRuns") for t in remedy(plan, "FewerRuns").patch["spec"]["topologies"]]
    assert runs == [2, 1]


def test_fewer_of_every_role_when_no_single_one_is_enough() -> None:
    plan = planned(topologies=[topology(role("a", 8), role("b", 8))])
    counts = [
        r["count"] for r in remedy(plan, "FewerWorkers").patch["spec"]["topologies"][0]["roles"]
    ]
    assert counts == [1, 1]


def test_credit_is_offered_only_for_prefixes_that_roles_name() -> None:
    sharers = [topology(role("planner", sharedPrefix="p"), role("worker", 4, sharedPrefix="p"))]
    prefixes = [{"name": "p", "tokens": 640}, {"name": "unused", "tokens": 640}]
    plan = planned(topologies=sharers, sharedPrefixes=prefixes)
    assert names(plan)[0] == "PrefixCredit"
    changed = remedy(plan, "PrefixCredit").patch["spec"]["sharedPrefixes"]
    assert [prefix.get("credit") for prefix in changed] == ["Declared", None]
    off = {"maxTokens": 1024, "prefixCaching": "Disabled"}
    assert "PrefixCredit" not in names(
        planned(topologies=sharers, sharedPrefixes=prefixes, sequence=off)
    )


@pytest.mark.parametrize(
    ("safety", "quantity"),
    # 192 blocks: ceil(192 / safety) + 1 blocks of 64 KiB, in whole Mi.
    [(90, "14Mi"), (100, "13Mi"), (50, "25Mi")],
)
def test_more_memory_is_the_least_round_quantity(safety: int, quantity: str) -> None:
    plan = planned(budget={"safetyPercent": safety})
    found = remedy(plan, "MoreMemory")
    assert found.patch == {"spec": {"budget": {"kvCacheMemoryPerRank": quantity}}}


def test_more_memory_stops_at_the_device() -> None:
    wide = [topology(role("worker", 40))]
    roomy = planned(H100, topologies=wide[:], budget={"kvCacheMemoryPerRank": "8Gi"})
    assert "MoreMemory" not in names(roomy)
    fitting = [topology(role("worker", 8))]
    found = remedy(
        planned(H100, topologies=fitting, budget={"kvCacheMemoryPerRank": "8Gi"}), "MoreMemory"
    )
    # 8 x 2048 blocks of 2 MiB at 90 % are 35.6 GiB.
    assert found.patch["spec"]["budget"]["kvCacheMemoryPerRank"] == "36Gi"


def test_more_of_the_device_up_to_what_starts_safely() -> None:
    plan = planned(H100, accelerator={"memoryPercent": 60}, topologies=[topology(role("w", 8))])
    found = remedy(plan, "MoreMemory").patch["spec"]["accelerator"]["memoryPercent"]
    assert 60 < found <= 95
    lower = plan_pool(
        "p", patched_spec(plan.spec, {"spec": {"accelerator": {"memoryPercent": found - 1}}})
    )
    assert lower.verdict is not Verdict.FITS


def test_tensor_parallel_only_as_far_as_model_and_node_go() -> None:
    plan = planned(H100, parallelism={"tensor": 1}, topologies=[topology(role("w", 6))])
    assert remedy(plan, "MoreTensorParallel").patch == {"spec": {"parallelism": {"tensor": 2}}}
    assert "MoreTensorParallel" not in names(planned())


def test_replicas_help_only_where_runs_can_be_shared() -> None:
    assert "MoreReplicas" not in names(planned())
    three = planned(topologies=[topology(role("planner"), role("worker", 2), runs=3)])
    more = remedy(three, "MoreReplicas")
    assert more.patch == {"spec": {"replicas": 3}}
    assert "from 1 to 3, which takes 3 times the devices; a router must spread" in more.description
    assert names(three)[-1] == "MoreReplicas"
    one_is_too_large = planned(topologies=[topology(role("worker", 4), runs=3)])
    assert "MoreReplicas" not in names(one_is_too_large)


def test_replicas_make_runs_fit_whose_roles_differ() -> None:
    runs = [topology(role("planner"), role("worker", 5, maxTokens=512), runs=2)]
    plan = planned(topologies=runs)
    assert plan.verdict is Verdict.DOES_NOT_FIT
    assert remedy(plan, "MoreReplicas").patch == {"spec": {"replicas": 2}}


@pytest.mark.parametrize(
    ("now", "runs", "after"),
    # An engine holds one run of 96 blocks; half as many again are 1.5 times the devices.
    [(0, 2, 2), (2, 3, 3), (1, 64, 64), (1, 65, None), (3, 65, None), (5, 80, 80), (5, 81, None)],
)
def test_replicas_are_offered_up_to_a_bound(now: int, runs: int, after: int | None) -> None:
    three = [topology(role("planner"), role("worker", 2), runs=runs)]
    plan = planned(topologies=three, replicas=now)
    found = [one.patch["spec"]["replicas"] for one in plan.remedies if one.name == "MoreReplicas"]
    assert found == ([] if after is None else [after])
    if (now, after) == (2, 3):
        assert "1.5 times the devices" in remedy(plan, "MoreReplicas").description


def test_an_engine_that_would_not_start_has_remedies_too() -> None:
    plan = planned(budget=kv_memory(20), topologies=[])
    # 19 blocks of 32 tokens can be held, and 17 are promised.
    assert remedy(plan, "LowerCeiling").patch == {"spec": {"sequence": {"maxTokens": 544}}}


def test_a_lowered_ceiling_surely_starts() -> None:
    changes = {
        "model": {"name": "meta-llama/Llama-3.1-8B-Instruct"},
        "accelerator": {"type": "L4-24GB"},
        "parallelism": {"tensor": 1},
        "sequence": {"maxTokens": 131_072},
    }
    for topologies in ([], [topology(role("w", 3, maxTokens=1024))]):
        plan = planned(H100, **changes, topologies=topologies)
        assert plan.verdict is not Verdict.FITS
        patch = remedy(plan, "LowerCeiling").patch
        lower = plan_pool("p", patched_spec(plan.spec, patch))
        assert lower.blocks is not None and lower.need is not None
        assert lower.need.blocks_per_sequence <= lower.blocks.low - 1


def test_what_is_said_of_a_remedy_where_nothing_is_declared() -> None:
    found = remedy(planned(budget=kv_memory(34), topologies=[]), "LowerCeiling")
    assert found.description.endswith(": then there is room for 1 sequence.")


def test_no_more_memory_is_offered_on_cpu_than_a_node_has() -> None:
    block = {"budget": {"safetyPercent": 100}, "sequence": {"maxTokens": 1_048_576}}
    # A sequence takes 2 GiB: 4 TiB hold 2,047 of them beside the null block.
    roomy = planned(**block, topologies=[topology(role("w", 2047))])
    assert remedy(roomy, "MoreMemory").patch["spec"]["budget"]["kvCacheMemoryPerRank"] == "4095Gi"
    assert "MoreMemory" not in names(planned(**block, topologies=[topology(role("w", 2048))]))


def test_nothing_is_offered_where_nothing_is_known() -> None:
    assert planned(engine={"args": ["--enable-eplb"]}).remedies == ()
    assert planned(engine={"version": "9.9.9"}).remedies == ()


def test_what_the_user_wrote_stays_as_written() -> None:
    roles = [role("planner", holdsSlotWhileWaiting="Always"), {"name": "worker", "count": 5}]
    found = remedy(planned(topologies=[{"name": "t", "roles": roles}]), "FewerWorkers")
    assert found.patch["spec"]["topologies"] == [
        {
            "name": "t",
            "roles": [
                {"name": "planner", "count": 1, "holdsSlotWhileWaiting": "Always"},
                {"name": "worker", "count": 2},
            ],
        }
    ]


@pytest.mark.parametrize(
    ("target", "patch", "merged"),
    # Examples of RFC 7396, appendix A.
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merge_patch_as_the_api_server_does_it(target: Any, patch: Any, merged: Any) -> None:
    assert apply_merge_patch(target, patch) == merged


def test_an_8_bit_cache_where_the_device_can_keep_one() -> None:
    some = [topology(role("worker", 12))]
    found = remedy(planned(H100, topologies=some), "Fp8Cache")
    assert found.patch == {"spec": {"sequence": {"kvCacheType": "FP8"}}}
    assert "8 bits" in found.description
    given = {"kvCacheType": "FP8"}
    assert "Fp8Cache" not in names(planned(H100, topologies=some * 1, sequence=given))
    assert "Fp8Cache" not in names(planned())


def test_decode_context_where_ranks_would_keep_the_same() -> None:
    run = [topology(role("worker", 45))]
    large = {**H100, "model": {"name": "Qwen/Qwen3-235B-A22B"}}
    large["accelerator"] = {"type": "H200-141GB"}
    # Its four KV heads are kept twice by eight ranks.
    plan = planned(large, parallelism={"tensor": 8}, topologies=run)
    found = remedy(plan, "MoreDecodeContext")
    assert found.patch == {"spec": {"parallelism": {"decodeContext": 2}}}
    # Eight KV heads are kept once by two ranks.
    assert "MoreDecodeContext" not in names(planned(H100, topologies=run))


def test_the_least_larger_device_of_the_vendor() -> None:
    run = [topology(role("worker", 12))]
    plan = planned(H100, topologies=run)
    chosen = remedy(plan, "OtherAccelerator").patch["spec"]["accelerator"]["type"]
    devices = {one.name: one for one in Catalog.builtin().accelerators}
    found = devices[chosen].memory_bytes
    for one in devices.values():
        smaller = one.memory_bytes and found and one.memory_bytes.low < found.low
        if smaller and one.vendor == "nvidia" and (one.max_per_node or 0) >= 2:
            instead = patched_spec(plan.spec, {"spec": {"accelerator": {"type": one.name}}})
            assert plan_pool("p", instead, with_remedies=False).verdict is not Verdict.FITS
    for pinned in ({"nodeSelector": {"gpu": "h100"}}, {"resourceName": "example.com/gpu"}):
        plan = planned(H100, topologies=run, accelerator=pinned)
        assert plan.remedies and "OtherAccelerator" not in names(plan)


def test_more_engines_in_a_pod_as_far_as_a_node_goes() -> None:
    runs = [topology(role("worker", 6), runs=4)]
    found = remedy(planned(H100, topologies=runs), "MoreDataParallel")
    assert found.patch == {"spec": {"parallelism": {"data": 3}}}
    assert "spreads the sequences" in found.description
    # Six engines of two devices are more than a node has.
    more = [topology(role("worker", 6), runs=7)]
    assert "MoreDataParallel" not in names(planned(H100, topologies=more))


def test_replicas_take_single_sequences_where_they_are_spread() -> None:
    wide = {**topology(role("planner"), role("worker", 8)), "placement": "Spread"}
    plan = planned(topologies=[wide])
    assert remedy(plan, "MoreReplicas").patch == {"spec": {"replicas": 3}}
    assert "the sequences of each run" in remedy(plan, "MoreReplicas").description


def test_two_changes_only_where_one_is_not_enough() -> None:
    # Its weights take three of these devices, and twelve runs more than eight of them.
    plan = planned(
        {**H100, "accelerator": {"type": "L4-24GB"}, "parallelism": {"tensor": 1}},
        topologies=[topology(role("planner"), role("worker", 5), runs=12)],
    )
    assert plan.remedies
    for found in plan.remedies:
        first, second = found.name.split("And")
        assert first != second
        assert "; and " in found.description
        assert len(found.patch["spec"]) == 2
        for part, value in found.patch["spec"].items():
            alone = patched_spec(plan.spec, {"spec": {part: value}})
            assert plan_pool("p", alone, with_remedies=False).verdict is not Verdict.FITS
    assert len(set(names(plan))) == len(plan.remedies)
    assert not any("And" in name for name in names(planned()))


def test_what_leaves_less_than_a_tenth_of_the_work_comes_last() -> None:
    spec_of = {"model": {"name": "openai/gpt-oss-120b"}, "parallelism": {"tensor": 1}}
    found = plan_pool("p", spec(H100, **spec_of, sequence={"maxTokens": 131_072})).remedies
    assert len(found) > 1
    assert found[-1].name == "LowerCeiling"
    assert found[-1].patch["spec"]["sequence"]["maxTokens"] < 13_107
