"""The plan of a pool, end to end and without a cluster."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ballonet.api.conditions import REASONS, ConditionType, Reason, Status
from ballonet.api.status import MAX_MESSAGE_CHARACTERS, EnforcedBy, Source, Verdict
from ballonet.kv.units import GIB, Interval
from ballonet.planning.plan import Plan
from ballonet.planning.planner import plan_pool
from tests.pools import DEMO, H100, TINY_CONFIG, UNKNOWN_CONFIG, kv_memory, role, spec, topology


def demo(**changes: Any) -> Plan:
    return plan_pool("demo", spec(DEMO, **changes))


def h100(**changes: Any) -> Plan:
    return plan_pool("demo", spec(H100, **changes))


def flag(plan: Plan, name: str) -> str | None:
    """Return the value of a flag that is written to the engine."""
    if name not in plan.engine_args:
        return None
    return plan.engine_args[plan.engine_args.index(name) + 1]


def test_the_demo_does_not_fit_and_says_why() -> None:
    plan = demo()
    assert plan.required_slots == 6
    assert plan.need_blocks == 192
    assert plan.blocks == Interval.point(128)
    assert plan.budget_blocks == Interval.point(114)
    assert plan.available_slots == plan.max_concurrent == 3
    assert plan.topology_fits.status is Status.FALSE
    assert plan.topology_fits.reason is Reason.EXCEEDS_BUDGET
    assert plan.topology_fits.message == (
        "planner 1 + worker 5 = 6 sequences x 32 blocks = 192; budget 114 (128 blocks - 1, x 90 %, "
        "given); 3 fit, the other 3 would queue. Fits with ceiling 608 (19 blocks)."
    )


def test_the_demo_fits_at_the_lowered_ceiling() -> None:
    plan = demo(sequence={"maxTokens": 608})
    assert (plan.required_slots, plan.need_blocks, plan.available_slots) == (6, 114, 6)
    assert plan.topology_fits.status is Status.TRUE
    assert plan.remedies == ()


def test_the_limit_of_a_pool_that_does_not_fit_is_what_fits() -> None:
    plan = demo()
    assert flag(plan, "--max-num-active-seqs") == "3"
    assert flag(plan, "--max-num-seqs") == "4"
    assert flag(plan, "--max-model-len") == "1024"
    assert flag(plan, "--kv-cache-memory-bytes") == "8388608"
    assert flag(plan, "--gpu-memory-utilization") is None


def test_before_active_sequences_the_limit_is_max_num_seqs() -> None:
    plan = demo(engine={"version": "0.30.0"})
    assert flag(plan, "--max-num-seqs") == "3"
    assert flag(plan, "--max-num-active-seqs") is None


def test_predicted_memory_is_an_interval_and_its_low_end_promises() -> None:
    plan = h100()
    assert plan.source is Source.PREDICTED
    assert plan.blocks is not None and plan.budget_blocks is not None and plan.need is not None
    assert plan.blocks.low < plan.blocks.high
    assert plan.max_concurrent == plan.budget_blocks.low // plan.need.blocks_per_sequence
    assert flag(plan, "--gpu-memory-utilization") == "0.90"
    assert flag(plan, "--kv-cache-memory-bytes") is None


def test_a_need_inside_the_interval_is_unknown_and_may_run() -> None:
    exact = h100(topologies=[])
    assert exact.budget_blocks is not None and exact.need is not None
    low, high = exact.budget_blocks.low, exact.budget_blocks.high
    workers = (low + high) // 2 // exact.need.blocks_per_sequence + 1
    plan = h100(topologies=[topology(role("worker", workers))])
    assert plan.topology_fits.status is Status.UNKNOWN
    assert plan.topology_fits.reason is Reason.WITHIN_UNCERTAINTY
    assert plan.gates is not None and plan.gates.slots == workers
    assert plan.available_slots is not None and plan.available_slots < workers
    assert "Surely fits with" in plan.topology_fits.message


@pytest.mark.parametrize(
    ("blocks", "fewest", "more"),
    # 7 runs of 64 blocks: an engine's share is 7, 4 or 2 of them.
    [(500, 1, 1000), (290, 2, 3), (145, 4, 7)],
)
def test_replicas_that_fit_never_change_what_is_written_into_pods(
    blocks: int, fewest: int, more: int
) -> None:
    runs = [topology(role("planner"), role("worker", 2, maxTokens=512), runs=7)]
    fewer, few, many = (
        demo(topologies=runs, replicas=replicas, budget=kv_memory(blocks))
        for replicas in (fewest - 1, fewest, more)
    )
    assert few.verdict is many.verdict is Verdict.FITS
    assert many.gates == few.gates
    assert many.engine_args == few.engine_args
    assert many.pod == few.pod
    # None is judged as one.
    assert fewer.verdict is (Verdict.DOES_NOT_FIT if fewest > 1 else Verdict.FITS)


SHARED: dict[str, Any] = {
    "topologies": [topology(role("planner"), role("worker", 5, maxTokens=512), runs=2)],
    # 125 blocks: a budget of 111; 126: one of 112.
    "budget": kv_memory(126),
}


def test_an_engine_runs_its_share_where_that_fits() -> None:
    plan = demo(**SHARED, replicas=2)
    assert plan.budget_blocks == Interval.point(112)
    assert (plan.required_slots, plan.need_blocks) == (6, 112)
    assert plan.verdict is Verdict.FITS
    assert plan.gates is not None and plan.gates.slots == plan.available_slots == 6
    assert plan.topology_fits.message.endswith(
        "all 6 fit; to run 6 at once trusts the ceilings and prefixes of roles; this trusts that "
        "runs are spread evenly over 2 replicas and that each stays on one."
    )


def test_one_engine_runs_the_largest_sequences_of_all_runs() -> None:
    # 32 + 32 + 16 + 16 + 16 = 112.
    plan = demo(**SHARED)
    assert plan.verdict is Verdict.DOES_NOT_FIT
    assert plan.gates is not None and plan.gates.slots == plan.available_slots == 5
    assert "spread evenly" not in plan.topology_fits.message


def test_a_share_that_does_not_fit_is_limited_by_its_own_largest_sequences() -> None:
    plan = demo(**{**SHARED, "budget": kv_memory(125)}, replicas=2)
    assert plan.verdict is Verdict.DOES_NOT_FIT
    # 32 + 4 x 16 = 96 of 111, although two planners never meet.
    assert plan.gates is not None and plan.gates.slots == plan.available_slots == 5


def test_reserved_slots_alone_are_not_spread() -> None:
    plan = demo(topologies=[], reservedSlots=2, replicas=3)
    assert plan.topology_fits.reason is Reason.FITS
    assert "spread" not in plan.topology_fits.message


def test_replicas_share_the_runs() -> None:
    runs = [topology(role("planner"), role("worker", 2), runs=2)]
    assert demo(topologies=runs).verdict is Verdict.DOES_NOT_FIT
    shared = demo(topologies=runs, replicas=2)
    assert shared.verdict is Verdict.FITS
    assert shared.required_slots == 3
    assert shared.topology_fits.message.startswith("each of 2 engines: ")


def test_a_pod_of_several_engines_says_that_it_spreads_runs_unless_clients_pin_them() -> None:
    plan = h100(
        accelerator={"type": "H200-141GB"},
        parallelism={"tensor": 2, "data": 2},
        replicas=2,
        topologies=[topology(role("planner"), role("worker", 5), runs=4)],
    )
    assert plan.verdict is Verdict.FITS
    # Two runs a pod: six of their twelve sequences on each of its two engines.
    assert plan.required_slots == 6
    message = plan.topology_fits.message
    assert message.startswith("each of 4 engines: any 6 of 12 sequences of research 2 x (")
    assert "runs are spread evenly over 2 replicas and that each stays on one" in message
    assert "over its 2 engines evenly, as it does unless clients pin them to a rank" in message
    assert "spread, shared by 4 engines" in [step.source for step in plan.steps]
    assert flag(plan, "--data-parallel-size") == "2"
    assert plan.pod is not None and plan.pod.gpus_per_pod == 4


def test_runs_that_are_spread_say_which_router_they_trust() -> None:
    wide = {**topology(role("planner"), role("worker", 5)), "placement": "Spread"}
    plan = demo(topologies=[wide], replicas=3)
    assert (plan.required_slots, plan.verdict) == (2, Verdict.FITS)
    assert plan.topology_fits.message.endswith(
        "this trusts that a router sends each sequence of research to the replica that has fewest."
    )


def test_more_devices_than_a_node_has_are_refused_with_every_factor() -> None:
    plan = h100(parallelism={"tensor": 4, "data": 4})
    assert plan.spec_resolved.reason is Reason.UNSUPPORTED_BY_ENGINE
    assert "tensor 4 x pipeline 1 x data 4 = 16 devices a pod" in plan.spec_resolved.message
    assert "at most 8" in plan.spec_resolved.message


def test_would_deadlock_is_said_with_the_number_of_holders() -> None:
    plan = demo(topologies=[topology(role("planner"), role("worker", 5), runs=3)])
    assert plan.topology_fits.reason is Reason.WOULD_DEADLOCK
    assert "3 fit, and 3 sequences may hold a slot while waiting" in plan.topology_fits.message


def test_no_topology_gives_the_engine_all_that_fits() -> None:
    plan = demo(topologies=[])
    assert plan.topology_fits.reason is Reason.NO_TOPOLOGY
    assert plan.verdict is Verdict.FITS
    assert plan.gates is not None and plan.gates.slots == 3


def test_role_ceilings_raise_the_limit_above_max_concurrent() -> None:
    plan = demo(topologies=[topology(role("planner"), role("worker", 5, maxTokens=512))])
    assert plan.max_concurrent == 3
    assert plan.verdict is Verdict.FITS
    assert plan.gates is not None and plan.gates.slots == 6
    assert "to run 6 at once trusts the ceilings" in plan.topology_fits.message
    by = {found.role: found.enforced_by for found in plan.topology.roles}
    assert by == {"planner": EnforcedBy.SERVER, "worker": EnforcedBy.RUNTIME}


def test_a_tiny_engine_is_never_told_to_run_nothing() -> None:
    plan = demo(budget=kv_memory(34))
    assert plan.max_concurrent == 0
    assert plan.available_slots == 0
    assert plan.verdict is Verdict.DOES_NOT_FIT
    assert plan.gates is not None and plan.gates.slots == 1


L4: dict[str, Any] = {
    **H100,
    "model": {"name": "meta-llama/Llama-3.1-8B-Instruct"},
    "accelerator": {"type": "L4-24GB", "memoryPercent": 92},
    "parallelism": {"tensor": 1},
}


def test_a_ceiling_with_which_the_engine_may_not_start_is_not_said_to_fit() -> None:
    plan = plan_pool("l4", spec(L4, topologies=[]))
    assert plan.blocks is not None and plan.blocks.low <= 2048 < plan.blocks.high
    assert plan.budget_computed.status is Status.TRUE
    assert plan.topology_fits.status is Status.UNKNOWN
    assert plan.topology_fits.reason is Reason.WITHIN_UNCERTAINTY
    assert plan.available_slots == 0
    held = plan.blocks.low - 1
    assert (
        "it may refuse to start, because one sequence of 32,768 tokens takes 2,048 blocks and only "
        f"{held:,} can surely be held" in plan.topology_fits.message
    )


def test_roles_that_fit_do_not_make_a_ceiling_fit_that_may_not_start() -> None:
    plan = plan_pool("l4", spec(L4, topologies=[topology(role("w", 3, maxTokens=1024))]))
    assert plan.need_blocks is not None and plan.budget_blocks is not None
    assert plan.need_blocks < plan.budget_blocks.low
    assert plan.topology_fits.reason is Reason.WITHIN_UNCERTAINTY
    assert "it may refuse to start" in plan.topology_fits.message
    assert plan.available_slots == 0
    assert plan.gates is not None and plan.gates.slots == 3


def test_what_surely_fits_is_told_where_far_more_is_needed() -> None:
    # The memory of 30,000 sequences leaves no block at the low end; that of the slots does.
    many = [topology(role("w", 30, maxTokens=4096), runs=1000)]
    plan = h100(topologies=many, sequence={"maxTokens": 4096})
    assert plan.budget_blocks is not None and plan.budget_blocks.low == 0
    assert plan.topology_fits.reason is Reason.EXCEEDS_BUDGET
    assert plan.gates is not None and plan.available_slots == plan.gates.slots > 20
    queued = 30_000 - plan.available_slots
    assert (
        f"; {plan.available_slots} surely fit, the other {queued:,} would queue."
        in plan.topology_fits.message
    )


def test_one_sequence_without_the_safety_starts_but_is_not_promised() -> None:
    for pool in ({"topologies": []}, {"topologies": [], "reservedSlots": 1}):
        plan = demo(budget=kv_memory(34), **pool)
        assert plan.budget_computed.status is Status.TRUE
        assert plan.topology_fits.reason is Reason.EXCEEDS_BUDGET
        assert (plan.max_concurrent, plan.available_slots) == (0, 0)
        assert plan.gates is not None and plan.gates.slots == 1
        assert "0 fit and the engine runs 1 at once" in plan.topology_fits.message
    assert demo(budget=kv_memory(37), topologies=[]).verdict is Verdict.FITS


def test_a_step_of_too_few_tokens_is_unfit_and_not_wrong() -> None:
    small = {
        "sequence": {"maxTokens": 32, "maxBatchedTokens": 16},
        "topologies": [topology(role("worker", 5), runs=8)],
    }
    verdicts = {n: demo(**small, replicas=n).verdict for n in (0, 1, 2, 4)}
    assert verdicts == {
        0: Verdict.DOES_NOT_FIT,
        1: Verdict.DOES_NOT_FIT,
        2: Verdict.DOES_NOT_FIT,
        4: Verdict.FITS,
    }
    plan = demo(**small, replicas=2)
    assert plan.spec_resolved.status is Status.TRUE
    assert plan.topology_fits.reason is Reason.EXCEEDS_BUDGET
    assert (
        "20 would fit, but the engine runs 16 at once because of spec.sequence.maxBatchedTokens "
        "16: give at least 24 to run 20" in plan.topology_fits.message
    )
    assert "MoreReplicas" in [remedy.name for remedy in plan.remedies]


def test_a_step_of_too_few_tokens_is_unfit_also_where_no_budget_is_known() -> None:
    plan = demo(
        model={"config": {"inline": UNKNOWN_CONFIG}},
        sequence={"maxBatchedTokens": 4},
    )
    assert plan.spec_resolved.status is Status.TRUE
    assert plan.topology_fits.reason is Reason.EXCEEDS_BUDGET
    assert "give at least 8 to run 6" in plan.topology_fits.message
    assert plan.gates is not None and plan.gates.slots == 4


def test_only_what_a_share_has_may_meet_on_an_engine() -> None:
    four = [topology(role("planner"), role("worker", 5, maxTokens=256), runs=4)]
    # Four planners of 32 blocks take more than 114; a run takes 72.
    limits = {}
    for replicas in (1, 2, 3, 4):
        plan = demo(topologies=four, replicas=replicas)
        assert plan.gates is not None and plan.gates.slots == plan.available_slots
        limits[replicas] = (plan.gates.slots, plan.verdict)
    assert limits == {
        1: (3, Verdict.DOES_NOT_FIT),
        # 2 x 32 + 6 x 8 = 112.
        2: (8, Verdict.DOES_NOT_FIT),
        3: (8, Verdict.DOES_NOT_FIT),
        4: (6, Verdict.FITS),
    }


def test_a_pool_whose_sequences_fit_at_their_own_ceilings_does_not_deadlock() -> None:
    roles = [role("planner", maxTokens=1024), role("worker", 9, maxTokens=1024)]
    plan = demo(sequence={"maxTokens": 4096}, budget=kv_memory(256), topologies=[topology(*roles)])
    assert plan.topology_fits.reason is Reason.EXCEEDS_BUDGET
    assert plan.gates is not None and plan.gates.slots == 7
    assert (
        "; 7 fit, the other 3 would queue; to run 7 at once trusts the ceilings"
        in plan.topology_fits.message
    )


def test_a_ceiling_that_no_sequence_can_reach_is_no_budget() -> None:
    plan = demo(budget=kv_memory(32))
    assert plan.budget_computed.reason is Reason.CEILING_DOES_NOT_FIT
    assert "at most 992" in plan.budget_computed.message
    assert plan.verdict is Verdict.DOES_NOT_FIT
    assert plan_pool("p", spec(budget=kv_memory(32), topologies=[])).verdict is (
        Verdict.DOES_NOT_FIT
    )


def test_a_model_larger_than_the_device_is_named_with_its_parts() -> None:
    plan = h100(parallelism={"tensor": 1}, accelerator={"type": "L4-24GB"})
    assert plan.budget_computed.reason is Reason.MODEL_DOES_NOT_FIT
    assert "weights" in plan.budget_computed.message
    assert plan.verdict is Verdict.DOES_NOT_FIT


def test_given_memory_that_the_device_may_not_have_is_said_and_starts() -> None:
    risky = []
    for gib in range(30, 50):
        plan = h100(budget={"kvCacheMemoryPerRank": f"{gib}Gi"}, topologies=[])
        if plan.budget_computed.status is Status.FALSE:
            break
        risky.append("; the engine may run out of device memory" in plan.budget_computed.message)
    # What is surely there is no risk, and what is surely not there is refused.
    assert risky == sorted(risky) and set(risky) == {False, True}
    assert plan.budget_computed.reason is Reason.MODEL_DOES_NOT_FIT
    first = h100(budget={"kvCacheMemoryPerRank": f"{30 + risky.index(True)}Gi"}, topologies=[])
    assert first.budget_computed.reason is Reason.GIVEN
    assert first.verdict is Verdict.FITS
    assert "device memory" not in demo().budget_computed.message
    assert "device memory" not in h100().budget_computed.message


def test_given_memory_beyond_the_device_is_refused() -> None:
    plan = h100(budget={"kvCacheMemoryPerRank": "79Gi"})
    assert plan.budget_computed.reason is Reason.MODEL_DOES_NOT_FIT
    assert "spec.budget.kvCacheMemoryPerRank" in plan.budget_computed.message


@pytest.mark.parametrize(
    ("changes", "reason", "words"),
    [
        ({"engine": {"version": "0.99.0"}}, Reason.UNKNOWN_ENGINE_VERSION, "0.10.2"),
        ({"engine": {"version": "0.8.5"}}, Reason.UNKNOWN_ENGINE_VERSION, "0.10.2"),
        ({"accelerator": {"type": "H100-81GB"}}, Reason.UNKNOWN_ACCELERATOR, "H100-80GB"),
        (
            {"model": {"name": "Qwen/Qwen3-32", "config": None}},
            Reason.UNKNOWN_MODEL,
            "Qwen/Qwen3-32B",
        ),
        ({"model": {"config": {"inline": "{}"}}}, Reason.INVALID_MODEL_CONFIG, "inline"),
        (
            {"model": {"config": {"inline": None, "configMapRef": {"name": "c", "key": "k"}}}},
            Reason.CONFIG_NOT_FOUND,
            "ConfigMap c with key k",
        ),
        ({"parallelism": {"tensor": 3}}, Reason.UNSUPPORTED_BY_ENGINE, "spec.parallelism"),
        ({"parallelism": {"pipeline": 5}}, Reason.UNSUPPORTED_BY_ENGINE, "spec.parallelism"),
        (
            {"sequence": {"blockTokens": 16}},
            Reason.UNSUPPORTED_BY_ENGINE,
            "spec.sequence.blockTokens: 16",
        ),
        (
            {"engine": {"version": "0.20.2"}, "sequence": {"kvCacheType": "FP8"}},
            Reason.UNSUPPORTED_BY_ENGINE,
            "spec.sequence.kvCacheType",
        ),
        (
            {"engine": {"version": "0.28.0"}, "admission": {"queue": "Bounded"}},
            Reason.UNSUPPORTED_BY_ENGINE,
            "spec.admission.queue",
        ),
    ],
)
def test_what_cannot_be_resolved_is_named_with_what_to_do(
    changes: dict[str, Any], reason: Reason, words: str
) -> None:
    plan = demo(**changes)
    assert plan.spec_resolved.status is Status.FALSE
    assert plan.spec_resolved.reason is reason
    assert words in plan.spec_resolved.message
    assert plan.budget_computed.reason is Reason.SPEC_UNRESOLVED
    assert plan.verdict is Verdict.UNKNOWN
    assert plan.gates is None
    assert plan.required_slots == 6


def test_a_ceiling_above_the_models_is_refused() -> None:
    config = json.dumps({**json.loads(TINY_CONFIG), "max_position_embeddings": 512})
    plan = demo(model={"config": {"inline": config}})
    assert plan.spec_resolved.reason is Reason.UNSUPPORTED_BY_ENGINE
    assert "give at most 512" in plan.spec_resolved.message


def test_yarn_lengthens_sequences_up_to_vllm_0_29() -> None:
    scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
    config = {**json.loads(TINY_CONFIG), "max_position_embeddings": 512, "rope_scaling": scaling}
    model = {"config": {"inline": json.dumps(config)}}
    ceiling = {"maxTokens": 2048}
    plan = demo(model=model, sequence=ceiling, engine={"version": "0.29.0"})
    assert plan.spec_resolved.status is Status.TRUE
    plan = demo(model=model, sequence=ceiling, engine={"version": "0.30.0"})
    assert "give at most 512" in plan.spec_resolved.message


@pytest.mark.parametrize(
    ("algorithm", "version", "device", "needs"),
    [
        ("FP8", "0.26.0", "A100-80GB", "needs 8.9 for weights stored as modelopt:"),
        ("FP8", "0.27.1", "A100-80GB", None),
        ("FP8", "0.26.0", "L4-24GB", None),
        ("NVFP4", "0.26.0", "A100-80GB", None),
        ("NVFP4", "0.13.0", "T4-16GB", "needs 8.0 for weights stored as modelopt_fp4"),
        ("NVFP4", "0.14.1", "T4-16GB", None),
        ("MIXED_PRECISION", "0.23.0", "A100-80GB", "needs 8.9"),
        ("MIXED_PRECISION", "0.24.0", "A100-80GB", None),
    ],
)
@pytest.mark.parametrize("args", [[], ["--quantization", "modelopt"]])
def test_modelopts_formats_need_devices_of_their_own(
    args: list[str], algorithm: str, version: str, device: str, needs: str | None
) -> None:
    stored = {"quant_method": "modelopt", "quant_algo": algorithm}
    config = json.loads(TINY_CONFIG) | {"quantization_config": stored}
    plan = h100(
        model={"name": "tiny", "config": {"inline": json.dumps(config)}},
        engine={"version": version, "args": args},
        accelerator={"type": device},
        sequence={"maxTokens": 1024},
        parallelism=None,
        topologies=[],
    )
    refused = plan.spec_resolved.reason is Reason.UNSUPPORTED_BY_ENGINE
    assert refused is (needs is not None), plan.spec_resolved.message
    assert needs is None or needs in plan.spec_resolved.message
    sized = plan.budget_computed.reason is not Reason.WEIGHTS_UNKNOWN
    assert sized or algorithm == "MIXED_PRECISION"


@pytest.mark.parametrize(
    ("model", "version", "device", "needs"),
    [
        ("openai/gpt-oss-20b", "0.32.0", "T4-16GB", "needs 8.0 for weights stored as mxfp4"),
        ("Qwen/Qwen3-8B-FP8", "0.32.0", "V100-32GB", "needs 7.5 for weights stored as fp8"),
        ("Qwen/Qwen3-8B-FP8", "0.12.0", "T4-16GB", "needs 8.0 for weights stored as fp8"),
        ("Qwen/Qwen3-8B-FP8", "0.32.0", "T4-16GB", None),
        ("Qwen/Qwen3-8B", "0.32.0", "V100-32GB", None),
        ("openai/gpt-oss-20b", "0.32.0", "A10-24GB", None),
        ("nvidia/Gemma-4-31B-IT-NVFP4", "0.32.0", "A10-24GB", None),
    ],
)
def test_devices_that_cannot_compute_with_the_weights_are_refused(
    model: str, version: str, device: str, needs: str | None
) -> None:
    plan = h100(
        model={"name": model},
        engine={"version": version},
        accelerator={"type": device},
        parallelism=None,
    )
    refused = plan.spec_resolved.reason is Reason.UNSUPPORTED_BY_ENGINE
    assert refused is (needs is not None)
    assert (needs or "") in plan.spec_resolved.message


def test_experts_of_a_dense_model_cannot_be_divided() -> None:
    expert = {"expert": "Enabled", "tensor": 2}
    plan = h100(parallelism=expert)
    assert plan.spec_resolved.reason is Reason.UNSUPPORTED_BY_ENGINE
    assert "spec.parallelism.expert" in plan.spec_resolved.message
    plan = h100(parallelism=expert, model={"name": "Qwen/Qwen3-30B-A3B"})
    assert plan.spec_resolved.status is Status.TRUE


def test_more_devices_than_a_node_has_are_refused() -> None:
    plan = h100(parallelism={"tensor": 16})
    assert plan.spec_resolved.reason is Reason.UNSUPPORTED_BY_ENGINE
    assert "at most 8" in plan.spec_resolved.message


def test_the_config_goes_before_the_catalog_and_comes_from_the_config_map() -> None:
    ref = {"inline": None, "configMapRef": {"name": "c", "key": "k"}}
    changed = spec(DEMO, model={"name": "Qwen/Qwen3-32B", "config": ref})
    plan = plan_pool("p", changed, TINY_CONFIG)
    assert plan.blocks == Interval.point(128)
    assert plan.steps[0].source == "ConfigMap c, key k"


def test_a_layout_that_is_not_understood_is_unknown_and_starts() -> None:
    plan = demo(model={"config": {"inline": UNKNOWN_CONFIG}})
    assert plan.budget_computed.status is Status.UNKNOWN
    assert plan.budget_computed.reason is Reason.LAYOUT_NOT_UNDERSTOOD
    assert "time_mix_extra_dim" in plan.budget_computed.message
    assert plan.topology_fits.reason is Reason.BUDGET_UNKNOWN
    assert plan.gates is not None and plan.gates.slots == 6
    alone = demo(model={"config": {"inline": UNKNOWN_CONFIG}}, topologies=[])
    assert alone.gates is not None and alone.gates.slots == 256


def test_unknown_weights_are_unknown_unless_memory_is_given() -> None:
    config = json.dumps({**json.loads(TINY_CONFIG), "quantization_config": {"quant_method": "x"}})
    model = {"name": "tiny", "config": {"inline": config}}
    unknown = h100(model=model, parallelism={"tensor": 1})
    assert unknown.budget_computed.reason is Reason.WEIGHTS_UNKNOWN
    assert unknown.gates is not None
    given = h100(model=model, parallelism={"tensor": 1}, budget={"kvCacheMemoryPerRank": "8Gi"})
    assert given.budget_computed.status is Status.TRUE
    stated = h100(model={**model, "weights": {"memory": "1Gi"}}, parallelism={"tensor": 1})
    assert stated.budget_computed.reason is Reason.PREDICTED


@pytest.mark.parametrize(
    ("memory", "given"), [(61, "61 is 61 bytes"), ("1023Ki", "1023Ki is 1,047,552 bytes")]
)
def test_weights_without_their_unit_are_no_promise(memory: int | str, given: str) -> None:
    plan = h100(model={"name": "Qwen/Qwen3-32B", "weights": {"memory": memory}})
    assert plan.verdict is not Verdict.FITS
    assert plan.spec_resolved.reason is Reason.INVALID_SPEC
    assert plan.spec_resolved.message.startswith(f"spec.model.weights.memory: {given}, less than")
    least = h100(model={"name": "Qwen/Qwen3-32B", "weights": {"memory": "1Mi"}})
    assert least.spec_resolved.reason is Reason.RESOLVED


def test_memory_that_cannot_be_predicted_is_unknown_unless_given() -> None:
    unknown = h100(accelerator={"type": "MI300X-192GB"})
    assert unknown.budget_computed.reason is Reason.MEMORY_UNKNOWN
    assert unknown.gates is not None and unknown.gates.slots == 6
    given = h100(accelerator={"type": "MI300X-192GB"}, budget={"kvCacheMemoryPerRank": "40Gi"})
    assert given.budget_computed.reason is Reason.GIVEN
    assert given.verdict is Verdict.FITS


def test_arguments_that_are_not_planned_for_make_the_plan_unknown_by_name() -> None:
    plan = demo(engine={"args": ["--enable-eplb"]})
    assert plan.budget_computed.reason is Reason.UNPLANNED_ARGUMENT
    assert "--enable-eplb" in plan.budget_computed.message
    assert plan.verdict is Verdict.UNKNOWN


def test_owned_arguments_are_refused_also_in_the_pod_template() -> None:
    plan = demo(engine={"args": ["--max-num-seqs=9"]})
    assert len(plan.refused_arguments) == 1
    container = {"name": "engine", "env": [{"name": "VLLM_CPU_KVCACHE_SPACE", "value": "4"}]}
    hidden = demo(engine={"podTemplate": {"spec": {"containers": [container]}}})
    assert "VLLM_CPU_KVCACHE_SPACE" in hidden.refused_arguments[0]


def test_the_queue_bound_counts_what_runs_and_what_waits() -> None:
    plan = demo(admission={"queue": "Bounded"})
    assert flag(plan, "--max-num-queued-reqs") == str(3 + 2 * 6)
    assert flag(demo(), "--max-num-queued-reqs") is None


def test_spec_fields_reach_the_engine() -> None:
    plan = h100(
        model={"revision": "abc", "servedNames": ["a", "b"]},
        sequence={
            "kvCacheType": "FP8",
            "prefixCaching": "Disabled",
            "blockTokens": 64,
            "maxBatchedTokens": 4096,
        },
        accelerator={"memoryPercent": 85},
        parallelism={"tensor": 2, "pipeline": 2},
    )
    assert flag(plan, "--revision") == "abc"
    position = plan.engine_args.index("--served-model-name")
    assert plan.engine_args[position + 1 : position + 3] == ("a", "b")
    assert flag(plan, "--kv-cache-dtype") == "fp8"
    assert "--no-enable-prefix-caching" in plan.engine_args
    assert flag(plan, "--block-size") == "64"
    assert flag(plan, "--max-num-batched-tokens") == "4096"
    assert flag(plan, "--gpu-memory-utilization") == "0.85"
    assert flag(plan, "--tensor-parallel-size") == "2"
    assert flag(plan, "--pipeline-parallel-size") == "2"


def test_a_claim_is_served_from_its_folder() -> None:
    named = h100()
    assert named.gates is not None and named.gates.model_path == "Qwen/Qwen3-32B"
    root = h100(model={"claim": {"name": "models"}})
    assert root.gates is not None and root.gates.model_path == "/model"
    folder = h100(model={"claim": {"name": "models", "path": "qwen/32b"}})
    assert folder.gates is not None and folder.gates.model_path == "/model/qwen/32b"
    assert folder.gates.served_names == ("Qwen/Qwen3-32B",)


def test_an_fp8_cache_holds_twice_the_blocks() -> None:
    full, half = h100(topologies=[]), h100(topologies=[], sequence={"kvCacheType": "FP8"})
    assert full.layout is not None and half.layout is not None
    assert full.layout.bytes_per_block == 2 * half.layout.bytes_per_block


def test_a_gpu_pod_asks_for_its_devices_and_a_cpu_pod_for_memory() -> None:
    gpu = h100(accelerator={"nodeSelector": {"gpu": "h100"}}).pod
    assert gpu is not None
    assert (gpu.gpus_per_pod, gpu.resource_name) == (2, "nvidia.com/gpu")
    assert gpu.node_selector == {"gpu": "h100"}
    assert gpu.memory_limit_bytes is None
    assert gpu.image == "vllm/vllm-openai:v0.32.0"
    cpu = demo(model={"weights": {"memory": "1Gi"}}).pod
    assert cpu is not None
    assert (cpu.gpus_per_pod, cpu.resource_name) == (0, None)
    assert cpu.memory_limit_bytes == cpu.memory_request_bytes == 3 * GIB + 8 * 1024**2
    mine = h100(accelerator={"resourceName": "example.com/gpu"}).pod
    assert mine is not None and mine.resource_name == "example.com/gpu"


def test_messages_stay_within_a_condition_however_large_the_pool() -> None:
    roles = [role(f"role-with-a-long-name-of-many-characters-{n}", 3) for n in range(8)]
    many = [topology(*roles, name=f"topology-{n}", runs=3) for n in range(8)]
    plan = demo(topologies=many)
    assert len(plan.topology_fits.message) <= MAX_MESSAGE_CHARACTERS
    assert "budget 114 (128 blocks - 1, x 90 %, given)" in plan.topology_fits.message
    assert len(plan.topology.roles) == 16


def test_every_finding_has_a_reason_that_its_condition_may_have() -> None:
    plans = [demo(), h100(), demo(engine={"version": "9.9.9"}), demo(budget=kv_memory(2))]
    for plan in plans:
        for kind, finding in (
            (ConditionType.SPEC_RESOLVED, plan.spec_resolved),
            (ConditionType.BUDGET_COMPUTED, plan.budget_computed),
            (ConditionType.TOPOLOGY_FITS, plan.topology_fits),
        ):
            assert finding.reason in REASONS[kind][finding.status]


def test_the_steps_lead_from_the_shape_to_the_limit() -> None:
    values = {step.title: step.value for step in demo().steps}
    assert values["Bytes of a block"] == "65,536 bytes"
    assert values["Blocks of a sequence"] == "32 blocks"
    assert values["Blocks"] == "128 blocks"
    assert values["Budget"] == "114 blocks"
    assert values["Slots"] == "3 sequences at once"


def test_a_credited_prefix_that_nobody_can_share_is_named() -> None:
    sharers = topology(role("planner", sharedPrefix="p"), role("worker", 5, sharedPrefix="p"))

    def steps(tokens: int) -> dict[str, str]:
        prefix = {"name": "p", "tokens": tokens, "credit": "Declared"}
        plan = demo(topologies=[sharers], sharedPrefixes=[prefix])
        return {step.title: step.value for step in plan.steps}

    assert steps(31)["Need: prefix p"] == "0 blocks"
    assert "Need: prefix p" not in steps(32)


def test_memory_that_cannot_be_predicted_says_what_the_need_takes() -> None:
    plan = h100(accelerator={"type": "MI300X-192GB"})
    assert plan.budget_computed.reason is Reason.MEMORY_UNKNOWN
    assert plan.need is None and plan.layout is not None
    # 6 sequences x 2,048 blocks / 90 % + the null block, of 16 tokens and 128 KiB a token a rank.
    assert (
        "Promising 6 sequences takes 26.67 GiB of KV memory a rank (12,288 of 13,655 blocks of 16 "
        "tokens)." in plan.topology_fits.message
    )
    assert [step.title for step in plan.steps] == ["Bytes of a block", "Blocks of a sequence"]


def test_memory_that_is_less_than_a_block_is_told_from_memory_that_is_more_than_the_device() -> (
    None
):
    tiny, huge = (h100(budget={"kvCacheMemoryPerRank": size}) for size in ("8", "800Gi"))
    assert tiny.budget_computed.reason is Reason.CEILING_DOES_NOT_FIT
    assert "only 0 can be held" in tiny.budget_computed.message
    assert huge.budget_computed.reason is Reason.MODEL_DOES_NOT_FIT
    assert huge.topology_fits.message.startswith("The engine would not start: BudgetComputed says")


def test_a_budget_is_that_of_an_engine_that_runs_all_that_is_needed() -> None:
    plan = h100(parallelism={"tensor": 1})
    assert plan.gates is not None and plan.gates.slots < 6
    assert " with 6 at once (" in plan.topology_fits.message
    assert " at once (" not in h100().topology_fits.message


@pytest.mark.parametrize(
    ("kv_cache", "weights", "fits"), [("170Gi", "15Gi", True), ("180Gi", "15Gi", False)]
)
def test_given_memory_is_held_against_weights_where_nothing_else_is_known(
    kv_cache: str, weights: str, *, fits: bool
) -> None:
    plan = h100(
        accelerator={"type": "MI300X-192GB"},
        model={"name": "Qwen/Qwen3-8B", "weights": {"memory": weights}},
        parallelism={"tensor": 1},
        budget={"kvCacheMemoryPerRank": kv_cache},
    )
    assert (plan.verdict is Verdict.FITS) is fits
    if not fits:
        assert plan.budget_computed.reason is Reason.MODEL_DOES_NOT_FIT
        assert "(weights 14.85 GiB to 15.21 GiB)" in plan.budget_computed.message
