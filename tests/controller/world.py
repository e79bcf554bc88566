"""A small world for the reconciler: an API server in memory, engines that answer, and a clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from zlib import crc32

from ballonet.api.conditions import ConditionType, Finding, Reason, Status, violations
from ballonet.catalog import Catalog
from ballonet.cluster.port import Json, Kind
from ballonet.diagnosis.observation import Observation, Sequences
from ballonet.planning.measured import EngineReport
from ballonet.reconcile.children import selector
from ballonet.reconcile.reconcile import Outcome, PoolKey, Reconciler
from ballonet.telemetry.port import EngineSample, PodTarget, ProbeSilence, ScrapeFailure
from e2e.harness.pools import PoolBuilder, a_pool
from tests.fakes.cluster import FakeCluster

NAMESPACE = "agents"
INSTALLATION = "ballonet-system/ballonet"
NODE = "gpu-1"
# From the start of an engine's container until it serves.
START_SECONDS = 42
REPORT = EngineReport(
    blocks=128, block_tokens=32, max_concurrency=Fraction(128, 19), kv_cache_bytes=8 * 1024**2
)


def fitting() -> PoolBuilder:
    """Return a pool whose six sequences of 19 blocks just fit the budget of 114."""
    return a_pool().ceiling(608).planner_and_workers(5)


@dataclass
class Engines:
    """Engines that all say the same, or nothing."""

    report: EngineReport | None = REPORT
    version: str | None = "0.32.0"
    failure: Reason | None = None
    asked: list[PodTarget] = field(default_factory=list)
    now: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    observation: Observation | None = None
    sequences: Sequences | None = None
    silence: ProbeSilence | None = None

    async def read(
        self, targets: Sequence[PodTarget], connection: str | None = None
    ) -> list[EngineSample | ScrapeFailure]:
        self.asked.extend(targets)
        if self.failure is not None:
            return [ScrapeFailure(t, self.failure, "no answer in time") for t in targets]
        seen = self.observation or Observation(
            at=self.now, engines=1, running=0, waiting=0, usage_per_mille=0, preemptions=0
        )
        samples = [EngineSample(t, self.version, self.report, seen) for t in targets]
        return [self._probed(sample) if sample.target.probe_ports else sample for sample in samples]

    def _probed(self, sample: EngineSample) -> EngineSample:
        seen = replace(sample.observation, sequences=self.sequences)
        return replace(sample, observation=seen, silence=self.silence)


@dataclass
class Events:
    """Events as (type, reason) pairs."""

    told: list[tuple[str, str]] = field(default_factory=list)

    async def record(
        self, pool: Json, *, warning: bool, reason: str, action: str, note: str
    ) -> None:
        self.told.append((action, reason))


class World:
    """One pool and all that happens around it."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.engines = Engines()
        self.events = Events()
        self.seconds = 0.0
        # When the container of each pod started last, and how often it was started anew.
        self.runs: dict[str, tuple[str, int]] = {}
        self.restart_operator()

    def restart_operator(self, installation: str = INSTALLATION) -> None:
        """Replace the operator by one that remembers nothing."""
        self.reconciler = Reconciler(
            self.cluster,
            self.engines,
            self.events,
            catalog=Catalog.builtin(),
            installation=installation,
            now=lambda: datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.seconds),
            monotonic=lambda: self.seconds,
        )

    def pass_time(self, seconds: float) -> None:
        self.seconds += seconds
        self.engines.now += timedelta(seconds=seconds)

    async def reconcile(self, name: str = "pool") -> Outcome:
        """Make one pass and hold the status that it left to the truth table."""
        outcome = await self.reconciler.reconcile(PoolKey(NAMESPACE, name))
        pool = self.cluster.peek(Kind.POOL, NAMESPACE, name)
        if pool is not None and pool.get("status"):
            conditions = pool["status"]["conditions"]
            assert not violations(
                (
                    ConditionType(c["type"]),
                    Finding(Status(c["status"]), Reason(c["reason"]), c["message"]),
                )
                for c in conditions
                if c["type"] in set(ConditionType)
            )
        return outcome

    async def settle(self, name: str = "pool", passes: int = 4) -> None:
        """Make passes as the queue would, the cluster following after each."""
        for _ in range(passes):
            await self.reconcile(name)
            if self.deployment(name) is not None:
                self.run_pods(name)
            self.pass_time(3)

    def pool(self, name: str = "pool") -> Json:
        pool = self.cluster.peek(Kind.POOL, NAMESPACE, name)
        assert pool is not None
        return pool

    def deployment(self, name: str = "pool") -> Json | None:
        return self.cluster.peek(Kind.DEPLOYMENT, NAMESPACE, name)

    def template(self, name: str = "pool") -> Json:
        deployment = self.deployment(name)
        assert deployment is not None
        found: Json = deployment["spec"]["template"]
        return found

    def condition(self, kind: str, name: str = "pool") -> tuple[str, str]:
        found = self.whole_condition(kind, name)
        return (found["status"], found["reason"])

    def whole_condition(self, kind: str, name: str = "pool") -> Json:
        conditions: list[Json] = self.pool(name)["status"]["conditions"]
        return next(c for c in conditions if c["type"] == kind)

    def edit(self, change: Json, name: str = "pool") -> None:
        """Merge a change into the pool's spec, one level deep."""

        def merge(pool: Json) -> None:
            for key, value in change.items():
                if isinstance(value, dict) and key in pool["spec"]:
                    pool["spec"][key] = {**pool["spec"][key], **value}
                else:
                    pool["spec"][key] = value

        self.cluster.edit(Kind.POOL, NAMESPACE, name, merge)

    def run_pods(self, name: str = "pool", *, container: Json | None = None) -> None:
        """Play Deployment controller and kubelet: as many pods as asked for, all ready.

        ``container`` is the engine's containerStatus where the pods are not to be ready.
        """
        deployment = self.deployment(name)
        assert deployment is not None
        replicas = deployment["spec"]["replicas"]
        template = deployment["spec"]["template"]
        ready = container is None
        wanted = [self._pod(name, template, index, container) for index in range(replicas)]
        names = {pod["metadata"]["name"] for pod in wanted}
        for pod in self.cluster.peek_all(Kind.POD, labels=selector(name)):
            if pod["metadata"]["name"] not in names:
                self.remove_pod(pod["metadata"]["name"])
        for pod in wanted:
            self.cluster.put(pod)
        self.cluster.set_status(
            Kind.DEPLOYMENT,
            NAMESPACE,
            name,
            {
                "observedGeneration": deployment["metadata"]["generation"],
                "replicas": replicas,
                "updatedReplicas": replicas,
                "readyReplicas": replicas if ready else 0,
                "availableReplicas": replicas if ready else 0,
            },
        )

    def remove_pod(self, pod: str) -> None:
        """Remove a pod; one of its name is another pod with a run of its own."""
        self.cluster.remove(Kind.POD, NAMESPACE, pod)
        self.runs.pop(pod, None)

    def restart_containers(self) -> None:
        """Let the kubelet start all engines anew, in the pods that they are in."""
        self.runs = {pod: (self._time(), restarts + 1) for pod, (_, restarts) in self.runs.items()}

    def _time(self) -> str:
        return f"{self.engines.now:%Y-%m-%dT%H:%M:%SZ}"

    def _pod(self, name: str, template: Json, index: int, container: Json | None) -> Json:
        template_hash = _hash(template)
        pod = f"{name}-{template_hash}-{index}"
        started_at, restarts = self.runs.setdefault(pod, (self._time(), 0))
        running = {
            "name": "engine",
            "ready": True,
            "restartCount": restarts,
            "imageID": "registry.example/vllm@sha256:" + "ab" * 32,
            "state": {"running": {"startedAt": started_at}},
        }
        made = _pod(pod, name, template_hash, index, container or running)
        ready_at = datetime.fromisoformat(started_at) + timedelta(seconds=START_SECONDS)
        made["status"]["conditions"] = [
            {
                "type": "Ready",
                "status": "True" if container is None else "False",
                "lastTransitionTime": f"{ready_at:%Y-%m-%dT%H:%M:%SZ}",
            }
        ]
        made["spec"] = {**template["spec"], **made["spec"]}
        return made


def _hash(template: Json) -> str:
    # Not Python's own: that differs from run to run, and with it the order of pods by name.
    return f"{crc32(str(template).encode()):08x}"


def _pod(pod: str, name: str, template_hash: str, index: int, container: Json) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod,
            "namespace": NAMESPACE,
            "labels": {"ballonet.io/pool": name, "pod-template-hash": template_hash},
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "ownerReferences": [
                {
                    "apiVersion": "apps/v1",
                    "kind": "ReplicaSet",
                    "name": f"{name}-{template_hash}",
                    "uid": "rs",
                    "controller": True,
                }
            ],
        },
        "spec": {"nodeName": NODE},
        "status": {
            "podIP": f"10.0.0.{index + 1}",
            "containerStatuses": [container],
        },
    }
