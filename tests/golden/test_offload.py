"""The arguments that give each version of vLLM host memory for KV blocks.

Read in the sources of the versions: ``config/vllm.py`` (_post_init_kv_transfer_config),
``v1/kv_offload/cpu.py`` up to 0.19.1 and ``v1/kv_offload/cpu/spec.py`` after, and
``kv_connector/factory.py``.
"""

from __future__ import annotations

import pytest

from ballonet.engines.vllm import render_args
from ballonet.engines.vllm_versions import flags
from ballonet.planning.plan import Plan
from ballonet.planning.planner import plan_pool
from tests.pools import H100, spec

# 64 layers x 2 x 8 heads x 128 x 2 bytes x 16 tokens = 4 MiB a block, over both ranks.
BLOCKS = 64 * 2**30 // (4 * 2**20)
CONNECTOR = [
    "--kv-transfer-config",
    '{"kv_connector":"OffloadingConnector","kv_role":"kv_both",'
    f'"kv_connector_extra_config":{{"num_cpu_blocks":{BLOCKS}}}}}',
]
FLAGS = ["--kv-offloading-size", "64", "--kv-offloading-backend", "native"]
WITHOUT_MANAGER = [*FLAGS, "--disable-hybrid-kv-cache-manager"]

EXPECTED = {
    **dict.fromkeys(("0.11.0", "0.11.2", "0.12.0", "0.13.0"), CONNECTOR),
    **dict.fromkeys(
        ("0.14.1", "0.15.1", "0.16.0", "0.17.1", "0.18.1", "0.19.1", "0.20.0", "0.20.2"),
        WITHOUT_MANAGER,
    ),
    **dict.fromkeys(
        (
            *("0.21.0", "0.22.1", "0.23.0", "0.24.0", "0.25.1", "0.26.0", "0.27.1", "0.28.0"),
            *("0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0"),
        ),
        FLAGS,
    ),
}


def planned(version: str, memory: str = "64Gi") -> Plan:
    pool = spec(H100, engine={"version": version}, whenUnfit="Warn")
    with_memory = spec(
        H100,
        engine={"version": version},
        whenUnfit="Warn",
        offload={"mode": "Enabled", "hostMemory": memory},
    )
    without, plan = plan_pool("a", pool), plan_pool("a", with_memory)
    assert without.gates is not None
    # Nothing else of the plan changes: not one slot comes from host memory.
    assert (plan.available_slots, plan.max_concurrent) == (
        without.available_slots,
        without.max_concurrent,
    )
    assert plan.engine_args[: len(without.engine_args)] == without.engine_args
    return plan


@pytest.mark.parametrize("version", EXPECTED)
def test_arguments_of_a_version(version: str) -> None:
    plan = planned(version)
    assert plan.gates is not None
    written = list(plan.engine_args)
    ours = written[-len(EXPECTED[version]) :]
    assert ours == EXPECTED[version]
    assert written == list(render_args(plan.gates, version))
    assert {word for word in ours if word.startswith("--")} <= flags(version)


@pytest.mark.parametrize(
    ("memory", "size"),
    [("1Gi", "1"), ("1536Mi", "1.5"), ("100G", "93.132"), ("8191Mi", "7.999"), ("1Ti", "1024")],
)
def test_sizes_are_never_rounded_up(memory: str, size: str) -> None:
    args = planned("0.32.0", memory).engine_args
    assert args[args.index("--kv-offloading-size") + 1] == size
