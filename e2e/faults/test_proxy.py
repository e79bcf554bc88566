"""The proxy against a small TLS server: what passes through, what does not, what is counted."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from aiohttp import web

from e2e.cluster.pki import Authority
from e2e.faults.proxy import (
    Answer,
    Call,
    Cut,
    FaultProxy,
    Hang,
    Upstream,
    any_call,
    watches,
    writes,
)
from e2e.harness.poll import eventually, never

POOLS = "/apis/ballonet.io/v1alpha1/namespaces/a/inferencepools"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    authority = Authority(tmp_path_factory.mktemp("pki") / "ca")
    authority.create()
    return authority


@pytest.fixture(scope="module")
def upstream(authority: Authority) -> Iterator[Upstream]:
    """A server that echoes what it was asked and streams one watch event at once."""
    pair = authority.server("upstream", ["127.0.0.1"])
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.certificate, pair.key)
    loop = asyncio.new_event_loop()
    port: list[int] = []
    ready = threading.Event()

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        if "watch=true" in request.query_string:
            response = web.StreamResponse()
            response.enable_chunked_encoding()
            await response.prepare(request)
            await response.write(b'{"type":"ADDED"}\n')
            await asyncio.sleep(0.2)
            await response.write(b'{"type":"MODIFIED"}\n')
            await response.write_eof()
            return response
        body = (await request.read()).decode()
        return web.json_response(
            {
                "method": request.method,
                "target": request.raw_path,
                "token": request.headers.get("Authorization"),
                "body": body,
            },
            status=201 if request.method == "POST" else 200,
        )

    async def start() -> web.ServerRunner:
        runner = web.ServerRunner(web.Server(handle))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        port.append(runner.addresses[0][1])
        ready.set()
        return runner

    def serve() -> None:
        asyncio.set_event_loop(loop)
        runner = loop.run_until_complete(start())
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())
        loop.close()

    thread = threading.Thread(target=serve)
    thread.start()
    assert ready.wait(10)
    yield Upstream(f"https://127.0.0.1:{port[0]}", authority.certificate)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)


@pytest.fixture
def proxy(authority: Authority, upstream: Upstream) -> Iterator[FaultProxy]:
    pair = authority.server("proxy", ["127.0.0.1"])
    with FaultProxy(upstream, pair.certificate, pair.key) as proxy:
        yield proxy


class Caller:
    def __init__(self, proxy: FaultProxy, ca_file: Path) -> None:
        self.proxy = proxy
        self.context = ssl.create_default_context(cafile=str(ca_file))

    def open(
        self, method: str, target: str, body: bytes | None = None, timeout: float = 5
    ) -> bytes:
        request = urllib.request.Request(
            self.proxy.url + target,
            data=body,
            method=method,
            headers={"Authorization": "Bearer t"},
        )
        with urllib.request.urlopen(request, timeout=timeout, context=self.context) as answer:
            data: bytes = answer.read()
            return data


@pytest.fixture
def caller(proxy: FaultProxy, authority: Authority) -> Caller:
    return Caller(proxy, authority.certificate)


def test_method_target_body_and_token_pass_through_unchanged(caller: Caller) -> None:
    answer = json.loads(caller.open("PATCH", POOLS + "/p?fieldManager=x%2Fy&force=true", b"{}"))
    assert answer == {
        "method": "PATCH",
        "target": POOLS + "/p?fieldManager=x%2Fy&force=true",
        "token": "Bearer t",
        "body": "{}",
    }


def test_a_watch_is_streamed_event_by_event(caller: Caller) -> None:
    assert caller.open("GET", POOLS + "?watch=true").count(b"\n") == 2


def test_writes_are_counted_and_leases_are_not(proxy: FaultProxy, caller: Caller) -> None:
    caller.open("PATCH", POOLS + "/p", b"{}")
    caller.open("PATCH", POOLS + "/p", b"{}")
    caller.open("PUT", "/apis/coordination.k8s.io/v1/namespaces/a/leases/l", b"{}")
    caller.open("GET", POOLS)
    assert proxy.count() == {f"PATCH {POOLS}/p": 2}
    assert proxy.count(any_call).total() == 4


def test_the_next_matching_requests_get_the_fault_and_then_no_more(
    proxy: FaultProxy, caller: Caller
) -> None:
    rule = proxy.inject(writes, Answer(429, retry_after_seconds=7), times=1)
    caller.open("GET", POOLS)
    with pytest.raises(urllib.error.HTTPError) as refused:
        caller.open("POST", POOLS, b"{}")
    assert refused.value.code == 429
    assert refused.value.headers["Retry-After"] == "7"
    assert json.load(refused.value)["reason"] == "TooManyRequests"
    caller.open("POST", POOLS, b"{}")
    assert rule.hits == 1


def test_a_cut_connection_gives_no_answer(proxy: FaultProxy, caller: Caller) -> None:
    proxy.inject(any_call, Cut(), times=1)
    with pytest.raises((OSError, ConnectionError)):
        caller.open("GET", POOLS)
    assert caller.open("GET", POOLS)


def test_a_cut_after_the_server_lets_the_write_happen(proxy: FaultProxy, caller: Caller) -> None:
    reached: list[int] = []
    proxy.hook_writes(after=lambda number, _call: reached.append(number))
    proxy.inject(writes, Cut(after_upstream=True), times=1)
    with pytest.raises((OSError, ConnectionError)):
        caller.open("PATCH", POOLS + "/p", b"{}")
    assert reached == [1]


def test_a_hanging_request_ends_when_the_proxy_heals(proxy: FaultProxy, caller: Caller) -> None:
    rule = proxy.inject(watches, Hang())
    with ThreadPoolExecutor(1) as threads:
        hanging = threads.submit(caller.open, "GET", POOLS + "?watch=true", timeout=30)
        try:
            eventually(lambda: rule.hits == 1, "the request hangs")
            never(hanging.done, "the request was answered", seconds=0.5)
        finally:
            proxy.heal()
        with pytest.raises(OSError):
            hanging.result()
    assert caller.open("GET", POOLS + "?watch=true")


def test_hooks_run_before_and_after_the_nth_write(proxy: FaultProxy, caller: Caller) -> None:
    seen: list[str] = []
    proxy.hook_writes(
        before=lambda number, call: seen.append(f"before {number} {call.method}"),
        after=lambda number, call: seen.append(f"after {number} {call.method}"),
    )
    caller.open("GET", POOLS)
    caller.open("POST", POOLS, b"{}")
    caller.open("DELETE", POOLS + "/p")
    assert seen == ["before 1 POST", "after 1 POST", "before 2 DELETE", "after 2 DELETE"]


def test_a_proxy_that_went_away_refuses_connections_and_comes_back_on_the_same_port(
    proxy: FaultProxy, caller: Caller
) -> None:
    port = proxy.port
    proxy.go_away()
    with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port), 2):
        pass
    proxy.heal()
    assert proxy.port == port
    assert caller.open("GET", POOLS)


def test_a_watch_is_recognised_by_its_query() -> None:
    assert Call("GET", POOLS, "resourceVersion=1&watch=true").is_watch
    assert not Call("GET", POOLS, "limit=5").is_watch
