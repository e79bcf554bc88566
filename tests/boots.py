"""Boots of one configuration, for tests of what plans make of them."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from ballonet.engines.vllm_written import Limits, written_limits
from ballonet.planning.configuration import configuration
from ballonet.planning.plan import Plan
from ballonet.planning.planner import plan_pool
from ballonet.planning.receipts import NO_RECEIPTS, Boot, CompileCache, Receipts
from tests.pools import spec

LLAMA: dict[str, Any] = {
    "model": {"name": "meta-llama/Llama-3.1-8B-Instruct"},
    "engine": {"version": "0.32.0"},
    "accelerator": {"type": "H100-80GB"},
    "sequence": {"maxTokens": 32_768},
}
PREDICTED = plan_pool("pool", spec(LLAMA))
BLOCK_BYTES = 2 * 2**20


def usual_bytes(plan: Plan = PREDICTED) -> int:
    assert plan.memory is not None and plan.memory.usual_bytes is not None
    return plan.memory.usual_bytes


def limits_of(plan: Plan) -> Limits:
    return written_limits(plan.engine_args)


def boot(number: int = 0, size: int | None = None, **changes: Any) -> Boot:
    made = Boot(
        configuration=configuration(PREDICTED.spec, None, PREDICTED.engine_args),
        model="meta-llama/Llama-3.1-8B-Instruct",
        version="0.32.0",
        accelerator="H100-80GB",
        image="sha256:" + "ab" * 32,
        device="NVIDIA-H100-80GB-HBM3 81559",
        limits=limits_of(PREDICTED),
        pod_uid=f"{number:08x}-0000-4000-8000-000000000000",
        restarts=0,
        started_at=f"{datetime(2026, 1, 1) + timedelta(minutes=number):%Y-%m-%dT%H:%M:%SZ}",
        kv_cache_bytes=usual_bytes() if size is None else size,
        blocks=max(1, (usual_bytes() if size is None else size) // BLOCK_BYTES),
        start_seconds=40 + number % 7,
        compile_cache=CompileCache.COLD,
    )
    return replace(made, **changes)


def kept(*boots: Boot) -> Receipts:
    receipts = NO_RECEIPTS
    for one in boots:
        receipts = receipts.with_boots([one])
    return receipts
