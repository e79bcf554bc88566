"""What agent runtimes read."""

from __future__ import annotations

import json

import pytest

from ballonet.planning.planner import plan_pool
from ballonet.planning.runtime_budget import config_map_data, runtime_budget
from tests.pools import DEMO, role, spec, topology


def test_the_document_of_the_demo() -> None:
    document = runtime_budget(plan_pool("demo", spec(model={"servedNames": ["tiny", "small"]})))
    assert document == {
        "apiVersion": "ballonet.io/v1alpha1",
        "kind": "RuntimeBudget",
        "pool": "demo",
        "source": "Given",
        "slots": 3,
        "enginesPerPod": 1,
        "ceilingTokens": 1024,
        "blockTokens": 32,
        "budgetBlocks": 114,
        "blocksPerSequence": 32,
        "verdict": "DoesNotFit",
        "topologies": [
            {
                "name": "research",
                "concurrentRuns": 1,
                "placement": "Sticky",
                "requiredSlots": 6,
                "roles": [
                    {"name": "planner", "count": 1, "maxTokens": 1024, "blocks": 32},
                    {"name": "worker", "count": 5, "maxTokens": 1024, "blocks": 32},
                ],
            }
        ],
        "sharedPrefixes": [],
        "servedNames": ["tiny", "small"],
        "endpoint": "http://demo:8000",
    }


def test_prefixes_and_phases_are_told() -> None:
    planner = role("planner", sharedPrefix="p", holdsSlotWhileWaiting="Never", maxTokens=512)
    document = runtime_budget(
        plan_pool(
            "demo",
            spec(
                DEMO,
                sharedPrefixes=[{"name": "p", "tokens": 64, "credit": "Declared"}],
                topologies=[topology(planner, role("worker", 2), runs=4)],
            ),
        )
    )
    (told,) = document["topologies"]
    assert (told["concurrentRuns"], told["requiredSlots"]) == (4, 2)
    assert told["roles"][0]["sharedPrefix"] == "p"
    assert told["roles"][0]["blocks"] == 16
    assert document["sharedPrefixes"] == [{"name": "p", "tokens": 64, "countedOnce": True}]


def test_variables_say_the_same_as_the_document() -> None:
    document = runtime_budget(plan_pool("demo", spec()))
    data = config_map_data(document)
    assert json.loads(data["budget.json"]) == document
    lines = dict(line.split("=", 1) for line in data["budget.env"].splitlines())
    assert lines["BALLONET_SLOTS"] == "3"
    assert lines["BALLONET_CEILING_TOKENS"] == "1024"
    assert lines["BALLONET_BLOCK_TOKENS"] == "32"
    assert lines["BALLONET_BUDGET_BLOCKS"] == "114"


def test_what_is_not_known_is_null_and_no_variable() -> None:
    args = {"engine": {"args": ["--enable-eplb"]}}
    document = runtime_budget(plan_pool("demo", spec(DEMO, **args)))
    assert document["budgetBlocks"] is None
    assert document["source"] is None
    assert "BALLONET_BUDGET_BLOCKS" not in config_map_data(document)["budget.env"]


def test_the_data_is_the_same_for_the_same_plan() -> None:
    first, second = (config_map_data(runtime_budget(plan_pool("d", spec()))) for _ in range(2))
    assert first == second


def test_nothing_is_said_of_a_pool_that_cannot_run() -> None:
    with pytest.raises(ValueError, match=r"spec\.engine\.version"):
        runtime_budget(plan_pool("demo", spec(engine={"version": "9.9.9"})))
