"""Who a request says it is; ids as vLLM 0.28.0 and 0.32.0 make them of a client's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ballonet_probe.plugin import is_known
from ballonet_probe.snapshot import tags


def a_request(request_id: str, *, session: str | None = None, **extra: Any) -> Any:
    return SimpleNamespace(
        request_id=request_id,
        session_id=session,
        sampling_params=SimpleNamespace(extra_args=extra or None),
    )


@pytest.mark.parametrize(
    ("request_id", "expected"),
    [
        ("cmpl-runA.worker.3-0-9667b8f6", ("runA", "worker")),
        ("chatcmpl-runA.planner.4-b8b4d855", ("runA", "planner")),
        ("1_cmpl-runC.worker.9-0-9667b8f6", ("runC", "worker")),
        ("cmpl-run-a.worker-0-9667b8f6", ("run-a", "worker")),
        ("cmpl-5f0a1c-0-9667b8f6", ("", "")),
        ("chatcmpl-b8b4d855", ("", "")),
    ],
)
def test_a_request_id_of_run_and_role(request_id: str, expected: tuple[str, str]) -> None:
    assert tags(a_request(request_id)) == expected


def test_arguments_of_the_request_go_first_then_the_session() -> None:
    given = a_request("cmpl-x.y.1-0-1", session="s", ballonet_run="r", ballonet_role="planner")
    assert tags(given) == ("r", "planner")
    assert tags(a_request("cmpl-5f0a-0-1", session="s")) == ("s", "")
    assert tags(a_request("cmpl-x.worker.1-0-1", session="s")) == ("s", "worker")


def test_long_text_and_numbers_are_cut_to_labels() -> None:
    run, role = tags(a_request("x" * 3000, ballonet_run="r" * 3000, ballonet_role=7))
    assert (run, role) == ("r" * 64, "7")


@pytest.mark.parametrize(
    "value",
    [["a"] * 9, {"a": 1}, 0.5, pytest.param(10**5000, id="too large to be written"), None, b"run"],
)
def test_what_is_no_name_is_none(value: Any) -> None:
    given = a_request("cmpl-x.y.1-0-1", ballonet_run=value, ballonet_role=value)
    assert tags(given) == ("x", "y")


def test_a_request_without_sampling_has_no_tags() -> None:
    assert tags(SimpleNamespace(request_id="emb-1", sampling_params=None)) == ("", "")


@pytest.mark.parametrize(
    ("version", "known"),
    [
        ("0.16.0", False),
        ("0.17.0", True),
        ("0.32.0", True),
        ("0.33.1", True),
        ("0.34.0", False),
        ("1.0.0", False),
        ("dev", False),
    ],
)
def test_versions(version: str, known: bool) -> None:
    assert is_known(version) is known
