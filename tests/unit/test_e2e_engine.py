"""The stub engine as a process of its own, under the load that the scenarios use."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from e2e.load.client import RequestFailedError, complete, read_gauges
from e2e.load.fanout import fan_out, planner_and_workers, sequences_of_budget
from e2e.load.steady import steady_load
from e2e.model import CONFIG_PATH, make_model, tokenizer

PROGRAM = Path(__file__).parents[2] / "e2e/images/stub_engine/vllm.py"
FLAGS = (
    "--host=127.0.0.1",
    "--port=0",
    "--served-model-name",
    "tiny",
    "--max-model-len=1024",
    "--block-size",
    "32",
    "--kv-cache-memory-bytes=8388608",
)


class Stub:
    """A running stub engine and its address."""

    def __init__(self, arguments: tuple[str, ...], environment: dict[str, str]) -> None:
        # -I and -S: the image has Python and nothing else.
        command = [sys.executable, "-I", "-S", str(PROGRAM), "serve", *arguments]
        self.process = subprocess.Popen(
            command, env=environment, stderr=subprocess.PIPE, text=True, bufsize=1
        )
        self.log: list[str] = []
        self.url = ""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line)
            if found := re.search(r"API server on port (\d+)", line):
                self.url = f"http://127.0.0.1:{found.group(1)}"
                break

    async def tell(self, **settings: Any) -> dict[str, Any]:
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{self.url}/stub", data=json.dumps(settings)) as response,
        ):
            assert response.status == 200, await response.text()
            state: dict[str, Any] = await response.json()
            return state

    async def get(self, path: str) -> tuple[int, str]:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{self.url}{path}", allow_redirects=False) as response,
        ):
            return response.status, (await response.read()).decode(errors="replace")

    def end(self) -> tuple[int, str]:
        """Wait for the process and return its exit code and what it logged."""
        assert self.process.stderr is not None
        rest = self.process.stderr.read()
        return self.process.wait(timeout=20), "".join(self.log) + rest


Start = Callable[..., Stub]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    model = make_model(tmp_path / "tiny")
    stubs: list[Stub] = []

    def begin(*flags: str, **environment: str) -> Stub:
        stubs.append(Stub((str(model), *FLAGS, *flags), environment))
        return stubs[-1]

    yield begin
    for stub in stubs:
        stub.process.kill()
        stub.process.wait()
        assert stub.process.stderr is not None
        stub.process.stderr.close()


async def eventually(stub: Stub, condition: Callable[[dict[str, Any]], bool]) -> None:
    for _ in range(500):
        if condition(await stub.tell()):
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"not within 10 s; last state: {await stub.tell()}")


async def test_reports_the_figures_that_vllm_0_32_reports_for_the_same_flags(start: Start) -> None:
    stub = start()
    status, page = await stub.get("/metrics")
    assert status == 200
    labels = dict(re.findall(r'(\w+)="([^"]*)"', page.split("vllm:cache_config_info{")[1]))
    # reference figures: the real engine with the tiny model, 8 MiB, blocks of 32, length 1,024
    assert labels["num_gpu_blocks"] == "128"
    assert labels["kv_cache_size_tokens"] == "4096"
    assert labels["kv_cache_max_concurrency"] == "4.0"
    assert "4,096 tokens, Maximum concurrency for 1,024 tokens per request: 4.00x" in "".join(
        stub.log
    )


async def test_data_parallel_engines_share_a_label_that_is_their_sum(start: Start) -> None:
    stub = start("--data-parallel-size=2")
    async with aiohttp.ClientSession() as session:
        gauges = await read_gauges(session, [f"{stub.url}/metrics"])
    assert 'num_gpu_blocks="256"' in (await stub.get("/metrics"))[1]
    assert gauges.usable_blocks == 127


def test_refuses_to_start_when_one_sequence_does_not_fit(start: Start) -> None:
    code, log = start("--kv-cache-memory-bytes=1048576").end()
    assert code == 1
    assert "To serve at least one request with the model's max seq len (1024)" in log
    assert "maximum model length is 480" in log


def test_crashes_at_start_with_the_given_lines(start: Start) -> None:
    stub = start(STUB_CRASH_LINES="libnuma.so.1: not found\nRuntimeError: boom", STUB_EXIT_CODE="7")
    code, log = stub.end()
    assert code == 7
    assert log.splitlines()[-2:] == ["libnuma.so.1: not found", "RuntimeError: boom"]


@pytest.mark.parametrize("spelling", ["--max-num-seqs=3", "--max_num_seqs=3"])
async def test_a_fan_out_over_the_limit_queues_and_finishes(start: Start, spelling: str) -> None:
    stub = start(spelling, STUB_SETTINGS='{"hold_seconds": 0.6}')
    result = await fan_out(stub.url, planner_and_workers(1024), model="tiny")
    assert (result.finished, result.failures) == (6, ())
    assert (result.peak_running, result.peak_waiting) == (3, 3)
    assert (result.peak_blocks, result.usable_blocks) == (96, 127)
    assert result.samples >= 1
    assert result.sample_errors == ()
    assert result.generated_tokens == 6 * (1024 - 600)
    assert result.preemptions == 0


async def test_without_a_reading_under_load_the_peaks_are_unknown_and_never_zero(
    start: Start,
) -> None:
    stub = start()
    await stub.tell(metrics={"num_requests_running": 0, "num_requests_waiting": 0})
    result = await fan_out(stub.url, planner_and_workers(1024), model="tiny")
    assert (result.finished, result.samples) == (6, 0)
    peaks = (result.peak_running, result.peak_waiting, result.peak_usage, result.peak_blocks)
    assert peaks == (None, None, None, None)


async def test_readings_that_fail_under_load_are_reported_beside_the_others(start: Start) -> None:
    stub = start(STUB_SETTINGS='{"hold_seconds": 60}')
    asked = 0

    async def page(_: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        if asked in (2, 3):
            return web.Response(status=500)
        running = 6 if asked == 4 else 0
        lines = (
            f'vllm:num_requests_running{{engine="0"}} {running}',
            'vllm:kv_cache_usage_perc{engine="0"} 0.5',
        )
        return web.Response(text="\n".join(lines))

    application = web.Application()
    application.router.add_get("/metrics", page)
    async with TestServer(application) as server:
        pages = [str(server.make_url("/metrics"))]
        fan = asyncio.create_task(
            fan_out(stub.url, planner_and_workers(1024), model="tiny", metrics_urls=pages)
        )
        await eventually(stub, lambda _: asked >= 4)
        await stub.tell(hold_seconds=0)
        result = await fan
    assert (result.finished, result.samples, result.peak_running) == (6, 1, 6)
    (error,) = result.sample_errors
    assert "500" in error


async def test_the_load_takes_its_shape_from_the_budget_document(start: Start) -> None:
    document = {
        "topologies": [
            {
                "name": "research",
                "roles": [
                    {"name": "planner", "count": 1, "maxTokens": 1024},
                    {"name": "worker", "count": 2, "maxTokens": 512},
                ],
            }
        ]
    }
    sequences = sequences_of_budget(document, runs=2)
    assert [(s.role, s.ceiling_tokens) for s in sequences] == [
        ("planner", 1024),
        ("worker", 512),
        ("worker", 512),
    ] * 2
    result = await fan_out(start().url, sequences, model="tiny")
    assert result.finished == 6


async def test_a_sequence_over_the_ceiling_is_refused(start: Start) -> None:
    result = await fan_out(start().url, planner_and_workers(2048, workers=0), model="tiny")
    assert result.finished == 0
    assert "cannot be greater than max_model_len=1024" in result.failures[0]


async def test_a_busy_engine_is_asked_again_and_the_retries_are_counted(start: Start) -> None:
    stub = start()
    await stub.tell(busy={"status": 503, "retry_after": 0.1})
    fan = asyncio.create_task(fan_out(stub.url, planner_and_workers(64, workers=1), model="tiny"))
    await eventually(stub, lambda state: state["rejected"] >= 2)
    await stub.tell(busy=None)
    result = await fan
    assert (result.finished, result.failures) == (2, ())
    assert result.retries >= 1


async def test_an_engine_that_stays_busy_fails_the_request(start: Start) -> None:
    stub = start()
    await stub.tell(busy={"status": 429, "retry_after": 0.1})
    async with aiohttp.ClientSession() as session:
        with pytest.raises(RequestFailedError, match="HTTP 429"):
            await complete(
                session, stub.url, model="tiny", prompt=[9], output_tokens=1, max_retries=2
            )


async def test_values_labels_health_and_version_change_while_it_runs(start: Start) -> None:
    stub = start()
    await stub.tell(
        metrics={"num_preemptions_total": 7, "kv_cache_usage_perc": "NaN"},
        cache_config={"num_gpu_blocks": "64", "kv_cache_max_concurrency": None},
        health=503,
        version="0.31.0",
    )
    page = (await stub.get("/metrics"))[1]
    assert 'vllm:num_preemptions_total{engine="0",model_name="tiny"} 7\n' in page
    assert 'vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} NaN\n' in page
    assert 'num_gpu_blocks="64"' in page
    assert "kv_cache_max_concurrency" not in page
    assert (await stub.get("/health"))[0] == 503
    assert json.loads((await stub.get("/version"))[1]) == {"version": "0.31.0"}
    await stub.tell(metrics={"num_preemptions_total": None})
    assert (
        'vllm:num_preemptions_total{engine="0",model_name="tiny"} 0'
        in (await stub.get("/metrics"))[1]
    )


@pytest.mark.parametrize(
    ("mode", "status", "present", "absent"),
    [
        ("garbage", 200, "not a number", "cache_config_info"),
        ("nan", 200, "} NaN", "} 0"),
        ("absent", 200, "python_info", "vllm:"),
        ("empty", 200, "", "vllm:"),
        ("error", 500, "Internal Server Error", "vllm:"),
        ("redirect", 302, "", "vllm:"),
    ],
)
async def test_the_metrics_page_can_be_broken(
    start: Start, mode: str, status: int, present: str, absent: str
) -> None:
    stub = start()
    await stub.tell(metrics_mode=mode)
    found, page = await stub.get("/metrics")
    assert found == status
    assert present in page
    assert absent not in page


async def test_a_hanging_metrics_page_answers_when_it_is_released(start: Start) -> None:
    stub = start()
    await stub.tell(metrics_mode="hang")
    page = asyncio.create_task(stub.get("/metrics"))
    done, _ = await asyncio.wait([page], timeout=0.5)
    assert not done
    await stub.tell(metrics_mode="normal")
    assert (await page)[0] == 200


async def test_an_unknown_setting_is_refused_by_name(start: Start) -> None:
    stub = start()
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{stub.url}/stub", data='{"helth": 200}') as response,
    ):
        assert response.status == 400
        assert "health" in await response.text()


async def test_termination_finishes_what_runs_and_takes_nothing_new(start: Start) -> None:
    stub = start(STUB_DRAIN_SECONDS="10", STUB_SETTINGS='{"hold_seconds": 1}')
    async with aiohttp.ClientSession() as session:
        request = asyncio.create_task(
            complete(session, stub.url, model="tiny", prompt=[9] * 8, output_tokens=8)
        )
        await eventually(stub, lambda state: state["running"] == 1)
        stub.process.terminate()
        answer = await request
    assert answer.generated_tokens == 8
    assert stub.end()[0] == 0
    steady = await steady_load(stub.url, model="tiny", seconds=0.2)
    assert steady.finished == 0
    assert steady.lost


async def test_a_steady_load_loses_nothing_on_a_healthy_engine(start: Start) -> None:
    steady = await steady_load(start().url, model="tiny", seconds=0.5)
    assert steady.lost == ()
    assert steady.finished >= 2


async def test_a_steady_load_reports_the_requests_that_a_crash_cuts(start: Start) -> None:
    stub = start(STUB_SETTINGS='{"hold_seconds": 30}')
    load = asyncio.create_task(steady_load(stub.url, model="tiny", seconds=0.1, clients=2))
    await eventually(stub, lambda state: state["running"] == 2)
    stub.process.kill()
    assert len((await load).lost) == 2


def test_the_tiny_model_has_round_kv_figures_and_a_complete_vocabulary(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    assert config == json.loads(CONFIG_PATH.read_text())
    layers, heads, size = (
        config[name] for name in ("num_hidden_layers", "num_key_value_heads", "head_dim")
    )
    assert 2 * layers * heads * size * 2 * 32 * 128 == 8 * 1024 * 1024
    vocabulary = tokenizer(config["vocab_size"])["model"]["vocab"]
    assert sorted(vocabulary.values()) == list(range(config["vocab_size"]))


def test_a_vocabulary_that_the_tokenizer_cannot_fill_is_refused() -> None:
    with pytest.raises(ValueError, match="vocab_size 5000: at most 4103"):
        tokenizer(5000)
