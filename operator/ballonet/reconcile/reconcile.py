"""One pass over one pool: gather, decide, apply, say it in status. Level-triggered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Final, NamedTuple, Protocol

import structlog

from ballonet.api.conditions import ConditionType, Finding, Reason, Status, is_warning
from ballonet.api.v1alpha1 import InferencePoolSpec
from ballonet.catalog import Catalog
from ballonet.cluster.lease import LEASE_SECONDS
from ballonet.cluster.port import ApiError, Cluster, Json, Kind
from ballonet.diagnosis.diagnose import Courses
from ballonet.planning.capacity import given_bytes
from ballonet.planning.plan import Plan
from ballonet.planning.planner import plan_pool
from ballonet.planning.receipts import NO_RECEIPTS, Receipts
from ballonet.reconcile import status as pool_status
from ballonet.reconcile.decide import Decision, broken, decide
from ballonet.reconcile.drift import must_apply
from ballonet.reconcile.engines import Engines
from ballonet.reconcile.gather import (
    Observed,
    read_children,
    read_config,
    read_last_words,
    read_pods,
    read_probe,
    read_spec,
)
from ballonet.reconcile.merge import fingerprint
from ballonet.reconcile.ownership import INSTALLATION_ANNOTATION, Child
from ballonet.reconcile.pods import EndedRun, rolling_out, targets, unseen
from ballonet.reconcile.receipts import ReceiptBook
from ballonet.reconcile.record import ANNOTATION, normal_form
from ballonet.reconcile.starts import receipt_status, starts
from ballonet.telemetry.port import EngineSample, MetricsSource

log = structlog.get_logger(__name__)

# The spec must stay unchanged for the first, but a change never waits longer than the second.
QUIET_SECONDS: Final = 2.0
LONGEST_WAIT_SECONDS: Final = 10.0
SERVING_PERIOD_SECONDS: Final = 15.0
# More pools than 300 have passes less often, each being five requests to the API server. Their
# engines are read in between: a little after a pass would have, so that it has the first go.
SERVING_PASSES_PER_SECOND: Final = 20.0
LOOK_PERIOD_SECONDS: Final = SERVING_PERIOD_SECONDS + 1.0
# What no pass has confirmed for so long, and for two periods, may be the address of another pod.
LOOKED_AT_SECONDS: Final = 120.0
STARTING_PERIOD_SECONDS: Final = 10.0
# Referenced ConfigMaps are not watched: that would need a watch on everybody's.
REFERENCE_PERIOD_SECONDS: Final = 60.0
IDLE_PERIOD_SECONDS: Final = 600.0
_REFUSED_AGAIN_SECONDS: Final = 600.0


class PoolKey(NamedTuple):
    """Which pool."""

    namespace: str
    name: str


@dataclass(frozen=True)
class Outcome:
    """How a pass ended: when to look again without an event, and what was found and left.

    Live numbers of the engines are in ``samples`` alone: in status they would change all the time.
    """

    requeue_after_seconds: float | None
    status: Json | None = None
    samples: tuple[EngineSample, ...] = ()


class EventSink(Protocol):
    """Where transitions are told; a failure to tell is never a failure of the pass."""

    async def record(
        self, pool: Json, *, warning: bool, reason: str, action: str, note: str
    ) -> None:
        """Tell one transition of a pool."""


class _NamespaceLeavingError(Exception):
    """The pool's namespace is being deleted, and the pool with it."""


@dataclass(frozen=True)
class _Refused:
    """A Deployment that the API server refused, what is said of it, and when that was."""

    fingerprint: str
    finding: Finding
    at: float


@dataclass
class _Memory:
    """What a process remembers of a pool between passes; nothing breaks when it is lost."""

    uid: str
    engines: Engines
    generation: int = 0
    changed_at: float = 0.0
    burst_began_at: float = 0.0
    plans: dict[str, Plan | None] = field(default_factory=dict)
    earlier_plans: dict[str, Plan | None] = field(default_factory=dict)
    words: dict[EndedRun, str] = field(default_factory=dict)
    refused: _Refused | None = None
    # The record of what was applied last, so that a Deployment deleted by hand is put back as it
    # was. As text, which is small.
    applied: str | None = None
    courses: Courses | None = None


