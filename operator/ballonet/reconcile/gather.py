"""Reading everything that one pass over a pool needs; nothing is decided here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ballonet.api.conditions import ConditionType, Finding, Reason, Status
from ballonet.api.parse import InvalidPoolError, parse_spec
from ballonet.api.v1alpha1 import MAX_CONFIG_CHARACTERS, InferencePoolSpec
from ballonet.cluster.port import ApiError, Cluster, Json, Kind
from ballonet.diagnosis.diagnose import Courses
from ballonet.diagnosis.observation import Observation
from ballonet.planning.pod import CONTAINER
from ballonet.planning.probe import is_probed
from ballonet.planning.receipts import NO_RECEIPTS, Receipts
from ballonet.reconcile.children import BUDGET_SUFFIX, PROBE_SUFFIX, loads_probe, selector
from ballonet.reconcile.ownership import Child, examine
from ballonet.reconcile.pods import EndedRun, ended_runs, owned_pods
from ballonet.telemetry.port import EngineSample, ScrapeFailure

_LOG_LINES: Final = 300
# What is kept of them between passes, for each pool.
_LOG_CHARACTERS: Final = 64 * 1024


@dataclass(frozen=True)
class Observed:
    """What was seen of one pool, in one pass.

    ``spec`` is None where the stored spec does not parse; ``problem`` then says why, as it does
    when the ConfigMap that the model refers to cannot be read. ``applied`` is the record, as
    annotation text, of what this process applied last. ``history`` holds the recent observations
    of each serving pod by its name, oldest first, ``versions`` what those call themselves,
    ``courses`` how findings of live numbers went so far (None: this process has not looked yet),
    ``receipts`` what engines of the namespace measured at their starts.
    """

    pool: Json
    spec: InferencePoolSpec | None
    problem: Finding | None
    config_text: str | None
    deployment: Child
    service: Child
    budget: Child
    probe: Child | None = None
    pods: Sequence[Json] = ()
    last_words: Mapping[str, str] = field(default_factory=dict)
    readings: Sequence[EngineSample | ScrapeFailure] = ()
    history: Mapping[str, Sequence[Observation]] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    applied: str | None = None
    courses: Courses | None = None
    receipts: Receipts = NO_RECEIPTS

    @property
    def samples(self) -> tuple[EngineSample, ...]:
        """The readings that say something."""
        return tuple(r for r in self.readings if isinstance(r, EngineSample))

    @property
    def children(self) -> tuple[Child, ...]:
        """The objects of the pool that were looked at."""
        always = (self.deployment, self.service, self.budget)
        return always if self.probe is None else (*always, self.probe)

    def live_of(self, desired: Json) -> Json | None:
        """Return the object that a desired one would be applied to, as it is now."""
        identity = (desired["kind"], desired["metadata"]["name"])
        for child in self.children:
            live = child.live
            if live is not None and (live["kind"], live["metadata"]["name"]) == identity:
                return live
        return None


def read_spec(pool: Json) -> tuple[InferencePoolSpec | None, Finding | None]:
    """Return the pool's spec, or the finding that names each field that does not parse."""
    try:
        return parse_spec(pool), None
    except InvalidPoolError as error:
        return None, Finding(Status.FALSE, Reason.INVALID_SPEC, str(error))


async def read_config(
    cluster: Cluster, namespace: str, spec: InferencePoolSpec
) -> tuple[str | None, Finding | None]:
    """Return the text of a config.json in a ConfigMap, or why it cannot be had.

    Raises:
        ApiError: the API server could not say.
    """
    reference = spec.model.config.config_map_ref if spec.model.config else None
    if reference is None:
        return None, None
    where = f"spec.model.config.configMapRef: ConfigMap {reference.name}"
    try:
        config_map = await cluster.get(Kind.CONFIG_MAP, namespace, reference.name)
    except ApiError as error:
        if not error.forbidden:
            raise
        return None, _not_found(f"{where} may not be read: {error.message}")
    if config_map is None:
        return None, _not_found(f"{where} does not exist in namespace {namespace}: create it")
    text = config_map.get("data", {}).get(reference.key)
    if text is None:
        keys = ", ".join(sorted(config_map.get("data", {}))[:8]) or "none"
        return None, _not_found(f"{where} has no key {reference.key} (it has: {keys})")
    if len(text) > MAX_CONFIG_CHARACTERS:
        return None, Finding(
            Status.FALSE,
            Reason.INVALID_MODEL_CONFIG,
            f"{where}, key {reference.key} has {len(text)} characters, more than "
            f"{MAX_CONFIG_CHARACTERS}: keep only config.json itself in it",
        )
    return text, None


async def read_children(cluster: Cluster, pool: Json) -> tuple[Child, Child, Child]:
    """Return Deployment, Service and budget ConfigMap as they are now, with their holders."""
    namespace, name = pool["metadata"]["namespace"], pool["metadata"]["name"]
    return (
        examine(await cluster.get(Kind.DEPLOYMENT, namespace, name), pool),
        examine(await cluster.get(Kind.SERVICE, namespace, name), pool),
        examine(await cluster.get(Kind.CONFIG_MAP, namespace, name + BUDGET_SUFFIX), pool),
    )


async def read_probe(
    cluster: Cluster, pool: Json, spec: InferencePoolSpec | None, deployment: Child
) -> Child | None:
    """Return the ConfigMap of the probe; None where none is wanted and none can be left."""
    wanted = spec is not None and is_probed(spec)
    loaded = deployment.own is not None and loads_probe(deployment.own["spec"]["template"])
    conditions = pool.get("status", {}).get("conditions", ())
    told = any(condition["type"] == ConditionType.SEQUENCES_OBSERVED for condition in conditions)
    if not (wanted or loaded or told):
        return None
    namespace, name = pool["metadata"]["namespace"], pool["metadata"]["name"]
    return examine(await cluster.get(Kind.CONFIG_MAP, namespace, name + PROBE_SUFFIX), pool)


async def read_pods(cluster: Cluster, pool: Json, deployment: Child) -> list[Json]:
    """Return the pods of the pool's own Deployment, oldest first."""
    if deployment.own is None:
        return []
    name = pool["metadata"]["name"]
    pods = await cluster.list(Kind.POD, pool["metadata"]["namespace"], labels=selector(name))
    return owned_pods(pods, deployment.own)


async def read_last_words(
    cluster: Cluster, pods: Sequence[Json], known: Mapping[EndedRun, str]
) -> dict[EndedRun, str]:
    """Return the log of the first failed run, which is the one that is told of, read once."""
    words = {}
    for run in ended_runs(pods)[:1]:
        if run in known:
            words[run] = known[run]
            continue
        pod = next(pod for pod in pods if pod["metadata"]["name"] == run.pod)
        try:
            log = await cluster.logs(
                pod["metadata"]["namespace"],
                run.pod,
                CONTAINER,
                previous=run.previous,
                tail_lines=_LOG_LINES,
            )
        except ApiError as error:
            if error.unreachable:
                raise
            # The run is gone already; its termination message must do.
            continue
        words[run] = log[-_LOG_CHARACTERS:]
    return words


def _not_found(message: str) -> Finding:
    return Finding(Status.FALSE, Reason.CONFIG_NOT_FOUND, message)
