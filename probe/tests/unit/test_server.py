"""The page over a real socket, whatever other clients do."""

from __future__ import annotations

import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from ballonet_probe.server import serve
from ballonet_probe.settings import Settings
from e2e.ports import free_port

PROBE: Any = SimpleNamespace(local_rank=0, page=lambda: "ballonet_probe_up 1\n")


@pytest.fixture
def port() -> Iterator[int]:
    found = serve(PROBE, Settings(host="127.0.0.1", port=free_port()))
    assert found is not None
    return found


def get(port: int, path: str = "/metrics") -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
        return str(answer.read().decode())


def test_the_page_is_served_and_nothing_else(port: int) -> None:
    assert get(port) == get(port, "/metrics?x=1") == PROBE.page()
    with pytest.raises(urllib.error.HTTPError, match="404"):
        get(port, "/")


def test_a_client_that_sends_a_byte_now_and_then_is_let_go(port: int) -> None:
    ended, stop = threading.Event(), threading.Event()

    def drip() -> None:
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(b"GET /metrics HTTP/1.1\r\nX-Slow: ")
            try:
                while not stop.wait(0.1):
                    client.sendall(b"x")
            except OSError:
                ended.set()

    dripping = threading.Thread(target=drip)
    dripping.start()
    try:
        assert get(port) == PROBE.page()
        assert ended.wait(30)
    finally:
        stop.set()
        dripping.join()


def test_no_name_service_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_service(_: str = "") -> str:
        raise AssertionError("the engine would wait for a name service that is away")

    monkeypatch.setattr(socket, "getfqdn", no_service)
    port = serve(PROBE, Settings(port=free_port()))
    assert port is not None
    assert get(port) == PROBE.page()


def test_a_port_that_is_taken_serves_nothing_and_harms_nothing(port: int) -> None:
    assert serve(PROBE, Settings(host="127.0.0.1", port=port)) is None
    assert get(port) == PROBE.page()


def test_a_port_beyond_the_last_serves_nothing() -> None:
    second: Any = SimpleNamespace(local_rank=1, page=PROBE.page)
    assert serve(second, Settings(host="127.0.0.1", port=65535)) is None


def test_a_host_that_is_none_serves_nothing() -> None:
    assert serve(PROBE, Settings(host="no.such.host.invalid", port=free_port())) is None
