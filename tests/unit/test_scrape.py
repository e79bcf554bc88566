"""Reading engine pods: real pages, impossible values, pods that do not behave."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path

import pytest
from aiohttp import web

from ballonet.api.conditions import Reason
from ballonet.engines.vllm import metric_names
from ballonet.planning.measured import EngineReport
from ballonet.telemetry.port import EngineSample, PodTarget, ScrapeFailure
from ballonet.telemetry.scrape import MAX_PAGE_BYTES, DirectScrape, InvalidPageError, sample

NOW = datetime(2026, 11, 30, tzinfo=UTC)
NAMES = metric_names("0.32.0")
# A whole page of vLLM 0.32.0 on CPU, taken after a fan-out with two preemptions.
REAL_PAGE = (Path(__file__).parent / "data" / "vllm_0.32.0_metrics.txt").read_text()

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def target(port: int = 8000) -> PodTarget:
    return PodTarget("ns", "p-0", "u", "127.0.0.1", port)


def read(page: str) -> EngineSample:
    return sample(target(), page, "0.32.0", NAMES, NOW)


def info(**labels: str) -> str:
    text = ",".join(f'{name}="{value}"' for name, value in labels.items())
    return f"vllm:cache_config_info{{{text}}} 1.0\n"


def gauge(name: str, value: object, engine: int = 0) -> str:
    return f'vllm:{name}{{engine="{engine}",model_name="m"}} {value}\n'


def test_a_real_page_is_read() -> None:
    seen = read(REAL_PAGE)
    assert seen.report == EngineReport(
        blocks=128, block_tokens=32, max_concurrency=Fraction(4), kv_cache_bytes=None
    )
    assert (seen.running, seen.waiting, seen.usage_per_mille, seen.preemptions) == (0, 0, 0, 2)
    assert seen.version == "0.32.0"
    assert seen.observed_at == NOW


def test_memory_is_reported_unless_an_override_of_the_blocks_makes_it_meaningless() -> None:
    page = info(num_gpu_blocks="128", block_size="32", kv_cache_memory_bytes="8388608")
    assert read(page).report == EngineReport(128, 32, None, 8388608)
    page = info(
        num_gpu_blocks="128",
        block_size="32",
        kv_cache_memory_bytes="8388608",
        num_gpu_blocks_override="128",
    )
    assert read(page).report == EngineReport(128, 32, None, None)


def test_the_blocks_of_several_engines_behind_one_server_are_divided() -> None:
    page = info(engine="0", num_gpu_blocks="300", block_size="16") + info(
        engine="1", num_gpu_blocks="300", block_size="16"
    )
    page += gauge("num_requests_running", 3, 0) + gauge("num_requests_running", 4, 1)
    page += gauge("kv_cache_usage_perc", 0.25, 0) + gauge("kv_cache_usage_perc", 0.75, 1)
    seen = read(page)
    assert seen.report is not None
    assert seen.report.blocks == 150
    assert seen.running == 7
    assert seen.usage_per_mille == 750


def test_a_block_that_spans_more_tokens_than_the_flag_says_counts_by_its_span() -> None:
    page = info(num_gpu_blocks="9", block_size="16", effective_attention_block_size="528")
    report = read(page).report
    assert report is not None
    assert report.block_tokens == 528


def test_what_is_absent_is_unknown_and_not_zero() -> None:
    seen = read(info(num_gpu_blocks="None", block_size="16"))
    assert seen.report is None
    assert (seen.running, seen.waiting, seen.usage_per_mille, seen.preemptions) == (None,) * 4
    seen = read(gauge("num_requests_running", 1))
    assert seen.report is None
    assert seen.running == 1


def test_a_series_whose_name_only_begins_alike_is_not_taken() -> None:
    page = info(num_gpu_blocks="9") + 'vllm:num_requests_waiting_by_reason{reason="capacity"} 7\n'
    assert read(page).waiting is None


@pytest.mark.parametrize(
    ("page", "words"),
    [
        (gauge("num_requests_running", "NaN"), "vllm:num_requests_running is nan"),
        (gauge("num_requests_running", -1), "vllm:num_requests_running is -1"),
        (gauge("num_requests_waiting", "+Inf"), "vllm:num_requests_waiting is inf"),
        (gauge("num_preemptions_total", -2), "vllm:num_preemptions_total is -2"),
        (gauge("kv_cache_usage_perc", 1.01), "not between 0 and 1"),
        (gauge("kv_cache_usage_perc", -0.1), "not between 0 and 1"),
        (gauge("kv_cache_usage_perc", "NaN"), "not between 0 and 1"),
        (info(num_gpu_blocks="0"), "num_gpu_blocks of the cache configuration is '0'"),
        (info(num_gpu_blocks="-5"), "num_gpu_blocks"),
        (info(num_gpu_blocks="12.5"), "num_gpu_blocks"),
        (info(num_gpu_blocks="many"), "num_gpu_blocks"),
        (info(num_gpu_blocks="1" + "0" * 15), "num_gpu_blocks"),
        (info(num_gpu_blocks="9" * 5000), "num_gpu_blocks"),
        (info(num_gpu_blocks="9", kv_cache_max_concurrency="1e999999999"), "max_concurrency"),
        (gauge("num_requests_running", "1e300"), "vllm:num_requests_running is 1e+300"),
        (info(num_gpu_blocks="9", kv_cache_max_concurrency="nan"), "kv_cache_max_concurrency"),
        (info(num_gpu_blocks="9", kv_cache_max_concurrency="-1"), "kv_cache_max_concurrency"),
        ("vllm:num_requests_running{engine= 3\n", "does not parse"),
        ("", "is it the engine's port?"),
        ("<html>welcome</html>", "is it the engine's port?"),
        ("node_cpu_seconds_total 3\n", "is it the engine's port?"),
    ],
)
def test_a_page_that_says_what_cannot_be_is_refused_by_name(page: str, words: str) -> None:
    with pytest.raises(InvalidPageError, match=re.escape(words)):
        read(page)


@pytest.fixture
async def scrape() -> AsyncIterator[DirectScrape]:
    source = DirectScrape(now=lambda: NOW, timeout_seconds=1.0)
    yield source
    await source.close()


@pytest.fixture
async def serve() -> AsyncIterator[Callable[..., Awaitable[PodTarget]]]:
    """Start a small engine on loopback with the given handlers by path."""
    runners: list[web.AppRunner] = []

    async def start(**handlers: Handler) -> PodTarget:
        app = web.Application()
        for name, handler in handlers.items():
            app.router.add_get(f"/{name}", handler)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        runners.append(runner)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return target(runner.addresses[0][1])

    yield start
    for runner in runners:
        await runner.cleanup()


def text(body: str, status: int = 200) -> Handler:
    async def handler(_: web.Request) -> web.Response:
        return web.Response(text=body, status=status)

    return handler


async def hang(_: web.Request) -> web.Response:
    await asyncio.Event().wait()
    raise AssertionError


async def test_an_engine_is_asked_for_its_metrics_and_its_version(
    scrape: DirectScrape, serve: Callable[..., Awaitable[PodTarget]]
) -> None:
    engine = await serve(metrics=text(REAL_PAGE), version=text('{"version": "0.32.0+cpu"}'))
    (seen,) = await scrape.read([engine], "0.32.0")
    assert isinstance(seen, EngineSample)
    assert seen.version == "0.32.0+cpu"
    assert seen.report is not None
    assert seen.report.blocks == 128


@pytest.mark.parametrize("answer", ["", "[]", '{"version": 7}', "x" * 5000])
async def test_an_engine_that_does_not_tell_its_version_is_read_all_the_same(
    scrape: DirectScrape, serve: Callable[..., Awaitable[PodTarget]], answer: str
) -> None:
    engine = await serve(metrics=text(REAL_PAGE), version=text(answer))
    (seen,) = await scrape.read([engine], "0.32.0")
    assert isinstance(seen, EngineSample)
    assert seen.version is None


async def test_outcomes_come_in_the_order_of_the_targets(
    scrape: DirectScrape, serve: Callable[..., Awaitable[PodTarget]]
) -> None:
    good = await serve(metrics=text(REAL_PAGE))
    bad = await serve(metrics=text("nothing here"))
    slow = await serve(metrics=hang)
    broken = await serve(metrics=text("", status=500))
    seen = await scrape.read([slow, good, bad, broken, target(1)], "0.32.0")
    assert isinstance(seen[1], EngineSample)
    failures = [one for one in seen if isinstance(one, ScrapeFailure)]
    assert [failure.reason for failure in failures] == [
        Reason.UNREACHABLE,
        Reason.INVALID_METRICS,
        Reason.UNREACHABLE,
        Reason.UNREACHABLE,
    ]
    assert failures[0].message == "pod p-0 did not answer within 1 s"
    assert failures[2].message == "pod p-0: /metrics answered with status 500"


async def test_a_redirect_is_not_followed(
    scrape: DirectScrape, serve: Callable[..., Awaitable[PodTarget]]
) -> None:
    asked: list[str] = []

    async def elsewhere(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response(text=REAL_PAGE)

    other = await serve(metrics=elsewhere)

    async def redirect(_: web.Request) -> web.Response:
        raise web.HTTPFound(f"http://127.0.0.1:{other.port}/metrics")

    engine = await serve(metrics=redirect)
    (seen,) = await scrape.read([engine], "0.32.0")
    assert isinstance(seen, ScrapeFailure)
    assert seen.reason is Reason.UNREACHABLE
    assert asked == []


async def test_a_page_without_an_end_is_cut_off(
    scrape: DirectScrape, serve: Callable[..., Awaitable[PodTarget]]
) -> None:
    sent = 0

    async def endless(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse()
        await response.prepare(request)
        line = b"vllm:num_requests_running 1\n" * 4096
        while True:
            await response.write(line)
            sent += len(line)

    engine = await serve(metrics=endless)
    (seen,) = await scrape.read([engine], "0.32.0")
    assert isinstance(seen, ScrapeFailure)
    assert seen.reason in (Reason.INVALID_METRICS, Reason.UNREACHABLE)
    assert sent < 8 * MAX_PAGE_BYTES
