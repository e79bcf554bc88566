"""Broken rules are told at the element that breaks them."""

from __future__ import annotations

from typing import Any

import pytest

from ballonet.api.parse import InvalidPoolError
from ballonet.planning.remedies import apply_merge_patch
from ballonet.planning.validation import checked_spec
from tests.pools import DEMO, role, topology


def problems(name: str = "demo", **changes: Any) -> tuple[str, ...]:
    pool = {"metadata": {"name": name}, "spec": apply_merge_patch(DEMO, changes)}
    with pytest.raises(InvalidPoolError) as caught:
        checked_spec(pool)
    return caught.value.problems


def test_a_right_pool_is_read() -> None:
    read = checked_spec({"metadata": {"name": "demo"}, "spec": DEMO})
    assert read.sequence.max_tokens == 1024


def test_each_role_above_the_ceiling_is_named() -> None:
    roles = topology(
        role("planner", maxTokens=4096), role("worker"), role("critic", maxTokens=1025)
    )
    found = problems(topologies=[topology(role("a"), name="first"), roles])
    assert [line.split(":")[0] for line in found] == [
        "spec.topologies[1].roles[0].maxTokens",
        "spec.topologies[1].roles[2].maxTokens",
    ]
    assert "4096 is above spec.sequence.maxTokens 1024" in found[0]


def test_a_prefix_that_is_not_declared_is_named_with_those_that_are() -> None:
    found = problems(
        sharedPrefixes=[{"name": "system", "tokens": 32}],
        topologies=[topology(role("planner", sharedPrefix="sistem"))],
    )
    assert found == (
        "spec.topologies[0].roles[0].sharedPrefix: sistem is not one of spec.sharedPrefixes "
        "(system)",
    )


def test_prefixes_longer_than_role_or_pool_are_named() -> None:
    found = problems(
        sharedPrefixes=[{"name": "p", "tokens": 2048}],
        topologies=[topology(role("planner", sharedPrefix="p", maxTokens=512))],
    )
    assert any(line.startswith("spec.topologies[0].roles[0].sharedPrefix: p") for line in found)
    assert any(line.startswith("spec.sharedPrefixes[0].tokens: 2048") for line in found)


@pytest.mark.parametrize("count", [0, -1, 10_001, "5", 1.5, True, None])
def test_counts_that_are_none(count: Any) -> None:
    (found,) = problems(topologies=[{"name": "t", "roles": [{"name": "w", "count": count}]}])
    assert found.startswith("spec.topologies[0].roles[0].count: ")


def test_cpu_needs_memory_and_an_image() -> None:
    found = problems(budget=None, engine={"image": None})
    assert [line.split(":")[0] for line in found] == [
        "spec.budget.kvCacheMemoryPerRank",
        "spec.engine.image",
    ]


@pytest.mark.parametrize("name", ["Demo", "1demo", "de mo", "a" * 64, "demo-", "", "dé"])
def test_illegal_names(name: str) -> None:
    assert problems(name) and "metadata.name" in problems(name)[0]


def test_fields_that_are_missing_or_of_another_type() -> None:
    assert problems(sequence=None) == ("spec.sequence: Field required",)
    (found,) = problems(topologies="none")
    assert found.startswith("spec.topologies: ")
