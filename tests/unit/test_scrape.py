"""Reading engine pods: real pages, impossible values, pods that do not behave."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime

import pytest
from aiohttp import web

from ballonet.api.conditions import Reason
from ballonet.telemetry.port import EngineSample, PodTarget, ScrapeFailure
from ballonet.telemetry.scrape import MAX_PAGE_BYTES, DirectScrape
from tests.pages import REAL_PAGE

NOW = datetime(2026, 11, 30, tzinfo=UTC)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def target(port: int = 8000) -> PodTarget:
    return PodTarget("ns", "p-0", "u", "127.0.0.1", port)


@pytest.fixture
async def scrape() -> AsyncIterator[DirectScrape]:
    # With the limit of every day: a shorter one is passed where the machine is busy.
    source = DirectScrape(now=lambda: NOW)
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
    (seen,) = await scrape.read([engine])
    assert isinstance(seen, EngineSample)
    assert seen.version == "0.32.0+cpu"
    assert seen.report is not None
    assert seen.report.blocks == 128


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "[]",
        '{"version": 7}',
        r'{"version": "0.32.0\ud800"}',
        r'{"version": "0.32.0\u001b[31m"}',
        '{"version": "%s"}' % ("1" * 65),
        "x" * 5000,
        "[" * 4000,
    ],
)
async def test_an_engine_that_does_not_tell_its_version_is_read_all_the_same(
    scrape: DirectScrape, serve: Callable[..., Awaitable[PodTarget]], answer: str
) -> None:
    engine = await serve(metrics=text(REAL_PAGE), version=text(answer))
    (seen,) = await scrape.read([engine])
    assert isinstance(seen, EngineSample)
    assert seen.version is None


async def test_a_process_is_asked_for_its_version_once(
    scrape: DirectScrape, serve: Callable[..., Awaitable[PodTarget]]
) -> None:
    asked, began = 0, "1.7959547e+09"

    async def version(_: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        return web.Response(text=json.dumps({"version": f"0.32.{asked}"}))

    async def metrics(_: web.Request) -> web.Response:
        lines = [line for line in REAL_PAGE.splitlines() if "process_start_time" not in line]
        return web.Response(text="\n".join([*lines, f"process_start_time_seconds {began}", ""]))

    engine = await serve(metrics=metrics, version=version)
    seen = [(await scrape.read([engine]))[0] for _ in range(3)]
    assert [one.version for one in seen if isinstance(one, EngineSample)] == ["0.32.1"] * 3
    # Another process in the same pod may be of another version.
    began = "1.7959548e+09"
    (after,) = await scrape.read([engine])
    assert isinstance(after, EngineSample)
    assert (after.version, asked) == ("0.32.2", 2)


async def test_outcomes_come_in_the_order_of_the_targets(
    scrape: DirectScrape, serve: Callable[..., Awaitable[PodTarget]]
) -> None:
    good = await serve(metrics=text(REAL_PAGE))
    bad = await serve(metrics=text("nothing here"))
    slow = await serve(metrics=hang)
    broken = await serve(metrics=text("", status=500))
    seen = await scrape.read([slow, good, bad, broken, target(1)])
    assert isinstance(seen[1], EngineSample)
    failures = [one for one in seen if isinstance(one, ScrapeFailure)]
    assert [failure.reason for failure in failures] == [
        Reason.UNREACHABLE,
        Reason.INVALID_METRICS,
        Reason.UNREACHABLE,
        Reason.UNREACHABLE,
    ]
    assert failures[0].message == "no answer within 5 s"
    assert failures[2].message == "/metrics answered with status 500"


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
    (seen,) = await scrape.read([engine])
    assert isinstance(seen, ScrapeFailure)
    assert seen.reason is Reason.UNREACHABLE
    assert asked == []


async def test_a_page_that_is_compressed_unasked_is_not_unfolded(
    scrape: DirectScrape, serve: Callable[..., Awaitable[PodTarget]]
) -> None:
    async def bomb(_: web.Request) -> web.Response:
        body = gzip.compress(REAL_PAGE.encode())
        return web.Response(body=body, headers={"Content-Encoding": "gzip"})

    (seen,) = await scrape.read([await serve(metrics=bomb)])
    assert isinstance(seen, ScrapeFailure)
    assert seen.reason is Reason.INVALID_METRICS


async def test_what_answers_otherwise_than_in_http_is_not_quoted(scrape: DirectScrape) -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-s3cret\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        (seen,) = await scrape.read([target(server.sockets[0].getsockname()[1])])
    assert isinstance(seen, ScrapeFailure)
    assert seen.reason is Reason.UNREACHABLE
    assert "HTTP" in seen.message
    assert "s3cret" not in seen.message


@pytest.mark.parametrize(
    "body", [b"Content-Length: 99\r\n\r\n%s", b"Transfer-Encoding: chunked\r\n\r\nff\r\n%s"]
)
async def test_of_an_answer_that_breaks_off_no_number_is_told(
    scrape: DirectScrape, body: bytes
) -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n" + body % b"vllm:num_requests_running 1\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        (seen,) = await scrape.read([target(server.sockets[0].getsockname()[1])])
    assert isinstance(seen, ScrapeFailure)
    assert seen.reason is Reason.UNREACHABLE
    assert seen.message == "/metrics was not answered to its end"


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
    (seen,) = await scrape.read([engine])
    assert isinstance(seen, ScrapeFailure)
    assert seen.reason in (Reason.INVALID_METRICS, Reason.UNREACHABLE)
    assert sent < 8 * MAX_PAGE_BYTES
