"""The whole operator process against an API server that misbehaves."""

from __future__ import annotations

import asyncio
import inspect
import json
import socket
from collections.abc import AsyncIterator, Callable

import aiohttp
import pytest

from ballonet.app.operator import Operator
from ballonet.app.settings import Settings, SettingsError
from ballonet.catalog import Catalog
from ballonet.cluster.lease import LeaseTakenError
from ballonet.cluster.port import Json, Kind
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.cluster import FakeCluster

pytestmark = pytest.mark.timeout(120)


def a_pool(name: str = "p", namespace: str = "ns") -> Json:
    return {
        "apiVersion": "ballonet.io/v1alpha1",
        "kind": "InferencePool",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {
            "model": {"name": "Qwen/Qwen3-32B"},
            "engine": {"type": "VLLM", "version": "0.32.0"},
            "accelerator": {"type": "H100-80GB"},
            "sequence": {"maxTokens": 1024},
        },
    }


class Harness:
    """A fake API server and the operators that run against it."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.api = FakeApiServer(self.cluster)
        self.operator: Operator | None = None
        self.running: asyncio.Task[int] | None = None

    def start(self, **settings: object) -> Operator:
        given = {"namespace": "system", "identity": "one", "listen": "127.0.0.1:0", **settings}
        self.operator = Operator(
            Settings.model_validate(given), Catalog.builtin(), self.api.connect
        )
        self.running = asyncio.create_task(self.operator.run())
        return self.operator

    async def stop(self) -> int:
        assert self.operator is not None
        assert self.running is not None
        self.operator.stop()
        return await asyncio.wait_for(self.running, 15)

    def deployment(self, name: str = "p", namespace: str = "ns") -> Json | None:
        return self.cluster.peek(Kind.DEPLOYMENT, namespace, name)

    async def ready(self) -> bool:
        return (await self.status_of("/readyz"))[0] == 200

    async def status_of(self, path: str) -> tuple[int, str]:
        assert self.operator is not None
        url = f"http://127.0.0.1:{self.operator.http.port}{path}"
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            return response.status, await response.text()


@pytest.fixture
async def harness(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Harness]:
    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found")

    # As in a container: its user has no name.
    monkeypatch.setattr("getpass.getuser", nobody)
    harness = Harness()
    await harness.api.start()
    yield harness
    if harness.running is not None:
        harness.running.cancel()
        await asyncio.gather(harness.running, return_exceptions=True)
    await harness.api.stop()


async def eventually(holds: Callable[[], object]) -> None:
    """Wait until something holds; it may be asynchronous."""
    for _ in range(2000):
        seen = holds()
        if await seen if inspect.isawaitable(seen) else seen:
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it did not come to hold")


async def test_a_pool_becomes_children_and_metrics_and_goes_with_its_series(
    harness: Harness,
) -> None:
    harness.start()
    harness.cluster.put(a_pool())
    await eventually(harness.deployment)
    await eventually(lambda: (harness.cluster.peek(Kind.POOL, "ns", "p") or {}).get("status"))
    assert await harness.status_of("/livez") == (200, "ok\n")
    # Lists of other kinds, and the end of the pass, may come after the status.
    await eventually(harness.ready)
    assert await harness.status_of("/readyz") == (200, "ok\n")
    series = 'ballonet_pool_condition{namespace="ns",pool="p",status="True",type="SpecResolved"} 1'

    async def series_there() -> bool:
        return series in (await harness.status_of("/metrics"))[1]

    await eventually(series_there)
    harness.cluster.remove(Kind.POOL, "ns", "p")
    harness.cluster.collect_garbage()

    async def series_gone() -> bool:
        return 'name="p"' not in (await harness.status_of("/metrics"))[1]

    await eventually(series_gone)
    assert await harness.stop() == 0


async def test_a_child_changed_by_hand_is_put_back(harness: Harness) -> None:
    harness.start()
    harness.cluster.put(a_pool())
    await eventually(harness.deployment)
    harness.cluster.remove(Kind.DEPLOYMENT, "ns", "p")
    await eventually(harness.deployment)


async def test_only_the_named_namespaces_are_served_and_asked_for(harness: Harness) -> None:
    harness.start(namespaces="a,b")
    for namespace in ("a", "b", "c"):
        harness.cluster.put(a_pool(namespace=namespace))
    await eventually(
        lambda: harness.deployment(namespace="a") and harness.deployment(namespace="b")
    )
    assert harness.deployment(namespace="c") is None
    wide = [
        request
        for request in harness.api.requests
        if request.startswith(("GET", "WATCH"))
        and request.endswith(tuple(kind.plural for kind in Kind))
        and "/namespaces/" not in request
    ]
    assert wide == []
    assert not any("customresourcedefinitions" in request for request in harness.api.requests)
    assert not any(request.endswith("/namespaces") for request in harness.api.requests)


async def test_a_clean_stop_lets_go_of_the_lease(harness: Harness) -> None:
    harness.start()
    await eventually(lambda: harness.cluster.peek(Kind.LEASE, "system", "ballonet"))
    assert await harness.stop() == 0
    lease = harness.cluster.peek(Kind.LEASE, "system", "ballonet")
    assert lease is not None
    assert lease["spec"]["holderIdentity"] == ""


async def test_a_standby_is_ready_and_writes_nothing_but_its_turn_comes(harness: Harness) -> None:
    harness.start()
    await eventually(lambda: harness.cluster.peek(Kind.LEASE, "system", "ballonet"))
    first, running = harness.operator, harness.running
    assert first is not None
    assert running is not None
    harness.start(identity="two")
    await eventually(lambda: harness.operator is not None and harness.operator.http.port)
    await eventually(harness.ready)
    assert "ballonet_leader 0.0" in (await harness.status_of("/metrics"))[1]
    first.stop()
    assert await asyncio.wait_for(running, 15) == 0
    harness.cluster.put(a_pool())
    await eventually(harness.deployment)
    assert "ballonet_leader 1.0" in (await harness.status_of("/metrics"))[1]


async def test_a_lease_that_another_took_ends_the_process(harness: Harness) -> None:
    harness.start()
    await eventually(lambda: harness.cluster.peek(Kind.LEASE, "system", "ballonet"))

    def take(lease: Json) -> None:
        lease["spec"]["holderIdentity"] = "another"

    harness.cluster.edit(Kind.LEASE, "system", "ballonet", take)
    harness.cluster.put(a_pool("late"))
    assert harness.running is not None
    with pytest.raises(LeaseTakenError):
        await asyncio.wait_for(harness.running, 20)


async def test_an_address_that_is_taken_is_a_setting_that_cannot_be_used(harness: Harness) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        harness.start(listen=address)
        assert harness.running is not None
        with pytest.raises(SettingsError, match=f"BALLONET_LISTEN='{address}': .*in use"):
            await asyncio.wait_for(harness.running, 20)


async def test_a_missing_crd_is_named_and_waited_for(harness: Harness) -> None:
    harness.api.crd = False
    operator = harness.start()
    await eventually(lambda: operator.http.port)

    async def named() -> bool:
        return "not served" in (await harness.status_of("/readyz"))[1]

    await eventually(named)
    answer = await harness.status_of("/readyz")
    assert answer[0] == 503
    assert (
        "inferencepools.ballonet.io in version v1alpha1 is not served: apply the CRD" in answer[1]
    )
    assert (await harness.status_of("/livez"))[0] == 200
    harness.api.crd = True
    harness.cluster.put(a_pool())
    await eventually(harness.deployment)


@pytest.mark.parametrize("status", [403, 410, 429, 500])
@pytest.mark.parametrize("watch", [False, True])
async def test_refused_lists_and_watches_are_tried_again(
    harness: Harness, status: int, watch: bool
) -> None:
    headers = {"Retry-After": "1"} if status == 429 else {}
    harness.api.fail(status, words="inferencepools", watch=watch, headers=headers)
    harness.start()
    harness.cluster.put(a_pool("before"))
    await eventually(lambda: not harness.api.faults_left)
    harness.cluster.put(a_pool("after"))
    await eventually(lambda: harness.deployment("before") and harness.deployment("after"))


@pytest.mark.parametrize(
    "line",
    [
        json.dumps({"type": "ERROR", "object": {"kind": "Status", "code": 410}}),
        json.dumps({"type": "ERROR", "object": {"kind": "Status", "code": 500}}),
        '{"type": "MODIFIED", "object": {"met',
    ],
)
async def test_a_stream_that_says_nonsense_is_opened_anew(harness: Harness, line: str) -> None:
    harness.start()
    harness.cluster.put(a_pool("before"))
    await eventually(lambda: harness.deployment("before"))
    await eventually(lambda: harness.api.say(Kind.POOL, line.encode() + b"\n"))
    harness.api.cut()
    harness.cluster.put(a_pool("after"))
    await eventually(lambda: harness.deployment("after"))


async def test_refused_writes_are_tried_again(harness: Harness) -> None:
    for status in (409, 500):
        harness.api.fail(status, method="PATCH", words="deployments")
    harness.start()
    harness.cluster.put(a_pool())
    await eventually(harness.deployment)


async def test_a_server_that_goes_away_for_a_while_is_caught_up_with(harness: Harness) -> None:
    harness.start()
    harness.cluster.put(a_pool("before"))
    await eventually(lambda: harness.deployment("before"))
    await harness.api.stop()
    harness.cluster.put(a_pool("meanwhile"))
    # Long enough for the right to act to end.
    await asyncio.sleep(12)
    assert harness.deployment("meanwhile") is None
    assert (await harness.status_of("/livez"))[0] == 200
    await harness.api.start()
    await eventually(lambda: harness.deployment("meanwhile"))


async def test_a_rotated_token_is_picked_up_by_streams_and_calls(harness: Harness) -> None:
    harness.start()
    harness.cluster.put(a_pool("before"))
    await eventually(lambda: harness.deployment("before"))
    harness.api.token = "second"
    harness.api.cut()
    harness.cluster.put(a_pool("after"))
    await eventually(lambda: harness.deployment("after"))
