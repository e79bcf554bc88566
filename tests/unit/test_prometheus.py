"""Reading engine pods out of a Prometheus: a real HTTP server that answers as one does."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import gzip
import json
import re
import socket
import ssl
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ballonet.api.conditions import Reason
from ballonet.engines.vllm_metrics import METRICS
from ballonet.telemetry.connections import MAX_CONNECTIONS, Connections, PrometheusConnection
from ballonet.telemetry.port import EngineSample, PodTarget, ScrapeFailure
from ballonet.telemetry.prometheus import PERIOD_SECONDS, PrometheusSource
from ballonet.telemetry.rounds import Limits
from ballonet.telemetry.scrape import read_page
from tests.certificates import certificate
from tests.pages import REAL_PAGE

# The client of Prometheus alone takes half a minute to import on a machine under load.
pytestmark = pytest.mark.timeout(180)

Json = dict[str, Any]
# Some scrape, not now: the source must go by what Prometheus says.
SCRAPED = datetime(2026, 11, 30, 12, tzinfo=UTC)
INFO = 'vllm:cache_config_info{engine="0",num_gpu_blocks="128",block_size="32"} 1\n'


def target(name: str = "p-0", namespace: str = "ns") -> PodTarget:
    return PodTarget(namespace, name, f"uid-{name}", "10.0.0.1", 8000)


def page(running: float = 3, usage: object = 0.5) -> str:
    return (
        f'{INFO}vllm:num_requests_running{{engine="0",model_name="m"}} {running}\n'
        f'vllm:kv_cache_usage_perc{{engine="0",model_name="m"}} {usage}\n'
    )


@dataclass
class FakePrometheus:
    """Scraped samples, and answers to the queries that are made of them."""

    scrapes: list[tuple[float, dict[str, str], str]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: set[str] = field(default_factory=set)
    answer: Callable[[BaseHTTPRequestHandler], bool] | None = None
    url: str = ""
    server: ThreadingHTTPServer | None = None

    def scrape(self, text: str, pod: str = "p-0", seconds: float = 0, **labels: str) -> None:
        """Note what a pod said, so many seconds after SCRAPED."""
        instance = {"namespace": "ns", "pod": pod, "instance": f"{pod}:8000", "job": "vllm"}
        self.scrapes.append((SCRAPED.timestamp() + seconds, instance | labels, text))

    def result(self, query: str) -> list[Json]:
        if re.match(r"(sum|max) by", query):
            return self.aggregate(query)
        match = re.fullmatch(r"([\w:]+)\{(.*)\}\[\d+s\]", query)
        assert match is not None, query
        return [
            {"metric": {"__name__": match[1], **dict(key)}, "values": samples}
            for key, samples in self.samples(match[1], match[2]).items()
        ]

    def samples(self, name: str, selector: str) -> dict[Any, list[Any]]:
        wanted = dict(re.findall(r'(\w+)="(.*?)"', selector))
        found: dict[Any, list[Any]] = {}
        for at, labels, text in self.scrapes:
            for family in text_string_to_metric_families(text):
                for one in family.samples:
                    everything = {**one.labels, **labels}
                    if one.name == name and wanted.items() <= everything.items():
                        key = tuple(sorted(everything.items()))
                        found.setdefault(key, []).append([at, str(one.value)])
        return found

    def aggregate(self, query: str) -> list[Json]:
        match = re.search(r"by \((.*?)\) \(last_over_time\(([\w:]+)\{(.*?)\}", query)
        assert match is not None, query
        groups: dict[Any, list[float]] = {}
        for key, samples in self.samples(match[2], match[3]).items():
            labels = {k: v for k, v in key if k in match[1].split(",")}
            groups.setdefault(tuple(labels.items()), []).append(float(samples[-1][1]))
        fold = sum if query.startswith("sum") else max
        # An aggregate bears the time of the query.
        return [
            {"metric": dict(key), "value": [time.time(), str(fold(values))]}
            for key, values in groups.items()
        ]


@pytest.fixture
def prometheus() -> Iterator[FakePrometheus]:
    fake = FakePrometheus()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            split = urlsplit(self.path)
            query = parse_qs(split.query).get("query", [""])[0]
            fake.asked.append(query)
            fake.paths.add(split.path)
            fake.headers.append(dict(self.headers))
            if fake.answer is not None and fake.answer(self):
                return
            send(self, json.dumps({"status": "success", "data": {"result": fake.result(query)}}))

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    fake.server = server
    fake.url = f"http://127.0.0.1:{server.server_port}"
    yield fake
    server.shutdown()
    server.server_close()
    thread.join()


def send(handler: BaseHTTPRequestHandler, body: str, status: int = 200, **headers: str) -> None:
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(body.encode())


@dataclass
class Asking:
    """A source with one connection, ``main``, and a clock of its own."""

    source: PrometheusSource
    file: Path
    seconds: float = 0.0

    async def read(
        self, *targets: PodTarget, connection: str = "main"
    ) -> list[EngineSample | ScrapeFailure]:
        return await self.source.read(targets or (target(),), connection)

    async def next_round(self) -> None:
        """Go on to the next round and wait for it, as nobody does who reads after a failure."""
        self.seconds += PERIOD_SECONDS
        await self.read()
        for begun in self.source._rounds.values():
            await asyncio.gather(asyncio.wrap_future(begun.future), return_exceptions=True)

    async def failure(self) -> ScrapeFailure:
        (outcome,) = await self.read()
        assert isinstance(outcome, ScrapeFailure)
        return outcome


@pytest.fixture
def limits() -> Limits:
    return Limits(query_seconds=30, round_seconds=60, answer_bytes=100_000)


@pytest.fixture
def asking(prometheus: FakePrometheus, tmp_path: Path, limits: Limits) -> Iterator[Asking]:
    file = tmp_path / "connections.yaml"
    write(file, prometheus.url)
    made = Asking(
        PrometheusSource(Connections(str(file)), monotonic=lambda: made.seconds, limits=limits),
        file,
    )
    yield made
    made.source.close()


def write(file: Path, url: str, **settings: object) -> None:
    file.write_text(json.dumps({"connections": [{"name": "main", "url": url, **settings}]}))


async def test_prometheus_says_of_a_pod_what_the_pod_says_itself(
    prometheus: FakePrometheus, asking: Asking
) -> None:
    prometheus.scrape(REAL_PAGE)
    (seen,) = await asking.read()
    assert isinstance(seen, EngineSample)
    direct = read_page(REAL_PAGE, SCRAPED)
    assert (seen.report, seen.observation) == (direct.report, direct.observation)
    assert seen.version is None


async def test_one_query_a_series_is_made_for_all_pods_in_a_period(
    prometheus: FakePrometheus, asking: Asking
) -> None:
    for n in range(3):
        prometheus.scrape(page(running=n), pod=f"p-{n}")
    seen = await asyncio.gather(*(asking.read(target(f"p-{n}")) for n in range(3)))
    assert [one.observation.running for (one,) in seen if isinstance(one, EngineSample)] == [
        0,
        1,
        2,
    ]
    assert len(prometheus.asked) == len(METRICS.series())
    asking.seconds = PERIOD_SECONDS - 1
    await asking.read()
    assert len(prometheus.asked) == len(METRICS.series())
    asking.seconds = PERIOD_SECONDS
    await asking.read()
    assert len(prometheus.asked) == 2 * len(METRICS.series())


async def test_a_pod_is_seen_at_the_time_of_its_newest_scrape(
    prometheus: FakePrometheus, asking: Asking
) -> None:
    prometheus.scrape(page(running=1, usage=0.1), seconds=0)
    prometheus.scrape(page(running=2, usage=0.2), seconds=15)
    (seen,) = await asking.read()
    assert isinstance(seen, EngineSample)
    assert seen.observation.at == SCRAPED + timedelta(seconds=15)
    assert (seen.observation.running, seen.observation.usage_per_mille) == (2, 200)


async def test_a_pod_that_is_scraped_too_rarely_is_never_fresh_one_time_and_stale_another(
    prometheus: FakePrometheus, asking: Asking
) -> None:
    prometheus.scrape(page(), seconds=0)
    prometheus.scrape(page(), seconds=60)
    failure = await asking.failure()
    assert failure.reason is Reason.NO_SERIES
    assert "more than 45 s apart" in failure.message


async def test_figures_of_two_scrapes_are_not_mixed(
    prometheus: FakePrometheus, asking: Asking
) -> None:
    prometheus.scrape(page(running=1, usage=0.1), seconds=0)

    def scraped_meanwhile(_: BaseHTTPRequestHandler) -> bool:
        if len(prometheus.asked) == 2:
            prometheus.scrape(page(running=9, usage=0.9), seconds=15)
        return False

    prometheus.answer = scraped_meanwhile
    (seen,) = await asking.read()
    assert isinstance(seen, EngineSample)
    assert (seen.observation.running, seen.observation.usage_per_mille) == (1, 100)


async def test_a_series_that_has_ended_is_absent(
    prometheus: FakePrometheus, asking: Asking
) -> None:
    prometheus.scrape(page() + 'vllm:num_requests_waiting{engine="0"} 7\n', seconds=0)
    prometheus.scrape(page(), seconds=15)
    (seen,) = await asking.read()
    assert isinstance(seen, EngineSample)
    assert seen.observation.waiting is None


async def test_a_pod_without_fresh_series_is_told_by_what_was_looked_for(
    prometheus: FakePrometheus, asking: Asking
) -> None:
    prometheus.scrape(page(), pod="other")
    failure = await asking.failure()
    assert failure.reason is Reason.NO_SERIES
    assert "namespace=ns and pod=p-0" in failure.message


async def test_a_pod_that_is_scraped_twice_is_not_counted_twice(
    prometheus: FakePrometheus, asking: Asking
) -> None:
    for job, seconds in (("pods", 0.0), ("services", 4.0), ("pods", 15.0), ("services", 19.0)):
        prometheus.scrape(page(), seconds=seconds, job=job)
    failure = await asking.failure()
    assert failure.reason is Reason.AMBIGUOUS_METRICS
    assert "job 'pods' and 'services'" in failure.message


async def test_engines_of_a_pod_that_are_scraped_one_by_one_are_added_up(
    prometheus: FakePrometheus, asking: Asking
) -> None:
    for engine, seconds in ((0, 0.0), (1, 4.0), (0, 15.0), (1, 19.0)):
        text = page(running=2 + engine).replace('engine="0"', f'engine="{engine}"')
        prometheus.scrape(text, seconds=seconds, instance=f"10.0.0.1:{8000 + engine}")
    (seen,) = await asking.read()
    assert isinstance(seen, EngineSample)
    assert (seen.observation.running, seen.observation.engines) == (5, 2)
    assert {n: one.running for n, one in seen.observation.by_engine.items()} == {"0": 2, "1": 3}
    # The older of both: nothing of it is newer than it says.
    assert seen.observation.at == SCRAPED + timedelta(seconds=15)


async def test_a_pod_that_was_scraped_under_another_address_before_is_one_pod(
    prometheus: FakePrometheus, asking: Asking
) -> None:
    prometheus.scrape(page(running=1), seconds=0, instance="10.0.0.1:8000")
    prometheus.scrape(page(running=2), seconds=15, instance="10.0.0.2:8000")
    (seen,) = await asking.read()
    assert isinstance(seen, EngineSample)
    assert seen.observation.running == 2


@pytest.mark.parametrize("value", ["NaN", "-1", "1.5", "+Inf"])
async def test_a_pod_that_lies_does_not_take_others_along(
    prometheus: FakePrometheus, asking: Asking, value: str
) -> None:
    prometheus.scrape(page(usage=value), pod="liar")
    prometheus.scrape(page(), pod="p-0")
    liar, good = await asking.read(target("liar"), target("p-0"))
    assert isinstance(liar, ScrapeFailure)
    assert liar.reason is Reason.INVALID_METRICS
    assert isinstance(good, EngineSample)


@pytest.mark.parametrize("limits", [Limits(query_seconds=60, round_seconds=600)])
@pytest.mark.parametrize("name", ["vllm:num_requests_running", "vllm:num_requests_waiting"])
async def test_a_pod_of_many_thousand_series_does_not_take_others_along(
    prometheus: FakePrometheus, asking: Asking, name: str
) -> None:
    def flood(handler: BaseHTTPRequestHandler) -> bool:
        query = prometheus.asked[-1]
        found = prometheus.result(query)
        if query.startswith(f"{name}{{"):
            at = SCRAPED.timestamp()
            place = {"namespace": "ns", "pod": "flood", "instance": "flood:8000", "job": "vllm"}
            found += [
                {"metric": {**place, "request": str(n)}, "values": [[at, "1"]]}
                for n in range(10_000)
            ]
        send(handler, json.dumps({"status": "success", "data": {"result": found}}))
        return True

    prometheus.scrape(page(), pod="flood")
    prometheus.scrape(page(), pod="p-0")
    prometheus.answer = flood
    flooded, good = await asking.read(target("flood"), target("p-0"))
    assert isinstance(flooded, ScrapeFailure)
    assert flooded.reason is Reason.INVALID_METRICS
    assert "more series of it than any engine" in flooded.message
    assert isinstance(good, EngineSample)


async def test_a_series_of_a_kind_that_engines_do_not_have_is_absent(
    prometheus: FakePrometheus, asking: Asking
) -> None:
    def histogram(handler: BaseHTTPRequestHandler) -> bool:
        found = prometheus.result(prometheus.asked[-1])
        odd = {"metric": {"namespace": "ns", "pod": "odd"}, "histograms": [[1, {"count": "3"}]]}
        send(handler, json.dumps({"status": "success", "data": {"result": [odd, *found]}}))
        return True

    prometheus.scrape(page())
    prometheus.answer = histogram
    odd, good = await asking.read(target("odd"), target("p-0"))
    assert isinstance(odd, ScrapeFailure)
    assert odd.reason is Reason.NO_SERIES
    assert isinstance(good, EngineSample)


async def test_of_an_answer_with_warnings_that_is_partial_what_is_there_counts(
    prometheus: FakePrometheus, asking: Asking
) -> None:
    def partial(handler: BaseHTTPRequestHandler) -> bool:
        data = {"resultType": "matrix", "result": prometheus.result(prometheus.asked[-1])}
        warnings = ["no store matched for this query"]
        send(handler, json.dumps({"status": "success", "warnings": warnings, "data": data}))
        return True

    prometheus.scrape(page())
    prometheus.answer = partial
    there, missing = await asking.read(target("p-0"), target("p-1"))
    assert isinstance(there, EngineSample)
    assert isinstance(missing, ScrapeFailure)
    assert missing.reason is Reason.NO_SERIES


async def test_an_answer_that_is_compressed_unasked_is_not_unfolded(
    prometheus: FakePrometheus, asking: Asking
) -> None:
    body = json.dumps({"status": "success", "data": {"result": []}}).encode()

    def bomb(status: int, **headers: str) -> Callable[[BaseHTTPRequestHandler], bool]:
        def answer(handler: BaseHTTPRequestHandler) -> bool:
            handler.send_response(status)
            for header, value in {"Content-Encoding": "gzip", **headers}.items():
                handler.send_header(header, value)
            handler.end_headers()
            handler.wfile.write(gzip.compress(body))
            return True

        return answer

    prometheus.answer = bomb(200)
    assert "is no Prometheus" in (await asking.failure()).message
    # The body of a redirect is not even looked at.
    prometheus.answer = bomb(302, Location="/")
    await asking.next_round()
    assert (await asking.failure()).message.endswith("status 302")


async def test_labels_of_a_connection_tell_clusters_apart(
    prometheus: FakePrometheus, asking: Asking
) -> None:
    prometheus.scrape(page(running=1), cluster="eu")
    prometheus.scrape(page(running=2), cluster="us")
    write(asking.file, prometheus.url, labels={"cluster": "us"})
    (seen,) = await asking.read()
    assert isinstance(seen, EngineSample)
    assert seen.observation.running == 2


async def test_a_path_prefix_headers_and_credentials_come_from_files_as_they_are_now(
    prometheus: FakePrometheus, asking: Asking, tmp_path: Path
) -> None:
    prometheus.scrape(page())
    token = tmp_path / "token"
    token.write_text("first\n")
    write(
        asking.file,
        prometheus.url,
        pathPrefix="/prometheus",
        bearerTokenFile=str(token),
        headers={"X-Scope-OrgID": "agents"},
    )
    await asking.read()
    assert prometheus.paths == {"/prometheus/api/v1/query"}
    assert prometheus.headers[-1]["Authorization"] == "Bearer first"
    assert prometheus.headers[-1]["X-Scope-OrgID"] == "agents"
    token.write_text("second\n")
    asking.seconds = PERIOD_SECONDS
    await asking.read()
    assert prometheus.headers[-1]["Authorization"] == "Bearer second"


async def test_basic_authentication(
    prometheus: FakePrometheus, asking: Asking, tmp_path: Path
) -> None:
    (tmp_path / "user").write_text("ballonet")
    (tmp_path / "password").write_text("secret\n")
    files = {"usernameFile": str(tmp_path / "user"), "passwordFile": str(tmp_path / "password")}
    write(asking.file, prometheus.url, basicAuth=files)
    await asking.read()
    assert prometheus.headers[-1]["Authorization"] == "Basic YmFsbG9uZXQ6c2VjcmV0"


def text(body: str, status: int = 200, **headers: str) -> Callable[[BaseHTTPRequestHandler], bool]:
    def answer(handler: BaseHTTPRequestHandler) -> bool:
        send(handler, body, status, **headers)
        return True

    return answer


def hang(handler: BaseHTTPRequestHandler) -> bool:
    time.sleep(0.7)
    return True


def dripping(start: bytes) -> Callable[[BaseHTTPRequestHandler], bool]:
    """Answer with a beginning, and then with a byte at a time for as long as anybody listens."""

    def answer(handler: BaseHTTPRequestHandler) -> bool:
        handler.close_connection = True
        with contextlib.suppress(OSError):
            handler.wfile.write(start)
            while True:
                handler.wfile.write(b"x")
                time.sleep(0.02)
        return True

    return answer


STATUS_LINE = b"HTTP/1.1 "
HEADER = b"HTTP/1.1 200 OK\r\nX-Waits: "
REDIRECT = b"HTTP/1.1 302 Found\r\nLocation: /\r\n\r\n"
BODY = b"HTTP/1.1 200 OK\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
DRIPPING = pytest.mark.parametrize("start", [STATUS_LINE, HEADER, REDIRECT, BODY, CHUNKED])


BAD_QUERY = json.dumps({"status": "error", "error": "too many samples"})


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (text("", 401), "status 401"),
        (text("", 302, Location="http://127.0.0.1:1/"), "status 302"),
        (text(BAD_QUERY, 422), "status 422, 'too many samples'"),
        (text("<html>"), "is no Prometheus"),
        (text("{}"), "is no Prometheus"),
        (text('{"data": {"result": 3}}'), "is no Prometheus"),
        (text('{"data": {"result": [3]}}'), "is no Prometheus"),
        (text('{"data": {"result": [{"metric": {}, "values": [[1]]}]}}'), "is no Prometheus"),
        (text('{"data": {"result": [{"metric": {}, "values": [[1, "x"]]}]}}'), "is no Prometheus"),
        (text("[" * 50_000), "is no Prometheus"),
        (text("[" * 50_000, 500), "status 500"),
        (text(" " * 200_000), "longer than 100000 bytes"),
    ],
)
async def test_a_prometheus_that_does_not_behave_is_named(
    prometheus: FakePrometheus,
    asking: Asking,
    answer: Callable[[BaseHTTPRequestHandler], bool],
    words: str,
) -> None:
    prometheus.answer = answer
    failure = await asking.failure()
    assert failure.reason is Reason.SOURCE_UNREACHABLE
    assert failure.message.startswith("Prometheus connection main: ")
    assert words in failure.message


@pytest.mark.parametrize("limits", [Limits(query_seconds=0.2)])
async def test_a_prometheus_that_says_nothing_is_not_waited_for(
    prometheus: FakePrometheus, asking: Asking
) -> None:
    prometheus.answer = hang
    failure = await asking.failure()
    assert failure.reason is Reason.SOURCE_UNREACHABLE
    assert "no answer within 0.2 s" in failure.message


# Each part of the answer comes in time; without a bound for the whole these would never end.
@DRIPPING
@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (Limits(query_seconds=0.2, round_seconds=600), "no answer within 0.2 s"),
        (Limits(query_seconds=600, round_seconds=0.2), "not all answers within 0.2 s"),
    ],
)
async def test_a_prometheus_that_drips_is_not_waited_for(
    prometheus: FakePrometheus, asking: Asking, start: bytes, words: str
) -> None:
    prometheus.answer = dripping(start)
    failure = await asking.failure()
    assert failure.reason is Reason.SOURCE_UNREACHABLE
    assert failure.message.endswith(words)


@pytest.mark.parametrize("limits", [Limits(query_seconds=600, round_seconds=600)])
async def test_connections_that_hang_hold_up_no_other(
    prometheus: FakePrometheus, asking: Asking
) -> None:
    prometheus.scrape(page())
    released = threading.Event()

    def answer(handler: BaseHTTPRequestHandler) -> bool:
        return handler.path.startswith("/hangs/") and released.wait()

    prometheus.answer = answer
    hang = [f"hangs-{number}" for number in range(MAX_CONNECTIONS - 1)]
    connections = [{"name": name, "url": prometheus.url, "pathPrefix": "/hangs"} for name in hang]
    main = {"name": "main", "url": prometheus.url}
    asking.file.write_text(json.dumps({"connections": [*connections, main]}))
    hanging = [asyncio.create_task(asking.read(connection=name)) for name in hang]
    await asyncio.sleep(0)
    (seen,) = await asking.read()
    assert isinstance(seen, EngineSample)
    assert not any(task.done() for task in hanging)
    released.set()
    await asyncio.gather(*hanging)


@pytest.mark.parametrize("limits", [Limits(query_seconds=600, round_seconds=600)])
async def test_nobody_waits_for_a_prometheus_that_has_failed_until_it_answers_again(
    prometheus: FakePrometheus, asking: Asking
) -> None:
    prometheus.scrape(page())
    prometheus.answer = text("", 503)
    await asking.failure()
    released = threading.Event()

    def answer(_: BaseHTTPRequestHandler) -> bool:
        released.wait()
        return False

    prometheus.answer = answer
    asking.seconds = PERIOD_SECONDS
    assert "status 503" in (await asking.failure()).message
    released.set()
    await asking.next_round()
    (seen,) = await asking.read()
    assert isinstance(seen, EngineSample)


async def test_nothing_is_kept_of_failures_but_the_last(
    prometheus: FakePrometheus, asking: Asking
) -> None:
    class Targets(list[PodTarget]):
        """A list whose end can be seen."""

    prometheus.answer = text("", 503)
    asked = []
    for _ in range(4):
        asking.seconds += PERIOD_SECONDS
        targets = Targets([target()])
        await asking.source.read(targets, "main")
        asked.append(weakref.ref(targets))
        del targets
    gc.collect()
    assert [ref() for ref in asked] == [None] * 4


@pytest.fixture
def identity(tmp_path: Path) -> tuple[Path, Path]:
    return certificate(tmp_path)


async def test_only_the_authorities_of_a_connection_are_trusted(
    prometheus: FakePrometheus, asking: Asking, identity: tuple[Path, Path]
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*identity)
    assert prometheus.server is not None
    prometheus.server.socket = context.wrap_socket(prometheus.server.socket, server_side=True)
    prometheus.scrape(page())
    url = prometheus.url.replace("http:", "https:")
    write(asking.file, url)
    failure = await asking.failure()
    assert failure.reason is Reason.SOURCE_UNREACHABLE
    assert "certificate verify failed" in failure.message
    write(asking.file, url, caFile=str(identity[0]))
    await asking.next_round()
    (seen,) = await asking.read()
    assert isinstance(seen, EngineSample)


async def test_a_failed_round_is_not_repeated_for_each_pod(
    prometheus: FakePrometheus, asking: Asking
) -> None:
    prometheus.answer = text("", 503)
    await asking.read()
    await asking.read(target("p-1"))
    assert len(prometheus.asked) == 1


async def test_a_prometheus_that_is_not_there(asking: Asking) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    write(asking.file, f"http://127.0.0.1:{port}")
    failure = await asking.failure()
    assert failure.reason is Reason.SOURCE_UNREACHABLE
    assert failure.message.endswith("cannot be reached: Connection refused")


async def test_a_connection_that_does_not_exist_is_named_with_those_that_do(
    asking: Asking,
) -> None:
    (failure,) = await asking.read(connection="other")
    assert isinstance(failure, ScrapeFailure)
    assert failure.reason is Reason.UNKNOWN_CONNECTION
    assert "'other'" in failure.message
    assert "it has: main" in failure.message


@pytest.mark.parametrize("setting", ["bearerTokenFile", "caFile"])
async def test_a_file_that_is_missing_is_named(
    asking: Asking, prometheus: FakePrometheus, setting: str
) -> None:
    write(asking.file, prometheus.url, **{setting: "/nowhere/file"})
    failure = await asking.failure()
    assert failure.reason is Reason.UNKNOWN_CONNECTION
    assert "/nowhere/file: No such file" in failure.message


async def test_nothing_secret_gets_into_a_message(
    prometheus: FakePrometheus, asking: Asking, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    for content in ("s3cret", "s3cret\nsecond line", "s3cret" * 20_000):
        token.write_text(content)
        write(asking.file, prometheus.url, bearerTokenFile=str(token))
        prometheus.answer = text("", 401)
        await asking.next_round()
        assert "s3cret" not in (await asking.failure()).message


@pytest.mark.parametrize("way", ["token", "password", "header"])
async def test_what_a_proxy_repeats_of_a_request_is_not_told(
    prometheus: FakePrometheus, asking: Asking, tmp_path: Path, way: str
) -> None:
    (tmp_path / "secret").write_text("s3cret")
    (tmp_path / "user").write_text("ballonet")
    file = str(tmp_path / "secret")
    settings: dict[str, dict[str, Any]] = {
        "token": {"bearerTokenFile": file},
        "password": {"basicAuth": {"usernameFile": str(tmp_path / "user"), "passwordFile": file}},
        "header": {"headerFiles": {"X-Key": file}},
    }
    write(asking.file, prometheus.url, headers={"X-Scope-OrgID": "agents"}, **settings[way])

    def repeat(handler: BaseHTTPRequestHandler) -> bool:
        sent = handler.headers["Authorization"] or handler.headers["X-Key"]
        send(handler, json.dumps({"error": f"refused: {sent}"}), 401)
        return True

    prometheus.answer = repeat
    assert (await asking.failure()).message.endswith("status 401")
    prometheus.answer = text('{"error": "tenant agents is unknown"}', 404)
    await asking.next_round()
    assert "tenant agents is unknown" in (await asking.failure()).message


def test_what_was_scraped_of_a_pool_is_told_scrape_by_scrape(
    prometheus: FakePrometheus, limits: Limits
) -> None:
    from ballonet.telemetry.queries import ask_history

    prometheus.scrape(REAL_PAGE, pod="pool-a-b")
    prometheus.scrape(page(2), pod="pool-a-b", seconds=15)
    found = ask_history(
        PrometheusConnection(name="main", url=prometheus.url),
        replace(limits, answer_bytes=2_000_000),
        namespace="ns",
        pool="pool",
        seconds=3600,
    )
    first, second = found["pool-a-b"]
    # With counters that any process has, and the labels of the cache, as the pod says it.
    assert first == read_page(REAL_PAGE, SCRAPED).observation
    assert (second.at, second.running) == (SCRAPED + timedelta(seconds=15), 2)
    assert second.preemptions is None
    assert all(query.endswith("[3600s]") for query in prometheus.asked)
