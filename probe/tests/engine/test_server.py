"""The probe in a whole `vllm serve`, as a pod starts it: a zip on PYTHONPATH."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from e2e.ports import free_port
from probe.tests.engine.fixtures import Engine

pytestmark = pytest.mark.timeout(280)
ROLES = json.dumps({"worker": {"ceilingTokens": 400, "compactAtTokens": 300}})


class Server:
    def __init__(self, port: int, probe_port: int, log: Path) -> None:
        self.port, self.probe_port, self.log = port, probe_port, log

    def page(self) -> str:
        url = f"http://127.0.0.1:{self.probe_port}/metrics"
        with urllib.request.urlopen(url, timeout=30) as answer:
            return str(answer.read().decode())

    def complete(self, name: str, tokens: int) -> None:
        prompt = [5] * 160 + [3 + (n * 7 + ord(name[-1])) % 400 for n in range(300)]
        body = {"model": "tiny", "prompt": prompt, "max_tokens": tokens, "ignore_eos": True}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json", "X-Request-Id": name},
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            answer.read()


@contextmanager
def serving(engine: Engine, folder: Path, probe_port: int, **environment: str) -> Iterator[Server]:
    port, log = free_port(), folder / "engine.log"
    variables = engine.environment(
        engine.probe,
        BALLONET_PROBE_HOST="127.0.0.1",
        BALLONET_PROBE_PORT=str(probe_port),
        BALLONET_PROBE_ROLES=ROLES,
        **environment,
    )
    command = [
        *(str(engine.bin / "vllm"), "serve", str(engine.model), "--served-model-name", "tiny"),
        *("--host", "127.0.0.1", "--port", str(port), "--max-model-len", "1024"),
        *("--block-size", "32", "--kv-cache-memory-bytes", str(8 << 20), "--enforce-eager"),
        *("--load-format", "dummy", "--enable-prefix-caching"),
    ]
    with log.open("w") as output:
        process = _start(command, variables, output)
        try:
            _wait_until_healthy(port, process, log)
            yield Server(port, probe_port, log)
        finally:
            process.terminate()
            process.wait(timeout=60)


def _start(
    command: list[str], variables: dict[str, str], output: IO[str]
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, env=variables, stdout=output, stderr=subprocess.STDOUT)


def _wait_until_healthy(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()[-3000:]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                return
        except OSError:
            time.sleep(0.5)
    raise AssertionError(f"not healthy after 200 s: {log.read_text()[-3000:]}")


def values(page: str, name: str) -> list[int]:
    return [int(value) for value in re.findall(rf"^{name}\{{.*\}} (\d+)$", page, re.M)]


def test_a_fan_out_adds_up_and_is_named(engine: Engine, tmp_path: Path) -> None:
    with serving(engine, tmp_path, free_port()) as server:
        names = [f"runA.{'worker' if n else 'planner'}.{n}" for n in range(6)]
        threads = [threading.Thread(target=server.complete, args=(one, 250)) for one in names]
        for thread in threads:
            thread.start()
        pages = []
        while any(thread.is_alive() for thread in threads):
            pages.append(server.page())
            time.sleep(0.05)
        for page in pages:
            (total,) = values(page, "ballonet_kv_blocks_total")
            (free,) = values(page, "ballonet_kv_blocks_free")
            assert sum(values(page, "ballonet_kv_blocks_in_use")) == total - free
        full = max(pages, key=lambda page: page.count('role="worker",phase="decode"'))
        assert full.count('run="runA",role="worker",phase="decode"') == 2 * 5
        assert max(max(values(page, "ballonet_running_peak")) for page in pages) == 6

        # A client that goes away takes its blocks with it.
        _complete_and_leave(server)
        _until(lambda: values(server.page(), "ballonet_kv_blocks_in_use") == [0, 0])
        page = server.page()
        events = dict(re.findall(r'events_total\{.*role="worker",event="(\w+)"\} (\d+)', page))
        assert events["finished"] == "5"
        assert events["aborted"] == "1"
        assert values(page, "ballonet_seq_ended_past_ceiling_total") == [6]


def test_a_taken_port_does_not_stop_the_engine(engine: Engine, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = int(taken.getsockname()[1])
        with serving(engine, tmp_path, port) as server:
            server.complete("runA.worker.1", 8)
            assert f"port {port} cannot be had" in server.log.read_text()


def _complete_and_leave(server: Server) -> None:
    body = {"model": "tiny", "prompt": [7] * 450, "max_tokens": 560, "ignore_eos": True}
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.port}/v1/completions",
        json.dumps(body | {"stream": True}).encode(),
        {"Content-Type": "application/json", "X-Request-Id": "runA.worker.9"},
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        answer.readline()


def _until(holds: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if holds():
            return
        time.sleep(0.05)
    raise AssertionError("did not come true")
