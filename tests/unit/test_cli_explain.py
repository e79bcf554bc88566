"""``ballonet explain POOL``: what happened to a pool, side by side."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ballonet.catalog import Catalog
from ballonet.cli.canvas import Canvas
from ballonet.cli.explain_pool import shown
from ballonet.cli.formats import OutputFormat
from ballonet.cli.main import app
from ballonet.cli.pool_story import NoStory, Story, duration, tell
from ballonet.cluster import client
from ballonet.cluster.port import ApiError, Json, Kind
from ballonet.diagnosis.observation import Observation
from ballonet.telemetry.connections import PrometheusConnection
from ballonet.telemetry.history import Scrapes, history_queries
from e2e.harness.pools import a_pool
from tests.fakes.cluster import FakeCluster

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
CONNECTION = PrometheusConnection(name="main", url="http://prometheus:9090")
PAGE = (
    'vllm:cache_config_info{engine="0",num_gpu_blocks="128",block_size="32"} 1\n'
    'vllm:num_requests_running{engine="0"} 3\n'
    'vllm:num_requests_waiting{engine="0"} 2\n'
    'vllm:kv_cache_usage_perc{engine="0"} 0.5\n'
)


class People(FakeCluster):
    """The cluster as a person reaches it: pods are asked through the API server."""

    page: str | ApiError = PAGE

    async def close(self) -> None:
        pass

    async def pod_page(self, namespace: str, pod: str, port: int, path: str) -> str:
        assert (namespace, pod, port, path) == ("agents", "pool-7f-x", 8000, "/metrics")
        if isinstance(self.page, ApiError):
            raise self.page
        return self.page


def stamp(minutes: int) -> str:
    return (NOW - timedelta(minutes=minutes)).strftime("%Y-%m-%dT%H:%M:%SZ")


def event(name: str, minutes: int, about: Json, **fields: str) -> Json:
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": "agents"},
        "eventTime": stamp(minutes),
        "regarding": about,
        **fields,
    }


@pytest.fixture
def cluster() -> People:
    cluster = People()
    pool = a_pool().ceiling(608).planner_and_workers(5).build("agents")
    pool["status"] = {
        "engine": {"version": "0.32.0", "slots": 6},
        "diagnosis": {
            "verdict": "SlotBound",
            "since": stamp(5),
            "evidence": [{"name": "SlotBound", "message": "up to 4 requests wait"}],
            "lever": {
                "name": "Replicas",
                "description": "Run one replica more.",
                "patch": '{"spec":{"replicas":2}}',
                "generation": 1,
            },
        },
    }
    cluster.put(pool)
    cluster.put(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": "pool-7f-x",
                "namespace": "agents",
                "labels": {"ballonet.io/pool": "pool", "app.kubernetes.io/managed-by": "ballonet"},
            },
            "status": {
                "containerStatuses": [
                    {
                        "name": "engine",
                        "state": {"running": {"startedAt": stamp(30)}},
                        "lastState": {
                            "terminated": {
                                "finishedAt": stamp(31),
                                "reason": "OOMKilled",
                                "exitCode": 137,
                            }
                        },
                    }
                ]
            },
        }
    )
    uid = cluster.peek(*_pool_key())["metadata"]["uid"]  # type: ignore[index]
    ours = {"kind": "InferencePool", "name": "pool", "uid": uid}
    cluster.put(event("a", 5, ours, reason="SlotBound", action="KVPressure", note="4 wait"))
    cluster.put(event("b", 90, ours, reason="Applied", action="Configured", note="long ago"))
    for kind, name in (
        ("Deployment", "pool-b"),
        ("ReplicaSet", "pool-b-7f"),
        ("Pod", "pool-b-7f-x"),
    ):
        other = {"kind": kind, "name": name}
        cluster.put(event(f"c-{kind}", 4, other, reason="Killing", note="of another pool"))
    cluster.put(event("d", 4, {"kind": "Pod", "name": "pool-7f-x"}, reason="Unhealthy", note="503"))
    return cluster


def _pool_key() -> tuple[Any, str, str]:
    return Kind.POOL, "agents", "pool"


async def told(cluster: People, **options: Any) -> Story:
    catalog, span = Catalog.builtin(), timedelta(hours=1)
    return await tell(cluster, "agents", "pool", catalog=catalog, span=span, now=NOW, **options)


def drawn(story: Story, columns: int = 100) -> str:
    return shown(story, OutputFormat.TABLE, Canvas(columns))


async def test_what_happened_stands_in_the_order_of_time(cluster: People) -> None:
    story = await told(cluster)
    assert [(entry.what, entry.text) for entry in story.entries] == [
        ("engine ended", "pool-7f-x: OOMKilled, exit code 137"),
        ("engine started", "pool-7f-x"),
        ("KVPressure SlotBound", "4 wait"),
        ("verdict SlotBound", "up to 4 requests wait"),
        ("Pod Unhealthy", "pool-7f-x: 503"),
    ]
    assert cluster.writes == []


async def test_the_verdict_comes_first_with_what_helps(cluster: People) -> None:
    lines = drawn(await told(cluster)).splitlines()
    assert lines[0] == f"agents/pool: SlotBound since {stamp(5)}"
    assert (
        "  kubectl patch inferencepools.ballonet.io pool -n agents --type merge -p "
        in "\n".join(lines[:5])
    )


async def test_without_a_prometheus_pods_are_shown_as_they_are(cluster: People) -> None:
    text = drawn(await told(cluster))
    assert "pool-7f-x: blocks 64, running 3, waiting 2" in text
    assert "give --prometheus URL" in text


async def test_a_pool_that_is_not_ready_says_why(cluster: People) -> None:
    assert "Ready" not in drawn(await told(cluster))
    pool = cluster.peek(*_pool_key())
    assert pool is not None
    unready = {"type": "Ready", "status": "False", "reason": "Refused", "message": "3 of 6 fit"}
    cluster.put({**pool, "status": {**pool["status"], "conditions": [unready]}})
    story = await told(cluster)
    assert drawn(story).splitlines()[1] == "  Ready False (Refused): 3 of 6 fit"
    assert json.loads(shown(story, OutputFormat.JSON, Canvas()))["unready"] == unready


async def test_a_pod_that_has_not_started_is_no_fault(cluster: People) -> None:
    pod = cluster.peek(Kind.POD, "agents", "pool-7f-x")
    assert pod is not None
    cluster.put({**pod, "status": {"phase": "Pending"}})
    cluster.page = ApiError(400, "BadRequest", "address not allowed")
    text = drawn(await told(cluster))
    assert "note: pool-7f-x has not started yet" in text


async def test_how_host_memory_is_used_is_told_of_pools_that_have_some(cluster: People) -> None:
    assert "host memory" not in drawn(await told(cluster))
    pool = cluster.peek(*_pool_key())
    assert pool is not None
    pool["status"]["engine"]["hostCacheBytes"] = 8 * 2**30
    stored = {"readAt": stamp(9), "engines": 1, "hostBytesInUse": 2**30}
    cluster.put({**pool, "status": {**pool["status"], "offload": stored}})
    # Of these engines it is not known.
    story = await told(cluster)
    assert "host memory: what is in use of 8.00 GiB for 1 engine is not reported" in drawn(story)
    # Without an answer, what the status says.
    asked, cluster.page = cluster.page, ApiError(403, "Forbidden", "pods/proxy is forbidden")
    assert f"1.00 GiB of 8.00 GiB in use by 1 engine (read {stamp(9)})" in drawn(
        await told(cluster)
    )
    cluster.page = f"""{asked}
