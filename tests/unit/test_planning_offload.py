"""KV blocks in host memory: what a pod asks for, and where it is refused with the reason."""

from __future__ import annotations

from typing import Any

import pytest

from ballonet.api.conditions import Reason, Status
from ballonet.api.status import Verdict
from ballonet.kv.units import GIB, MIB
from ballonet.planning.plan import Plan
from ballonet.planning.planner import plan_pool
from tests.pools import DEMO, H100, UNKNOWN_CONFIG, spec

OFFLOAD = {"mode": "Enabled", "hostMemory": "64Gi"}


def planned(base: dict[str, Any] = H100, /, **changes: Any) -> Plan:
    return plan_pool("a", spec(base, **{"offload": OFFLOAD, **changes}))


@pytest.mark.parametrize(
    ("version", "data", "request_bytes", "shm_bytes"),
    [
        # 2 devices: 2 x 4 GiB of processes and 2 GiB of /dev/shm without offload
        ("0.19.1", 1, (8 + 2 + 64 + 2) * GIB, 2 * GIB),
        ("0.20.2", 1, (8 + 2 + 64 + 2) * GIB, (2 + 64) * GIB),
        ("0.32.0", 1, (8 + 2 + 64 + 2) * GIB, (2 + 64) * GIB),
        # 4 devices, and each of two engines has memory of its own
        ("0.32.0", 2, (16 + 4 + 128 + 2) * GIB, (4 + 128) * GIB),
    ],
)
def test_a_pod_asks_for_the_memory(
    version: str, data: int, request_bytes: int, shm_bytes: int
) -> None:
    plan = planned(engine={"version": version}, parallelism={"tensor": 2, "data": data})
    assert plan.pod is not None
    assert plan.pod.memory_request_bytes == request_bytes
    assert plan.pod.memory_limit_bytes is None
    assert plan.pod.shm_bytes == shm_bytes


def test_the_explanation_says_what_it_holds_and_that_it_is_no_slot() -> None:
    steps = {step.title: step for step in planned().steps}
    assert steps["Host memory"].formula == "floor(64.00 GiB / 4 MiB)"
    assert steps["Host memory"].value == "at least 16,384 blocks, no slot"
    assert all(step.title != "Host memory" for step in plan_pool("a", spec(H100)).steps)


def test_without_offload_nothing_changes() -> None:
    alone = plan_pool("a", spec(H100, offload={"mode": "Disabled", "hostMemory": "64Gi"}))
    never = plan_pool("a", spec(H100))
    assert alone.engine_args == never.engine_args
    assert alone.pod == never.pod
    single = plan_pool("a", spec(H100, parallelism={"tensor": 1}))
    assert single.pod is not None
    assert single.pod.shm_bytes == 256 * MIB


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"engine": {"version": "0.10.2"}}, "needs vLLM 0.11 or later and this is 0.10.2"),
        ({"parallelism": {"tensor": 1, "pipeline": 2}}, "stages of a pipeline"),
        (
            {"engine": {"version": "0.20.2"}, "parallelism": {"tensor": 16, "decodeContext": 2}},
            "without decode context parallel: use 0.21 or later",
        ),
        (
            {"engine": {"version": "0.11.0"}, "accelerator": {"type": "MI300X-192GB"}},
            "for NVIDIA GPUs only",
        ),
        (
            {"accelerator": {"type": "GB10-128GB"}, "parallelism": {"tensor": 1}},
            "the device takes its memory from that of the host",
        ),
        # Windows beside full attention: two tables.
        (
            {"engine": {"version": "0.20.2"}, "model": {"name": "openai/gpt-oss-20b"}},
            "switches the hybrid KV cache manager off",
        ),
        (
            {
                "model": {"name": "Qwen/Qwen3-Next-80B-A3B-Instruct"},
                "sequence": {"prefixCaching": "Disabled"},
            },
            "set spec.sequence.prefixCaching to Enabled",
        ),
        (
            {"offload": {"mode": "Enabled", "hostMemory": "1Mi"}},
            "takes 4 MiB, so none fits",
        ),
        # Told to the engine in thousandths of a GiB, it would be 0.
        (
            {
                "offload": {"mode": "Enabled", "hostMemory": "1Mi"},
                "model": {"name": "own/model", "config": {"inline": UNKNOWN_CONFIG}},
            },
            "give at least 2Mi",
        ),
    ],
)
def test_refused_where_it_cannot_help_or_breaks(changes: dict[str, Any], words: str) -> None:
    plan = planned(**changes)
    assert plan.spec_resolved.status is Status.FALSE
    assert plan.spec_resolved.reason is Reason.UNSUPPORTED_BY_ENGINE
    assert words in plan.spec_resolved.message
    assert "spec.offload" in plan.spec_resolved.message
    assert plan.gates is None


