"""Every remedy makes its pool fit, whatever the model, the device and the runs."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ballonet.api.status import Verdict
from ballonet.planning.planner import plan_pool
from tests.pools import H100, patched_spec, role, spec, topology

# Full attention, windows, states, latents, latents with an index.
MODELS = (
    {"name": "Qwen/Qwen3-32B"},
    {"name": "google/gemma-3-27b-it", "weights": {"memory": "51Gi"}},
    {"name": "openai/gpt-oss-20b"},
    {"name": "Qwen/Qwen3-Next-80B-A3B-Instruct"},
    {"name": "deepseek-ai/DeepSeek-V3", "weights": {"memory": "160Gi"}},
    {"name": "deepseek-ai/DeepSeek-V3.2", "weights": {"memory": "160Gi"}},
)


@st.composite
def pools(draw: st.DrawFn) -> dict[str, Any]:
    planner = role("planner", draw(st.integers(1, 3)), sharedPrefix="p")
    worker = role(
        "worker",
        draw(st.integers(1, 12)),
        maxTokens=draw(st.integers(4096, 16_384)),
        sharedPrefix="p",
    )
    if draw(st.booleans()):
        planner["holdsSlotWhileWaiting"] = "Never"
    if draw(st.booleans()):
        worker["startsWith"] = "planner"
    run = topology(planner, worker, runs=draw(st.integers(1, 30)))
    return {
        "model": draw(st.sampled_from(MODELS)),
        "engine": {"version": draw(st.sampled_from(["0.14.0", "0.22.1", "0.28.0", "0.32.0"]))},
        "accelerator": {"type": draw(st.sampled_from(["L4-24GB", "H100-80GB", "H200-141GB"]))},
        "parallelism": {
            "tensor": draw(st.sampled_from([1, 2, 4])),
            "data": draw(st.sampled_from([1, 1, 1, 2])),
        },
        "sequence": {"maxTokens": draw(st.integers(16_384, 65_536))},
        "sharedPrefixes": [{"name": "p", "tokens": draw(st.integers(1, 4096))}],
        "topologies": [{**run, "placement": draw(st.sampled_from(["Sticky", "Spread"]))}],
        "reservedSlots": draw(st.integers(0, 2)),
        "replicas": draw(st.integers(0, 4)),
    }


@given(pools())
@settings(max_examples=60)
def test_every_remedy_makes_the_plan_fit(pool: dict[str, Any]) -> None:
    plan = plan_pool("p", spec(H100, **pool))
    assert not plan.remedies or plan.verdict is not Verdict.FITS
    names = [remedy.name for remedy in plan.remedies]
    assert len(set(names)) == len(names)
    for remedy in plan.remedies:
        after = plan_pool("p", patched_spec(plan.spec, remedy.patch), with_remedies=False)
        assert after.verdict is Verdict.FITS, remedy
        assert set(after.refused_arguments) <= set(plan.refused_arguments)
        assert after.available_slots is not None
        assert after.available_slots >= after.required_slots
