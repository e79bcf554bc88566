"""What happened to a pool, read from its cluster and its Prometheus; nothing is written."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final, Protocol

from pydantic import ValidationError

from ballonet.api.conditions import ConditionType, Reason, Status, is_warning
from ballonet.api.v1alpha1 import KIND
from ballonet.catalog import Catalog
from ballonet.cli.cluster import asked, namespace_of
from ballonet.cluster.port import ApiError, Cluster, Json, Kind
from ballonet.diagnosis.cache_use import cache_use
from ballonet.diagnosis.diagnose import Courses, diagnose
from ballonet.diagnosis.facts import Facts, facts_of
from ballonet.diagnosis.observation import Observation
from ballonet.engines.base import PORT
from ballonet.planning.planner import plan_pool
from ballonet.reconcile.children import selector
from ballonet.reconcile.gather import read_config, read_spec
from ballonet.reconcile.status import offload_status
from ballonet.telemetry.connections import (
    Connections,
    InvalidConnectionsError,
    PrometheusConnection,
)
from ballonet.telemetry.reading import InvalidPageError
from ballonet.telemetry.ring import SPACING, SPAN
from ballonet.telemetry.scrape import read_page

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_LONGEST: Final = timedelta(days=1)
# A pod that says nothing for so long is no longer there.
_GONE: Final = timedelta(minutes=1)

History = Mapping[str, Sequence[Observation]]


class PeoplesCluster(Cluster, Protocol):
    """The API server with the one thing more that people may ask of it."""

    async def pod_page(self, namespace: str, pod: str, port: int, path: str) -> str:
        """Return a page that a pod serves."""


class NoStory(Exception):  # noqa: N818 - the name says what is wrong
    """The pool cannot be explained; the message says why."""


@dataclass(frozen=True, slots=True, order=True)
class Entry:
    """Something that happened."""

    at: datetime
    what: str
    text: str


@dataclass(frozen=True, slots=True)
class Story:
    """All that is told of a pool.

    Attributes:
        since, until: the time that is told of.
        history: observations of each pod; one of each without a Prometheus.
        verdicts: each verdict of the time and when it came, worked out anew from the history.
        notes: what could not be read, and why.
    """

    pool: Json
    since: datetime
    until: datetime
    entries: tuple[Entry, ...]
    history: History = field(default_factory=dict)
    verdicts: tuple[tuple[datetime, Reason], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def diagnosis(self) -> Json:
        """The verdict that stands in the status."""
        found: Json = self.pool.get("status", {}).get("diagnosis") or {}
        return found

    @property
    def unready(self) -> Json:
        """The condition Ready where it is not True; empty where the pool is ready."""
        conditions: list[Json] = self.pool.get("status", {}).get("conditions") or []
        return next(
            (
                one
                for one in conditions
                if one["type"] == ConditionType.READY and one["status"] != Status.TRUE
            ),
            {},
        )

    @property
    def offload(self) -> Json:
        """How host memory is used, as in the status but by the newest samples where there are any.

        Empty without offload.
        """
        status = self.pool.get("status", {})
        host_cache_bytes = status.get("engine", {}).get("hostCacheBytes")
        if host_cache_bytes is None:
            return {}
        newest = [seen[-1] for seen in self.history.values() if seen]
        last = max((sample.at for sample in newest), default=None)
        alive = [sample for sample in newest if last is not None and last - sample.at <= _GONE]
        use = offload_status(cache_use(alive, host_cache_bytes))
        if use is None:
            return status.get("offload") or {}
        return use.model_dump(mode="json", by_alias=True, exclude_none=True)

    @property
    def exit_code(self) -> int:
        """0 nothing is wrong, 1 something is, 3 not known."""
        verdict = self.diagnosis.get("verdict", str(Reason.NO_VERDICT))
        if verdict == Reason.NO_VERDICT:
            return 3
        return int(is_warning(ConditionType.KV_PRESSURE, Status.TRUE, verdict))


def duration(text: str) -> timedelta:
    """Return a time as people write it: 90s, 15m, 1h.

    Raises:
        ValueError: it is none, or more than a day.
    """
    found = re.fullmatch(r"([0-9]{1,6})([smhd])", text)
    span = timedelta(seconds=int(found[1]) * _UNITS[found[2]]) if found else timedelta(0)
    if not timedelta(0) < span <= _LONGEST:
        raise ValueError(f"{text!r} is no time of at most a day, for example 15m or 1h")
    return span


def ask(
    name: str,
    *,
    namespace: str | None,
    kube_context: str | None,
    span: timedelta,
    url: str | None,
    connections: str | None,
    catalog: Catalog,
) -> Story:
    """Read what happened to a pool of the cluster that a kubeconfig names.

    Args:
        name, namespace: which pool; None for the namespace of the context.
        kube_context: of the kubeconfig; None for the current one.
        span: how far back.
        url: a Prometheus that takes anybody's queries.
        connections: the operator's file of connections, of which the pool names one.
        catalog: devices and models that the pool may name.

    Raises:
        NoStory: it cannot be told; the message says why.
    """
    kept: Callable[[Json], History] | None = None
    if url is not None:
        kept = partial(_scraped, _at(url), span)
    elif connections is not None:
        kept = partial(_scraped, partial(_named, Connections(connections)), span)

    async def read(cluster: PeoplesCluster) -> Story:
        return await tell(
            cluster,
            namespace_of(namespace, kube_context),
            name,
            catalog=catalog,
            span=span,
            now=datetime.now(UTC),
            kept=kept,
        )

    return asked(kube_context, read)


def _at(url: str) -> Callable[[Json], PrometheusConnection]:
    try:
        connection = PrometheusConnection(name="prometheus", url=url)
    except ValidationError:
        # Not the address itself: who adds a password to it reads this in a log, perhaps.
        raise NoStory(
            "--prometheus takes scheme, host and port alone, as http://HOST:PORT: a user and a "
            "password, a prefix or a token need --connections"
        ) from None
    return lambda _pool: connection


def _named(connections: Connections, pool: Json) -> PrometheusConnection:
    named = pool["spec"].get("metrics", {}).get("prometheus", {}).get("connection")
    if named is None:
        raise NoStory("the pool names no Prometheus connection: give --prometheus URL")
    try:
        return connections.named(named)
    except InvalidConnectionsError as error:
        raise NoStory(str(error)) from error


async def tell(
    cluster: PeoplesCluster,
    namespace: str,
    name: str,
    *,
    catalog: Catalog,
    span: timedelta,
    now: datetime,
    kept: Callable[[Json], History] | None = None,
) -> Story:
    """Read what happened to a pool.

    Args:
        cluster: the API server, asked with the rights of who runs this; nothing is written.
        namespace, name: which pool.
        catalog: devices and models that the pool may name.
        span: how far back.
        now: the time of day.
        kept: gives what a Prometheus has kept of a pool's pods; None reads them as they are.

    Raises:
        NoStory: there is no such pool.
        ApiError: the API server refuses, or cannot be reached.
    """
    pool = await cluster.get(Kind.POOL, namespace, name)
    if pool is None:
        raise NoStory(f"there is no InferencePool {name} in namespace {namespace}")
    since, notes = now - span, []
    pods = await cluster.list(Kind.POD, namespace, labels=selector(name))
    entries = [*_pod_entries(pods)]
    try:
        entries += _events(await cluster.list(Kind.EVENT, namespace), pool)
    except ApiError as error:
        notes.append(f"Events cannot be read: {error.message}")
    history: History = {}
    verdicts: tuple[tuple[datetime, Reason], ...] = ()
    if kept is not None:
        history = kept(pool)
        facts = await _facts(cluster, pool, catalog)
        if facts is None:
            notes.append("the spec cannot be planned, so verdicts are not worked out anew")
        else:
            found = list(_verdicts(history, facts))
            entries += [Entry(at, f"verdict {word}", text) for at, word, text in found]
            verdicts = tuple((at, word) for at, word, _ in found)
    else:
        history, problems = await _as_they_are(cluster, namespace, pods, now)
        notes += [*problems, "give --prometheus URL for what was before"]
        entries += _said(pool)
    told = tuple(sorted(entry for entry in entries if entry.at >= since))
    return Story(pool, since, now, told, history, verdicts, tuple(notes))


# --- what happened --------------------------------------------------------------------------------


def _time(text: str | None) -> datetime | None:
    return None if not text else datetime.fromisoformat(text)


def _events(events: Iterable[Json], pool: Json) -> Iterator[Entry]:
    """Yield the Events about the pool and what it is made of."""
    name, uid = pool["metadata"]["name"], pool["metadata"]["uid"]
    # As their controllers name them: another pool's name may begin with this one's.
    children = {
        kind: re.compile(rf"{re.escape(name)}(-[a-z0-9]+){{{parts}}}")
        for kind, parts in (("Deployment", 0), ("ReplicaSet", 1), ("Pod", 2))
    }
    for event in events:
        about = event.get("regarding") or {}
        at = _time(
            (event.get("series") or {}).get("lastObservedTime")
            or event.get("eventTime")
            or event.get("deprecatedLastTimestamp")
            or event["metadata"].get("creationTimestamp")
        )
        if at is None:
            continue
        reason, note = event.get("reason", ""), event.get("note", "")
        if about.get("kind") == KIND and about.get("uid") == uid:
            yield Entry(at, f"{event.get('action', '')} {reason}".strip(), note)
        elif (child := children.get(about.get("kind", ""))) and child.fullmatch(
            about.get("name", "")
        ):
            yield Entry(at, f"{about['kind']} {reason}", f"{about['name']}: {note}")


def _pod_entries(pods: Iterable[Json]) -> Iterator[Entry]:
    for pod in pods:
        name = pod["metadata"]["name"]
        for container in pod.get("status", {}).get("containerStatuses", ()):
            started = _time(container.get("state", {}).get("running", {}).get("startedAt"))
            if started is not None:
                yield Entry(started, "engine started", name)
            ended = container.get("lastState", {}).get("terminated", {})
            if (at := _time(ended.get("finishedAt"))) is not None:
                words = f"{name}: {ended.get('reason', '')}, exit code {ended.get('exitCode')}"
                yield Entry(at, "engine ended", words)


def _said(pool: Json) -> Iterator[Entry]:
    """Yield the verdict that stands in the status."""
    diagnosis = pool.get("status", {}).get("diagnosis") or {}
    if (since := _time(diagnosis.get("since"))) is not None:
        text = "; ".join(e.get("message", "") for e in diagnosis.get("evidence", ())[:1])
        yield Entry(since, f"verdict {diagnosis.get('verdict', '')}", text)


# --- what engines said ----------------------------------------------------------------------------


def _scraped(
    connection_of: Callable[[Json], PrometheusConnection], span: timedelta, pool: Json
) -> History:
    from ballonet.telemetry.queries import ask_history  # noqa: PLC0415 - slow to import
    from ballonet.telemetry.rounds import Limits, SourceError  # noqa: PLC0415

    connection = connection_of(pool)
    try:
        return ask_history(
            connection,
            Limits(query_seconds=30.0, round_seconds=120.0),
            namespace=pool["metadata"]["namespace"],
            pool=pool["metadata"]["name"],
            seconds=round(span.total_seconds()),
        )
    except (SourceError, InvalidConnectionsError) as error:
        raise NoStory(f"Prometheus connection {connection.name}: {error}") from error


async def _as_they_are(
    cluster: PeoplesCluster, namespace: str, pods: Iterable[Json], now: datetime
) -> tuple[dict[str, list[Observation]], list[str]]:
    seen: dict[str, list[Observation]] = {}
    problems = []
    for pod in pods:
        name = pod["metadata"]["name"]
        try:
            page = await cluster.pod_page(namespace, name, PORT, "/metrics")
            seen[name] = [read_page(page, now).observation]
        except (ApiError, InvalidPageError) as error:
            if pod.get("status", {}).get("phase") == "Pending":
                problems.append(f"{name} has not started yet")
            else:
                problems.append(f"{name} cannot be read: {error}")
    return seen, problems


async def _facts(cluster: Cluster, pool: Json, catalog: Catalog) -> Facts | None:
    spec, _ = read_spec(pool)
    if spec is None:
        return None
    config_text, problem = await read_config(cluster, pool["metadata"]["namespace"], spec)
    if problem is not None:
        return None
    plan = plan_pool(
        pool["metadata"]["name"], spec, config_text, catalog=catalog, with_remedies=False
    )
    status = pool.get("status", {})
    slots = status.get("engine", {}).get("slots")
    if slots is None:
        return None
    measured = status.get("budget", {}).get("measured", {})
    return facts_of(
        plan,
        slots=slots,
        thresholds=spec.diagnosis,
        block_tokens=measured.get("blockTokens"),
    )


def _verdicts(history: History, facts: Facts) -> Iterator[tuple[datetime, Reason, str]]:
    """Yield each verdict that the operator would have come to, when, and on what evidence."""
    samples = sorted(
        ((o.at, pod, o) for pod, seen in history.items() for o in seen), key=lambda s: s[:2]
    )
    pods: dict[str, list[Observation]] = {}
    courses: Courses = {}
    verdict = Reason.NO_VERDICT
    looked_at: datetime | None = None
    for at, pod, observation in samples:
        pods.setdefault(pod, []).append(observation)
        # As the operator, which looks at all pods at once and not at each by itself.
        if looked_at is not None and at - looked_at < SPACING:
            continue
        looked_at = at
        pods = {
            name: kept
            for name, seen in pods.items()
            if (kept := [o for o in seen if at - o.at <= SPAN]) and at - kept[-1].at <= _GONE
        }
        found = diagnose(pods, facts, courses, earlier=verdict)
        courses = found.courses
        if found.verdict is not verdict:
            verdict = found.verdict
            yield at, verdict, found.evidence[0].text