vllm:kv_offload_store_bytes_total{{engine="0"}} {3 * 2**30}
vllm:prefix_cache_queries_total{{engine="0"}} 9000
vllm:prefix_cache_hits_total{{engine="0"}} 4000
vllm:external_prefix_cache_hits_total{{engine="0"}} 1500
"""
    story = await told(cluster)
    assert (
        "host memory: 3.00 GiB of 8.00 GiB in use by 1 engine; of 9,000 prompt tokens looked for "
        "since the start, 4,000 were on the device, 1,500 in host memory (read "
        f"{stamp(0)})"
    ) in drawn(story, 400)
    assert json.loads(shown(story, OutputFormat.JSON, Canvas(80)))["offload"] == {
        "readAt": stamp(0),
        "engines": 1,
        "hostBytesInUse": 3 * 2**30,
        "queriedTokens": 9000,
        "deviceHitTokens": 4000,
        "hostHitTokens": 1500,
    }


async def test_what_may_not_be_read_is_said(cluster: People) -> None:
    cluster.page = ApiError(403, "Forbidden", "pods/proxy is forbidden")
    assert "note: pool-7f-x cannot be read: 403 Forbidden" in drawn(await told(cluster))


@pytest.mark.parametrize(
    ("verdict", "code"), [("SlotBound", 1), ("Idle", 0), ("EngineStuck", 1), ("NoVerdict", 3)]
)
async def test_the_exit_code_says_whether_something_is_wrong(
    cluster: People, verdict: str, code: int
) -> None:
    story = await told(cluster)
    story.diagnosis["verdict"] = verdict
    assert story.exit_code == code


async def test_a_pool_that_is_not_there_is_named(cluster: People) -> None:
    with pytest.raises(NoStory, match="no InferencePool other in namespace agents"):
        await tell(
            cluster, "agents", "other", catalog=Catalog.builtin(), span=timedelta(1), now=NOW
        )


def busy_quarter() -> list[Observation]:
    """An hour, of which the second quarter has more requests than slots."""
    found = []
    for i in range(240):
        waits = 60 <= i < 120
        found.append(
            Observation(
                at=NOW - timedelta(hours=1) + timedelta(seconds=15 * i),
                engines=1,
                running=6 if waits else 2,
                waiting=4 if waits else 0,
                waiting_capacity=4 if waits else 0,
                blocks=128,
                used_blocks=100 if waits else 30,
                usage_per_mille=787 if waits else 236,
                preemptions=3 if i >= 100 else 0,
                prompt_tokens=100 * i,
                generation_tokens=100 * i,
                iterations=10 * i,
            )
        )
    return found


async def told_with(cluster: People, history: dict[str, list[Observation]]) -> Story:
    """The story with what a Prometheus has kept of each pod."""
    return await told(cluster, kept=lambda _pool: history)


async def told_of_an_hour(cluster: People) -> Story:
    return await told_with(cluster, {"pool-7f-x": busy_quarter()})


async def test_verdicts_are_worked_out_anew_from_what_prometheus_kept(cluster: People) -> None:
    story = await told_of_an_hour(cluster)
    assert [str(word) for _, word in story.verdicts] == [
        *("Healthy", "SlotBound", "Preempting", "SlotBound", "Healthy")
    ]
    came = story.verdicts[1][0] - (NOW - timedelta(hours=1))
    assert timedelta(minutes=15) < came <= timedelta(minutes=17)


async def test_pods_that_are_scraped_at_other_times_are_looked_at_together(cluster: People) -> None:
    def later(seconds: int) -> list[Observation]:
        return [replace(o, at=o.at + timedelta(seconds=seconds)) for o in busy_quarter()]

    kept = {f"pool-7f-{n}": later(n) for n in range(12)}
    story = await told_with(cluster, kept)
    assert [str(word) for _, word in story.verdicts] == [
        *("Healthy", "SlotBound", "Preempting", "SlotBound", "Healthy")
    ]


async def test_blocks_verdicts_and_events_share_one_time_axis(cluster: People) -> None:
    lines = {
        line.split()[0]: line
        for line in drawn(await told_of_an_hour(cluster)).splitlines()
        if line and not line.startswith(" ")
    }
    chart = {name: lines[name][11:75] for name in ("blocks", "waiting", "verdict", "events")}
    quarter = slice(17, 31)
    assert set(chart["waiting"][quarter]) == {"@"}
    assert set(chart["waiting"][33:60]) == {"_"}
    assert set(chart["blocks"][quarter]) == {"#"}
    assert "up to 100 of 127" in lines["blocks"]
    assert "up to 3" in lines["preempted"]
    assert "b SlotBound" in lines["verdict"]
    assert set(chart["verdict"][19:26]) == {"b"}
    assert chart["events"].count("|") >= 2
    assert "11:00:00" in lines["UTC"]
    assert "12:00:00" in lines["UTC"]


async def test_pods_that_took_the_place_of_others_add_no_blocks(cluster: People) -> None:
    seen = busy_quarter()
    kept = {"pool-7f-x": seen[:100], "pool-8a-y": seen[100:]}
    assert "up to 100 of 127" in drawn(await told_with(cluster, kept))


async def test_programs_get_the_same(cluster: People) -> None:
    story = await told_of_an_hour(cluster)
    found = json.loads(shown(story, OutputFormat.JSON, Canvas()))
    assert found["pool"] == "agents/pool"
    assert found["diagnosis"]["verdict"] == "SlotBound"
    assert len(found["samples"]) == 240
    assert found["samples"][-1] == {
        "time": "2026-01-01T11:59:45Z",
        "pod": "pool-7f-x",
        "blocks": 30,
        "running": 2,
        "waiting": 0,
        "preempted": 3,
    }


async def test_a_page_has_what_is_drawn_as_it_is_and_what_happened_as_a_table(
    cluster: People,
) -> None:
    story = await told_of_an_hour(cluster)
    page = shown(replace(story, notes=("a note",)), OutputFormat.MARKDOWN, Canvas())
    assert page.startswith(f"## agents/pool: SlotBound since {stamp(5)}\n\n```text\n")
    fenced, rest = page.split("```text\n")[1].split("\n```\n")
    assert "  kubectl patch inferencepools.ballonet.io pool -n agents" in fenced
    assert "\nrunning    " in fenced
    rows = rest.strip().splitlines()
    assert rows[:2] == ["| Time | What | Text |", "| --- | --- | --- |"]
    assert f"| {stamp(30)} | engine started | pool-7f-x |" in rows
    assert page.endswith("\n\n* a note")


async def test_pods_that_followed_each_other_have_the_blocks_of_one(cluster: People) -> None:
    seen = busy_quarter()
    kept = {"pool-7f-x": seen[:120], "pool-8f-x": seen[121:]}
    assert "up to 100 of 127" in drawn(await told_with(cluster, kept))
    kept = {"pool-7f-x": seen[:121], "pool-7f-y": seen[:121]}
    assert "up to 200 of 254" in drawn(await told_with(cluster, kept))


async def test_a_text_of_the_cluster_cannot_command_the_terminal(cluster: People) -> None:
    story = await told(cluster)
    evil = replace(story.entries[0], text="\x1b[2J gone")
    assert "\x1b" not in drawn(replace(story, entries=(evil,)))


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("15m", 900), ("1h", 3600)])
def test_times_are_read_as_people_write_them(text: str, seconds: int) -> None:
    assert duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "1", "h", "0m", "25h", "2d", "-1h", "1h30m"])
def test_what_is_no_time_of_a_day_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="at most a day"):
        duration(text)


# --- raw samples of a Prometheus ------------------------------------------------------------------


def series(values: list[tuple[float, str]], **labels: str) -> Json:
    return {"metric": {"namespace": "agents", "pod": "pool-7f-x", **labels}, "values": values}


def test_samples_are_put_together_by_scrape() -> None:
    found = Scrapes(CONNECTION)
    found.take("vllm:num_requests_running", [series([(100.5, "2"), (115.5, "3")], engine="0")])
    found.take("vllm:kv_cache_usage_perc", [series([(100.5, "0.5"), (115.5, "2")], engine="0")])
    info = {"engine": "0", "num_gpu_blocks": "128"}
    found.take("vllm:cache_config_info", [series([(100.5, "1"), (115.5, "1")], **info)])
    # Of another scrape, and so of no sample.
    found.take("vllm:num_preemptions_total", [series([(107.0, "4")], engine="0")])
    (observation,) = found.observations()["pool-7f-x"]
    # The second one lies: usage is above 1.
    assert observation.at == datetime.fromtimestamp(100.5, UTC)
    assert (observation.running, observation.used_blocks, observation.preemptions) == (2, 64, None)


def test_only_pods_of_the_pool_are_asked_for() -> None:
    (name, query), *_ = history_queries(CONNECTION, namespace="agents", pool="pool", seconds=60)
    assert name == "vllm:num_requests_running"
    assert query == (
        'vllm:num_requests_running{namespace="agents",pod=~"pool-[a-z0-9]+-[a-z0-9]+"}[60s]'
    )


def test_a_file_of_a_connection_that_cannot_be_read_is_named(
    cluster: People, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A person has the operator's file of connections, and not the Secrets that its pod mounts.
    pool = cluster.peek(*_pool_key())
    assert pool is not None
    pool["spec"]["metrics"] = {"source": "Prometheus", "prometheus": {"connection": "main"}}
    cluster.put(pool)
    token = tmp_path / "token"
    connections = tmp_path / "connections.yaml"
    connections.write_text(
        f"connections: [{{name: main, url: http://127.0.0.1:1, bearerTokenFile: {token}}}]"
    )
    monkeypatch.setattr(client, "KubernetesCluster", lambda _connect: cluster)
    asked = ["explain", "pool", "-n", "agents", "--connections", str(connections)]
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 2
    assert f"Prometheus connection main: {token}: No such file" in result.stderr


def test_two_ways_to_a_prometheus_are_refused() -> None:
    both = ["--prometheus", "http://prometheus:9090", "--connections", "connections.yaml"]
    result = CliRunner().invoke(app, ["explain", "pool", *both])
    assert result.exit_code == 2
    assert "give one of them" in result.stderr


@pytest.mark.parametrize(
    "url", ["https://u:hidden1234@host:9090", "host:9090", "http://h/hidden1234"]
)
def test_an_address_that_cannot_be_used_is_refused_at_once_and_not_repeated(url: str) -> None:
    result = CliRunner().invoke(app, ["explain", "pool", "--prometheus", url])
    assert result.exit_code == 2
    assert "scheme, host and port" in result.stderr
    assert "hidden1234" not in result.output
