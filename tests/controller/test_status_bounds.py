"""A status stays small whatever its parts say, and the same while they say the same."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ballonet.api.conditions import FINDING_TYPES, Finding, Reason, Status
from ballonet.api.status import MAX_EVIDENCE, MAX_REMEDIES, MAX_STATUS_BYTES, InferencePoolStatus
from ballonet.cluster.port import Json
from ballonet.diagnosis.diagnose import Diagnosis, Evidence
from ballonet.diagnosis.findings import CHAIN
from ballonet.diagnosis.levers import Advice
from ballonet.diagnosis.observation import Sequences
from ballonet.planning.plan import Remedy
from ballonet.reconcile.decide import Decision
from ballonet.reconcile.live import Said
from ballonet.reconcile.running import Running
from ballonet.reconcile.status import build
from e2e.harness.pools import a_pool
from tests.controller.world import INSTALLATION, NAMESPACE, World, fitting

# Three bytes each, as people's texts may have.
LONG = "…" * 2000


def built(world: World, messages: str, **parts: Any) -> Json:
    findings = dict.fromkeys(FINDING_TYPES, Finding(Status.FALSE, Reason.INTERNAL_ERROR, messages))
    decision = Decision(findings, Running(findings, **parts))
    return build(world.pool(), decision, None, INSTALLATION, world.engines.now)


@pytest.mark.parametrize("messages", ["short", LONG])
async def test_a_status_whose_parts_are_all_at_their_bounds_stays_small(messages: str) -> None:
    world = World()
    world.cluster.put(a_pool().build(NAMESPACE))
    evidence = tuple(Evidence(rule.name, LONG) for rule in CHAIN)[:MAX_EVIDENCE]
    patch = {"spec": {"x": "y" * 900}}
    status = built(
        world,
        messages,
        remedies=tuple(Remedy(f"R{n}", LONG, patch, "x") for n in range(MAX_REMEDIES)),
        said=Said.of(Diagnosis(evidence[0].name, evidence, {}), Advice("Replicas", LONG, patch)),
    )
    text = json.dumps(status, ensure_ascii=False, separators=(",", ":"))
    assert len(text.encode()) <= MAX_STATUS_BYTES
    InferencePoolStatus.model_validate(status)
    assert {c["type"] for c in status["conditions"]} >= {str(kind) for kind in FINDING_TYPES}
    # What the verdict rests on is no addition.
    assert status["diagnosis"]["evidence"][0]["name"] == evidence[0].name
    assert status["diagnosis"]["lever"]["name"] == "Replicas"


async def test_evidence_that_is_cut_short_is_written_once() -> None:
    world = World()
    pool = fitting().build(NAMESPACE)
    pool["spec"]["metrics"] = {"perSequence": "Enabled"}
    roles = {f"role-{n}-{'x' * 50}": 3 for n in range(20)}
    world.engines.sequences = Sequences(count=1, tokens=9, longest_tokens=9)
    world.cluster.put(pool)
    await world.settle()
    assert world.condition("KVPressure")[1] != "RoleCeilingExceeded"
    world.engines.sequences = Sequences(
        count=9, tokens=900, longest_tokens=300, past_ceiling=roles, ended_past_ceiling={}
    )
    while world.condition("KVPressure")[1] != "RoleCeilingExceeded":
        assert world.engines.now.hour < 1
        world.pass_time(15)
        await world.reconcile()
    assert world.condition("KVPressure") == ("False", "RoleCeilingExceeded")
    world.cluster.writes.clear()
    for _ in range(4):
        world.pass_time(15)
        await world.reconcile()
    assert world.cluster.writes == []
