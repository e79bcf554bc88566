"""When a watch counts as dead. How it works is tested against a server (test_app_operator)."""

from __future__ import annotations

from ballonet.app.settings import Settings
from ballonet.app.watch import HEARTBEAT_SECONDS, STREAM_AGE_SECONDS, Watch
from ballonet.cluster.connection import Connection


async def connect() -> Connection:
    raise AssertionError


def test_a_thread_that_does_not_move_is_named() -> None:
    seconds = 0.0
    watch = Watch(Settings(), connect, lambda _: None, clock=lambda: seconds)
    seconds = HEARTBEAT_SECONDS
    assert watch.problem() is None
    seconds += 1
    assert watch.problem() == "the watch has not moved for 61 s"


def test_a_stream_that_is_never_opened_again_is_named() -> None:
    seconds = 0.0
    watch = Watch(Settings(), connect, lambda _: None, clock=lambda: seconds)
    seconds = STREAM_AGE_SECONDS + 1
    watch._beat_at = seconds
    problem = watch.problem()
    assert problem is not None
    assert "the stream /apis/ballonet.io/v1alpha1/inferencepools has not been opened" in problem


def test_every_served_namespace_must_be_listed_before_the_process_is_ready() -> None:
    watch = Watch(Settings(namespaces=("a", "b")), connect, lambda _: None)
    assert not watch.listed
    watch._answered |= {path for path in watch._tried_at if "/namespaces/a/" in path}
    assert not watch.listed
    watch._answered |= {path for path in watch._tried_at if "/namespaces/b/" in path}
    assert watch.listed
