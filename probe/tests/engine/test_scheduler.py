"""The page against vLLM's own block tables, at every step of the real scheduler."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from probe.tests.engine.fixtures import Engine

pytestmark = pytest.mark.timeout(240)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("ProbedScheduler", []),
        ("ProbedAsyncScheduler", ["--asynchronous"]),
        ("ProbedScheduler", ["--groups", "sliding"]),
        ("ProbedAsyncScheduler", ["--groups", "sliding", "--asynchronous"]),
    ],
    ids=["one-group", "one-group-async", "sliding-window", "sliding-window-async"],
)
def test_blocks_add_up_at_every_step(engine: Engine, name: str, arguments: list[str]) -> None:
    result = engine.step(*arguments)
    assert result["class"] == name
    assert result["differing"] == []
    assert result["checks"] > 1000
    # The load fills the pool and is preempted; else nothing was shown.
    assert result["peak_used"] == 127
    assert result["preemptions"] >= 1
    assert (result["null_blocks_seen"] > 0) == ("sliding" in arguments)

    events: Counter[str] = Counter()
    by_role: Counter[str] = Counter()
    for role, event, count in re.findall(
        r'ballonet_seq_events_total\{[^}]*role="(\w*)",event="(\w+)"\} (\d+)', result["page"]
    ):
        events[event] += int(count)
        by_role[role] += int(count)
    expected = result["expected"]
    assert {key: events[key] for key in expected} == expected
    assert expected["aborted"] >= 1
    assert events["finished"] + events["aborted"] == events["arrived"]
    assert events["preempted"] == result["preemptions"]
    assert 0 < events["resumed"] <= events["preempted"]
    assert set(by_role) == {"planner", "worker"}


def test_an_engine_that_cannot_be_read_runs_on(engine: Engine) -> None:
    """A broken attribute ends the probe, and the load ends as without it."""
    whole = engine.step()
    broken = engine.step("--unreadable")
    assert "ballonet_probe_up" in broken["page"]
    assert re.search(r'ballonet_probe_up\{.*reason="AttributeError: [^"]+"\} 0', broken["page"])
    assert "ballonet_kv_blocks" not in broken["page"]
    assert broken["expected"] == whole["expected"]
    assert broken["steps"] == whole["steps"]
