"""Merging partial pod templates, and telling a change from what others added."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ballonet.reconcile.merge import covers, fingerprint, merge

VALUES = st.recursive(
    st.integers() | st.booleans() | st.text(max_size=3),
    lambda inner: (
        st.dictionaries(st.sampled_from("abc"), inner, max_size=3) | st.lists(inner, max_size=3)
    ),
    max_leaves=8,
)


def test_containers_and_variables_are_merged_by_name_and_the_upper_layer_wins() -> None:
    base = {
        "containers": [
            {"name": "engine", "image": "old", "env": [{"name": "A", "value": "1"}]},
            {"name": "sidecar"},
        ]
    }
    over = {
        "containers": [{"name": "engine", "image": "new", "env": [{"name": "A", "value": "2"}]}]
    }
    assert merge(base, over) == {
        "containers": [
            {"name": "engine", "image": "new", "env": [{"name": "A", "value": "2"}]},
            {"name": "sidecar"},
        ]
    }


def test_lists_without_a_key_are_replaced() -> None:
    assert merge({"args": ["a", "b"]}, {"args": ["c"]}) == {"args": ["c"]}


@given(VALUES, VALUES)
def test_what_was_merged_on_top_is_covered(base: Any, over: Any) -> None:
    merged = merge({"x": base}, {"x": over})
    assert covers(merged, {"x": over})


@given(VALUES)
def test_everything_covers_itself(value: Any) -> None:
    assert covers({"x": value}, {"x": value})


@pytest.mark.parametrize(
    ("live", "desired", "same"),
    [
        ({"limits": {"memory": "4Gi"}}, {"limits": {"memory": "4294967296"}}, True),
        ({"limits": {"cpu": "500m"}}, {"limits": {"cpu": "0.5"}}, True),
        ({"limits": {"memory": "4Gi"}}, {"limits": {"memory": "5Gi"}}, False),
        ({"sizeLimit": "1Gi"}, {"sizeLimit": "1073741824"}, True),
        ({"env": [{"name": "A"}, {"name": "added"}]}, {"env": [{"name": "A"}]}, True),
        ({"env": [{"name": "B"}]}, {"env": [{"name": "A"}]}, False),
        ({"args": ["a", "b"]}, {"args": ["a"]}, False),
        ({"a": 1, "defaulted": 2}, {"a": 1}, True),
        ({}, {"a": {}}, True),
        ({"a": 1}, {"a": {}}, False),
        ({}, {"a": []}, True),
        ({"a": [1]}, {"a": []}, False),
        (None, {"a": 1}, False),
        ({"env": [{"name": "A"}]}, {"env": [{"name": "A", "value": ""}]}, True),
        ({}, {"priorityClassName": ""}, True),
        ({}, {"initialDelaySeconds": 0}, True),
        ({}, {"hostNetwork": False}, True),
        ({}, {"automountServiceAccountToken": False}, False),
        ({"priorityClassName": "high"}, {"priorityClassName": ""}, False),
        (
            {"ports": [{"containerPort": 1, "protocol": "UDP"}]},
            {"ports": [{"containerPort": 1}]},
            False,
        ),
    ],
)
def test_a_change_is_told_from_what_others_added(live: Any, desired: Any, same: bool) -> None:
    assert covers(live, desired) is same


@given(st.dictionaries(st.text(max_size=2), st.integers(), min_size=2, max_size=4))
def test_a_fingerprint_does_not_depend_on_order(value: dict[str, int]) -> None:
    assert fingerprint(value) == fingerprint(dict(reversed(value.items())))
    assert fingerprint(value) != fingerprint({**value, "one more": 1})
