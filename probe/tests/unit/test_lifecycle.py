"""What is counted of sequences that somebody ended from outside."""

from __future__ import annotations

from typing import Any

import pytest

from ballonet_probe.lifecycle import Lifecycle
from ballonet_probe.settings import Settings


class Request:
    def __init__(self, name: str) -> None:
        self.request_id = name
        self.num_tokens = 100
        self.ended = False

    def is_finished(self) -> bool:
        return self.ended


@pytest.mark.parametrize(
    ("told", "counted"),
    [
        ("a", 1),
        (["a", "b", "unknown"], 2),
        (("a",), 1),
        ({"a", "b"}, 2),
        (None, 3),
        # It was read to its end by the engine: all are looked through.
        (iter(()), 3),
    ],
)
def test_aborted_sequences_are_counted_once(told: Any, counted: int) -> None:
    lifecycle = Lifecycle(Settings())
    requests = [Request(name) for name in "abcd"]
    for request in requests:
        lifecycle.arrived(request)
    for request in requests[:3]:
        request.ended = True
    lifecycle.aborted(told)
    assert lifecycle.events["aborted", ""] == counted
    lifecycle.aborted(told)
    assert lifecycle.events["aborted", ""] == counted
    lifecycle.aborted(None)
    assert lifecycle.events["aborted", ""] == 3