class Reconciler:
    """Brings pools to their spec. One instance serves all; passes over one pool never overlap.

    Args:
        cluster: the API server.
        metrics: where engines are read.
        events: where transitions are told.
        catalog: devices and models that pools can name.
        installation: namespace/lease of this operator.
        now: the time of day.
        monotonic: seconds that never run backwards.
    """

    def __init__(
        self,
        cluster: Cluster,
        metrics: MetricsSource,
        events: EventSink,
        *,
        catalog: Catalog,
        installation: str,
        now: Callable[[], datetime],
        monotonic: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._metrics = metrics
        self._events = events
        self._catalog = catalog
        self._installation = installation
        self._now = now
        self._monotonic = monotonic
        self._memory: dict[PoolKey, _Memory] = {}
        self._receipts = ReceiptBook(cluster, monotonic)

    async def reconcile(self, key: PoolKey) -> Outcome:
        """Make one pass.

        Raises:
            ApiError: the API server refused or could not be reached; the pass is to be repeated.
        """
        pool = await self._cluster.get(Kind.POOL, key.namespace, key.name)
        if pool is None:
            self.forget(key)
            return Outcome(None)
        # The garbage collector removes the children; writing now would make new ones.
        if pool["metadata"].get("deletionTimestamp"):
            self.forget(key)
            return Outcome(None)
        memory = self._recall(key, pool)
        children = await read_children(self._cluster, pool)
        if await self._is_held_elsewhere(pool, children[0]):
            memory.engines.found([])
            return Outcome(REFERENCE_PERIOD_SECONDS)
        observed = await self._gather(pool, children, memory)
        own = observed.deployment.own
        decide_now = partial(
            decide,
            observed,
            planner=partial(self._plan, name=key.name, memory=memory),
            installation=self._installation,
            settle_seconds=self._settle_seconds(memory),
        )
        memory.earlier_plans, memory.plans = memory.plans, {}
        try:
            decision = decide_now()
        except Exception as fault:
            # A fault of ours on one pool must show there and not take the others along.
            await self._write_status(pool, broken(pool, fault), own)
            raise
        try:
            refusal, error = await self._apply(observed, decision, memory)
        except _NamespaceLeavingError:
            return Outcome(None)
        if refusal is not None:
            decision = decide_now(refusal=refusal)
        elif decision.replaces_pods:
            # What is edited from now on is for the next roll-out.
            memory.burst_began_at = self._monotonic()
        memory.courses = decision.running.courses
        decision = await self._with_receipt(observed, decision)
        written = await self._write_status(pool, decision, own)
        if error is not None:
            raise error
        return Outcome(
            _requeue_after(observed, decision, len(self._memory)),
            written,
            observed.samples,
        )

    def due_looks(self) -> list[PoolKey]:
        """Return the pools whose engines nobody has read for a period.

        Without those whose last pass is too long ago: the API server may be away.
        """
        known_seconds = max(LOOKED_AT_SECONDS, 2 * _serving_period(len(self._memory)))
        return [
            key
            for key, memory in self._memory.items()
            if memory.engines.are_due(
                unread_seconds=LOOK_PERIOD_SECONDS, found_seconds=known_seconds
            )
        ]

    async def look(self, key: PoolKey) -> tuple[EngineSample, ...]:
        """Read the engines that the last pass found, for the next one to look back on.

        Asks the API server nothing and decides nothing: a pod that comes or goes has a pass.
        """
        memory = self._memory.get(key)
        if memory is None:
            return ()
        return tuple(r for r in await memory.engines.read() if isinstance(r, EngineSample))

    def forget(self, key: PoolKey) -> None:
        """Drop what is remembered of a pool that is gone."""
        self._memory.pop(key, None)
        if not any(other.namespace == key.namespace for other in self._memory):
            self._receipts.forget(key.namespace)

    # --- gather ----------------------------------------------------------------------------------

    def _recall(self, key: PoolKey, pool: Json) -> _Memory:
        metadata = pool["metadata"]
        memory = self._memory.get(key)
        if memory is None or memory.uid != metadata["uid"]:
            engines = Engines(self._metrics, self._now, self._monotonic)
            memory = self._memory[key] = _Memory(metadata["uid"], engines)
        if memory.generation != metadata.get("generation"):
            now = self._monotonic()
            if now - memory.changed_at >= QUIET_SECONDS:
                memory.burst_began_at = now
            memory.changed_at = now
            memory.generation = metadata.get("generation", 0)
        return memory

    def _settle_seconds(self, memory: _Memory) -> float:
        now = self._monotonic()
        quiet = memory.changed_at + QUIET_SECONDS - now
        longest = memory.burst_began_at + LONGEST_WAIT_SECONDS - now
        return max(0.0, min(quiet, longest))

    async def _is_held_elsewhere(self, pool: Json, deployment: Child) -> bool:
        """Return whether another live installation of the operator looks after the pool.

        The status alone decides where it says so: two that began at the same moment would else
        each find the other's name in one place, and both leave the pool alone.
        """
        annotations = (deployment.own or {}).get("metadata", {}).get("annotations", {})
        holder = pool.get("status", {}).get("installation") or annotations.get(
            INSTALLATION_ANNOTATION, self._installation
        )
        if holder == self._installation or not await self._is_alive(holder):
            return False
        log.warning(
            "Left a pool alone that another installation looks after",
            pool=pool["metadata"]["name"],
            namespace=pool["metadata"]["namespace"],
            installation=holder,
        )
        return True

    async def _is_alive(self, installation: str) -> bool:
        namespace, _, name = installation.partition("/")
        try:
            lease = await self._cluster.get(Kind.LEASE, namespace, name)
        except ApiError as error:
            if error.forbidden:
                # Without the right to look, doing nothing is the safe answer.
                log.warning(
                    "Lease of another installation may not be read: allow it, or clear "
                    "status.installation of its pools and the annotation of their Deployments",
                    installation=installation,
                )
                return True
            raise
        spec = (lease or {}).get("spec", {})
        renewed = spec.get("renewTime")
        if not renewed or not spec.get("holderIdentity"):
            return False
        age = self._now() - datetime.fromisoformat(renewed)
        return age < timedelta(seconds=3 * int(spec.get("leaseDurationSeconds", LEASE_SECONDS)))

    async def _gather(
        self, pool: Json, children: tuple[Child, Child, Child], memory: _Memory
    ) -> Observed:
        spec, problem = read_spec(pool)
        config_text = None
        if spec is not None:
            config_text, problem = await read_config(
                self._cluster, pool["metadata"]["namespace"], spec
            )
        pods = await read_pods(self._cluster, pool, children[0])
        memory.words = await read_last_words(self._cluster, pods, memory.words)
        memory.engines.found(targets(pods), spec.metrics.connection if spec else None)
        readings = await memory.engines.read()
        return Observed(
            pool=pool,
            spec=spec,
            problem=problem,
            config_text=config_text,
            deployment=children[0],
            service=children[1],
            budget=children[2],
            probe=await read_probe(self._cluster, pool, spec, children[0]),
            pods=pods,
            last_words={run.pod: words for run, words in memory.words.items()},
            readings=readings,
            history=memory.engines.history(),
            versions=memory.engines.versions(),
            applied=memory.applied,
            courses=memory.courses,
            receipts=await self._read_receipts(pool, spec),
        )

    async def _read_receipts(self, pool: Json, spec: InferencePoolSpec | None) -> Receipts:
        """Return the receipts of the pool's namespace; memory that is given needs none."""
        if spec is None or given_bytes(spec) is not None:
            return NO_RECEIPTS
        return await self._receipts.read(pool["metadata"]["namespace"])

    def _plan(
        self,
        spec: Json,
        config_text: str | None,
        receipts: Receipts,
        *,
        with_remedies: bool = False,
        name: str,
        memory: _Memory,
    ) -> Plan | None:
        """Return the plan, worked out once for the same inputs: passes are many, edits are few.

        Only those that the last pass needed are kept: a ConfigMap may change for ever.
        """
        key = fingerprint([spec, config_text, with_remedies, receipts.text()])
        if key in memory.earlier_plans:
            memory.plans[key] = memory.earlier_plans[key]
        elif key not in memory.plans:
            parsed = normal_form(spec)
            memory.plans[key] = (
                plan_pool(
                    name,
                    parsed.model_copy(update={"replicas": spec.get("replicas", 1)}),
                    config_text,
                    catalog=self._catalog,
                    with_remedies=with_remedies,
                    receipts=receipts,
                )
                if isinstance(parsed, InferencePoolSpec)
                else None
            )
        return memory.plans[key]

    # --- apply -----------------------------------------------------------------------------------

    async def _apply(
        self, observed: Observed, decision: Decision, memory: _Memory
    ) -> tuple[Finding | None, ApiError | None]:
        """Write what differs; return what the API server refuses, and what to retry for."""
        try:
            for left_over in decision.deletes:
                metadata = left_over["metadata"]
                await self._cluster.delete(
                    Kind.of(left_over), metadata["namespace"], metadata["name"], uid=metadata["uid"]
                )
            for desired in decision.applies:
                refusal = await self._apply_child(observed.live_of(desired), desired, memory)
                if refusal is not None:
                    return refusal, None
            if decision.applies:
                *_, deployment = decision.applies
                memory.applied = deployment["metadata"]["annotations"][ANNOTATION]
        except ApiError as error:
            if error.namespace_leaving:
                raise _NamespaceLeavingError from error
            # Those that pass by themselves leave status as it is.
            if error.unreachable or error.conflict or error.throttled or error.status >= 500:
                raise
            finding = Finding(
                Status.FALSE,
                Reason.APPLY_FAILED,
                f"the API server answered {error.status} {error.reason}: {error.message}",
            )
            return finding, error
        return None, None

    async def _apply_child(
        self, live: Json | None, desired: Json, memory: _Memory
    ) -> Finding | None:
        """Write one child if it differs. Returns why the API server refuses the template, if so."""
        if not must_apply(live, desired):
            return None
        is_deployment = desired["kind"] == Kind.DEPLOYMENT.kind
        wanted = fingerprint(desired)
        refused = memory.refused
        # The same object would be refused again: only an edit, or a changed cluster, helps.
        if (
            refused is not None
            and refused.fingerprint == wanted
            and self._monotonic() - refused.at < _REFUSED_AGAIN_SECONDS
        ):
            return refused.finding
        version = None
        if live is not None:
            # In the version it was decided on, so that no newer change is lost and nothing that
            # was deleted meanwhile is made anew under our feet.
            version = live["metadata"]["resourceVersion"]
            identity = {"uid": live["metadata"]["uid"]}
            desired = {**desired, "metadata": {**desired["metadata"], **identity}}
        try:
            await self._cluster.apply(desired, resource_version=version)
        except ApiError as error:
            if is_deployment and (error.invalid or error.unparsable):
                finding = Finding(
                    Status.FALSE,
                    Reason.INVALID_POD_TEMPLATE,
                    f"the API server refuses the Deployment: {error.message}",
                )
                memory.refused = _Refused(wanted, finding, self._monotonic())
                return finding
            raise
        memory.refused = None if is_deployment else memory.refused
        log.info(
            "Applied",
            kind=desired["kind"],
            name=desired["metadata"]["name"],
            namespace=desired["metadata"]["namespace"],
        )
        return None

    async def _with_receipt(self, observed: Observed, decision: Decision) -> Decision:
        """Count the starts that are new, and return the decision with what all of them measured."""
        record, serving, own = decision.record, decision.running.serving, observed.deployment.own
        if record is None or serving is None or own is None:
            return decision
        # A receipt stays: a scaled pool may have a template that was put back a moment ago, too.
        new = (
            []
            if unseen(own)
            else list(starts(record, serving, observed.pods, observed.samples, observed.receipts))
        )
        namespace = observed.pool["metadata"]["namespace"]
        receipts = await self._receipts.count(namespace, new) if new else observed.receipts
        return replace(decision, receipt=receipt_status(receipts, record, serving))

    # --- status ----------------------------------------------------------------------------------

    async def _write_status(self, pool: Json, decision: Decision, own: Json | None) -> Json:
        status = pool_status.build(pool, decision, own, self._installation, self._now())
        if not pool_status.differs(pool, status):
            return status
        await self._cluster.write_status(pool_status.written(pool, status))
        for condition in pool_status.transitions(pool, status):
            await self._events.record(
                pool,
                warning=is_warning(condition.type, condition.status, condition.reason),
                reason=condition.reason,
                action=condition.type,
                note=condition.message,
            )
        return status


def _serving_period(pools: int) -> float:
    return max(SERVING_PERIOD_SECONDS, pools / SERVING_PASSES_PER_SECOND)


def _requeue_after(observed: Observed, decision: Decision, pools: int) -> float:
    configured = decision.findings[ConditionType.CONFIGURED]
    if decision.settle_seconds > 0:
        return decision.settle_seconds
    if configured.reason is Reason.SETTLING:
        return STARTING_PERIOD_SECONDS
    if decision.record is not None:
        live = observed.deployment.live
        serving = decision.findings[ConditionType.AVAILABLE].status is Status.TRUE
        if live is None or rolling_out(live) or not serving:
            return STARTING_PERIOD_SECONDS
        return _serving_period(pools)
    spec = observed.spec
    if spec is not None and spec.model.config is not None and spec.model.config.config_map_ref:
        return REFERENCE_PERIOD_SECONDS
    return IDLE_PERIOD_SECONDS