def test_refused_on_the_cpu_engine() -> None:
    plan = planned(DEMO)
    assert "keeps its blocks in host memory anyway" in plan.spec_resolved.message


@pytest.mark.parametrize("name", ["openai/gpt-oss-20b", "Qwen/Qwen3-Next-80B-A3B-Instruct"])
def test_layers_of_several_kinds_from_0_21(name: str) -> None:
    plan = planned(model={"name": name}, sequence={"prefixCaching": "Enabled"}, whenUnfit="Warn")
    assert "--kv-offloading-size" in plan.engine_args


def test_a_layout_that_is_not_understood_starts_where_the_size_is_told_in_bytes() -> None:
    model = {"name": "own/model", "config": {"inline": UNKNOWN_CONFIG}}
    assert "--kv-offloading-size" in planned(model=model).engine_args
    older = planned(model=model, engine={"version": "0.13.0"})
    assert older.spec_resolved.reason is Reason.UNSUPPORTED_BY_ENGINE


def test_it_does_not_help_where_one_sequence_is_too_long() -> None:
    small = {**H100, "budget": {"kvCacheMemoryPerRank": "1Gi"}}
    plan = planned(small)
    assert plan.budget_computed.reason is Reason.CEILING_DOES_NOT_FIT
    assert plan.verdict is Verdict.DOES_NOT_FIT
    assert "spec.offload does not help" in plan.budget_computed.message
    assert "spec.offload" not in plan_pool("a", spec(small)).budget_computed.message


@pytest.mark.parametrize(
    ("version", "args", "env", "words"),
    [
        ("0.32.0", ["--kv-transfer-config", "{}"], {}, "--kv-transfer-config fights"),
        ("0.32.0", ["--kv_transfer-conf={}"], {}, "--kv-transfer-config fights"),
        (
            "0.20.2",
            ["--no-disable-hybrid-kv-cache-manager"],
            {},
            "fights with spec.offload, whose connector does without",
        ),
        ("0.32.0", [], {"VLLM_USE_SIMPLE_KV_OFFLOAD": "1"}, "chooses another connector"),
        *(
            (
                "0.32.0",
                [],
                {name: "a:1,expandable_segments:True"},
                f"{name}=expandable_segments:True moves memory that spec.offload transfers",
            )
            for name in (
                "PYTORCH_ALLOC_CONF",
                "PYTORCH_CUDA_ALLOC_CONF",
                "PYTORCH_HIP_ALLOC_CONF",
            )
        ),
    ],
)
def test_arguments_and_variables_that_fight_with_it(
    version: str, args: list[str], env: dict[str, str], words: str
) -> None:
    variables = [{"name": name, "value": value} for name, value in env.items()]
    engine = {"version": version, "args": args, "env": variables}
    (sentence,) = planned(engine=engine).refused_arguments
    assert words in sentence
    assert plan_pool("a", spec(H100, engine=engine)).refused_arguments == ()


def test_the_managers_switch_is_no_fight_from_0_21() -> None:
    engine = {"version": "0.21.0", "args": ["--no-disable-hybrid-kv-cache-manager"]}
    assert planned(engine=engine).refused_arguments == ()
