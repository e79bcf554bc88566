"""Condition types and reasons, and how Ready, Reconciling and Stalled follow from the others.

Every word that appears in a condition or an Event stands here once. Polarity: all types are good
when True, but for KVPressure, and for Reconciling and Stalled, which are present only when True.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Self


class Status(StrEnum):
    """Status of a condition."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class _Word(StrEnum):
    """Words of which each has a text about it."""

    doc: str

    def __new__(cls, value: str, doc: str) -> Self:
        """Make a member from the word and its text."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.doc = doc
        return member


class ConditionType(_Word):
    """Types of conditions; the text says what True means."""

    READY = "Ready", "The current generation is applied and serves."
    RECONCILING = "Reconciling", "The operator or the cluster is still at work; present only then."
    STALLED = "Stalled", "A person must edit something first; present only then."
    SPEC_RESOLVED = "SpecResolved", "Model, device and engine version are known."
    BUDGET_COMPUTED = "BudgetComputed", "The KV block budget could be worked out."
    BUDGET_VERIFIED = "BudgetVerified", "The running engine reports at least the planned budget."
    TOPOLOGY_FITS = "TopologyFits", "All declared topologies fit the budget at the same time."
    CONFIGURED = "Configured", "The objects of the current generation are applied."
    AVAILABLE = "Available", "As many engine pods serve as were asked for."
    METRICS_AVAILABLE = "MetricsAvailable", "Every serving engine reports fresh, plausible metrics."
    KV_PRESSURE = "KVPressure", "Live numbers say that KV memory or slots are short."
    ENGINE_HEALTHY = "EngineHealthy", "Engines that have work make progress."
    SEQUENCES_OBSERVED = (
        "SequencesObserved",
        "The probe in every serving engine reports; present only with spec.metrics.perSequence.",
    )


class Reason(_Word):
    """Reasons of conditions and Events; the text says what it means and what to do."""

    # SpecResolved
    RESOLVED = "Resolved", "Model, device and engine version are known."
    INVALID_SPEC = "InvalidSpec", "A field cannot be used as it is stored; edit it."
    UNKNOWN_MODEL = "UnknownModel", "The catalog lacks the model; give spec.model.config."
    INVALID_MODEL_CONFIG = "InvalidModelConfig", "config.json is unusable; mend the named field."
    CONFIG_NOT_FOUND = "ConfigNotFound", "The ConfigMap or its key is missing; create it."
    UNKNOWN_ACCELERATOR = "UnknownAccelerator", "The catalog lacks the device; use a listed name."
    UNKNOWN_ENGINE_VERSION = (
        "UnknownEngineVersion",
        "No flag table for this version; use a listed one.",
    )
    UNSUPPORTED_BY_ENGINE = (
        "UnsupportedByEngine",
        "This engine version or device cannot do the named field.",
    )
    SPEC_UNRESOLVED = "SpecUnresolved", "Nothing can be worked out until SpecResolved is True."
    # BudgetComputed
    GIVEN = "Given", "The KV memory was given, so the blocks are exact."
    PREDICTED = "Predicted", "The KV memory was predicted from the device, as an interval."
    RECEIPT = "Receipt", "The KV memory is what starts of this configuration measured."
    LAYOUT_NOT_UNDERSTOOD = (
        "LayoutNotUnderstood",
        "The model's cache layout is not planned for; start it and let the engine report.",
    )
    UNPLANNED_ARGUMENT = (
        "UnplannedArgument",
        "An engine argument changes layout or memory in a way that is not planned for.",
    )
    WEIGHTS_UNKNOWN = (
        "WeightsUnknown",
        "The size of the weights is unknown; give spec.model.weights.",
    )
    MEMORY_UNKNOWN = (
        "MemoryUnknown",
        "What this model needs beside KV blocks is not known for this device and engine version; "
        "give spec.budget.kvCacheMemoryPerRank, or start it and let the engine report.",
    )
    MODEL_DOES_NOT_FIT = (
        "ModelDoesNotFit",
        "Weights and working memory leave no room for KV blocks.",
    )
    CEILING_DOES_NOT_FIT = (
        "CeilingDoesNotFit",
        "Not even one sequence at its ceiling fits; the engine would not start.",
    )
    # TopologyFits
    FITS = "Fits", "The need is at most the budget."
    NO_TOPOLOGY = "NoTopology", "No topology is declared; one sequence at the ceiling fits."
    EXCEEDS_BUDGET = (
        "ExceedsBudget",
        "Fewer sequences fit than are needed at once; the rest would queue.",
    )
    WOULD_DEADLOCK = (
        "WouldDeadlock",
        "Sequences that hold their slot while they wait leave none for what they wait for.",
    )
    WITHIN_UNCERTAINTY = (
        "WithinUncertainty",
        "The need, or a start at all, lies inside the prediction; the running engine will decide.",
    )
    BUDGET_UNKNOWN = "BudgetUnknown", "There is no budget to compare with."
    # BudgetVerified
    CONFIRMED = "Confirmed", "The engine reports at least the planned budget."
    BELOW_PLAN = "BelowPlan", "The engine reports less than the planned budget."
    NO_ENGINE_REPORT = "NoEngineReport", "No engine has reported its blocks yet."
    # Configured
    APPLIED = "Applied", "The objects of the current generation are applied."
    UPDATE_PENDING = (
        "UpdatePending",
        "A newer operator or catalog, a changed ConfigMap, a pin or other replicas would render "
        "the pool differently; it goes out with the next roll-out.",
    )
    SETTLING = "Settling", "Waiting for the spec to stay unchanged before pods are replaced."
    REFUSED = "Refused", "Not applied because the topology does not fit and whenUnfit is Refuse."
    FLAG_REFUSED = (
        "FlagRefused",
        "An argument, variable or template field that Ballonet owns was set.",
    )
    INVALID_POD_TEMPLATE = "InvalidPodTemplate", "The API server refuses engine.podTemplate."
    NAME_TAKEN = "NameTaken", "An object of the needed name belongs to somebody else."
    APPLY_FAILED = "ApplyFailed", "The API server refused or could not be reached; tried again."
    # Available
    MINIMUM_REPLICAS = "MinimumReplicasAvailable", "As many pods serve as were asked for."
    NOT_STARTED = "NotStarted", "No pods were asked for from the cluster."
    STARTING = "Starting", "Pods are being started or replaced."
    IMAGE_PULL_FAILED = "ImagePullFailed", "The image cannot be had."
    CONTAINER_NOT_CREATED = (
        "ContainerNotCreated",
        "What the container refers to is missing or wrong.",
    )
    CRASH_LOOP = "CrashLoop", "The engine ends again and again."
    OOM_KILLED = "OOMKilled", "The container used more memory than its limit."
    UNSCHEDULABLE = "Unschedulable", "No node has what the pod asks for."
    CLAIM_NOT_BOUND = "ClaimNotBound", "A PersistentVolumeClaim is missing or not bound."
    REPLICA_FAILURE = "ReplicaFailure", "Pods cannot be created: quota, pod security or admission."
    ENGINE_REFUSED_TO_START = (
        "EngineRefusedToStart",
        "The engine says that the model or its ceiling does not fit the memory it found.",
    )
    OUT_OF_DEVICE_MEMORY = (
        "OutOfDeviceMemory",
        "The device ran out of memory when the engine started; give it less, or unpin.",
    )
    VERSION_MISMATCH = "VersionMismatch", "The running engine is of another version than declared."
    PROGRESS_DEADLINE = "ProgressDeadlineExceeded", "The roll-out took longer than its deadline."
    # MetricsAvailable
    SCRAPED = "Scraped", "All serving engines reported."
    NO_ENGINE = "NoEngine", "No engine serves, so there is nothing to read."
    UNREACHABLE = "Unreachable", "An engine did not answer in time."
    STALE = "Stale", "The newest report of an engine is too old."
    INVALID_METRICS = "InvalidMetrics", "An engine reported what cannot be."
    AMBIGUOUS_METRICS = (
        "AmbiguousMetrics",
        "Two engines claim to be the same one: a pod is scraped twice, or names are.",
    )
    UNKNOWN_CONNECTION = (
        "UnknownConnection",
        "The operator has no Prometheus connection of that name, or cannot use it.",
    )
    SOURCE_UNREACHABLE = "SourceUnreachable", "Prometheus did not answer, or refused to."
    AWAITING_SCRAPE = "AwaitingScrape", "Prometheus has not scraped a new engine pod yet."
    NO_SERIES = "NoSeries", "Prometheus has no fresh series of an engine pod."
    # KVPressure and EngineHealthy: the verdicts of the diagnosis
    NO_VERDICT = "NoVerdict", "There are no fresh numbers, or not enough of them, to judge by."
    ENGINE_STUCK = "EngineStuck", "An engine has work and has stood still; restart its pod."
    PREEMPTING = "Preempting", "Running sequences lost their blocks and had to begin again."
    REJECTING = "Rejecting", "The bound of the queue turned requests away."
    BLOCK_BOUND = "BlockBound", "Requests wait although slots are free: KV blocks are short."
    SLOT_BOUND = "SlotBound", "Requests wait because all slots are taken."
    LIMIT_TOO_TIGHT = (
        "LimitTooTight",
        "Requests wait for a slot while much of the KV memory is not used.",
    )
    COMPUTE_BOUND = (
        "ComputeBound",
        "Requests wait although slots and blocks are free: the engine's steps are full.",
    )
    LONG_CONTEXT = "LongContext", "Memory fills because sequences grow long, not because of more."
    LONG_CONTEXT_AND_ADMISSION = (
        "LongContextAndAdmission",
        "Memory fills because sequences grow long and because there are more of them.",
    )
    CEILING_HIT = "CeilingHit", "Sequences run into the pool's ceiling."
    ROLE_CEILING_EXCEEDED = (
        "RoleCeilingExceeded",
        "Sequences hold more tokens than their role declares; the probe sees it.",
    )
    PREFIX_MISS = "PrefixMiss", "A declared prefix is not found in the cache as it should be."
    CACHE_CHURN = "CacheChurn", "Cached blocks are lost before they are used again."
    OFFLOAD_THRASH = "OffloadThrash", "Blocks go to host memory and are not used from there."
    OVERPROVISIONED = "Overprovisioned", "Most of the KV memory has not been used for long."
    IDLE = "Idle", "No request has come for some time."
    HEALTHY = "Healthy", "Live numbers show nothing wrong."
    # SequencesObserved
    PROBED = "Probed", "The probes of all serving engines reported."
    PROBE_ABSENT = (
        "ProbeAbsent",
        "A probe does not answer: the engine did not load it, or its port is not reached.",
    )
    PROBE_OFF = "ProbeOff", "A probe met something it does not understand and switched itself off."
    # Ready and Reconciling
    SERVING = "Serving", "The current generation is applied and serves."
    INTERNAL_ERROR = "InternalError", "The operator met an error of its own; its log says more."


@dataclass(frozen=True)
class Finding:
    """The outcome of one question: what one condition will say, without times."""

    status: Status
    reason: Reason
    message: str


# Types that are always present, in the order in which a person should read them.
FINDING_TYPES: Final = (
    ConditionType.SPEC_RESOLVED,
    ConditionType.BUDGET_COMPUTED,
    ConditionType.TOPOLOGY_FITS,
    ConditionType.CONFIGURED,
    ConditionType.AVAILABLE,
    ConditionType.METRICS_AVAILABLE,
    ConditionType.BUDGET_VERIFIED,
    ConditionType.KV_PRESSURE,
    ConditionType.ENGINE_HEALTHY,
)
# What needs a person: waiting does not help, an edit (of the pool or of what it names) does.
_UNRESOLVED: Final = (
    Reason.INVALID_SPEC,
    Reason.UNKNOWN_MODEL,
    Reason.INVALID_MODEL_CONFIG,
    Reason.CONFIG_NOT_FOUND,
    Reason.UNKNOWN_ACCELERATOR,
    Reason.UNKNOWN_ENGINE_VERSION,
    Reason.UNSUPPORTED_BY_ENGINE,
)
_NO_BUDGET: Final = (Reason.MODEL_DOES_NOT_FIT, Reason.CEILING_DOES_NOT_FIT)
NEEDS_EDIT: Final = frozenset(
    {
        *_UNRESOLVED,
        *_NO_BUDGET,
        Reason.REFUSED,
        Reason.FLAG_REFUSED,
        Reason.INVALID_POD_TEMPLATE,
        Reason.NAME_TAKEN,
    }
)
# Every type may be Unknown with these: before the first look, and when the operator itself fails.
ALWAYS_POSSIBLE: Final = (Reason.INTERNAL_ERROR,)
# Verdicts that mean that memory or slots are short, those that mean another fault, and the others.
PRESSURE: Final = (
    Reason.PREEMPTING,
    Reason.REJECTING,
    Reason.BLOCK_BOUND,
    Reason.SLOT_BOUND,
    Reason.LIMIT_TOO_TIGHT,
    Reason.LONG_CONTEXT,
    Reason.LONG_CONTEXT_AND_ADMISSION,
    Reason.CACHE_CHURN,
    Reason.OFFLOAD_THRASH,
)
_FAULTS: Final = (
    Reason.COMPUTE_BOUND,
    Reason.CEILING_HIT,
    Reason.ROLE_CEILING_EXCEEDED,
    Reason.PREFIX_MISS,
)
_CALM: Final = (Reason.OVERPROVISIONED, Reason.IDLE, Reason.HEALTHY)
# Which reasons each type may have by status; Ready, Reconciling and Stalled repeat those of others.
REASONS: Final[dict[ConditionType, dict[Status, tuple[Reason, ...]]]] = {
    ConditionType.SPEC_RESOLVED: {
        Status.TRUE: (Reason.RESOLVED,),
        Status.FALSE: _UNRESOLVED,
        Status.UNKNOWN: ALWAYS_POSSIBLE,
    },
    ConditionType.BUDGET_COMPUTED: {
        Status.TRUE: (Reason.GIVEN, Reason.PREDICTED, Reason.RECEIPT),
        Status.FALSE: _NO_BUDGET,
        Status.UNKNOWN: (
            Reason.SPEC_UNRESOLVED,
            Reason.LAYOUT_NOT_UNDERSTOOD,
            Reason.UNPLANNED_ARGUMENT,
            Reason.WEIGHTS_UNKNOWN,
            Reason.MEMORY_UNKNOWN,
            *ALWAYS_POSSIBLE,
        ),
    },
    ConditionType.TOPOLOGY_FITS: {
        Status.TRUE: (Reason.FITS, Reason.NO_TOPOLOGY),
        Status.FALSE: (Reason.EXCEEDS_BUDGET, Reason.WOULD_DEADLOCK),
        Status.UNKNOWN: (Reason.WITHIN_UNCERTAINTY, Reason.BUDGET_UNKNOWN, *ALWAYS_POSSIBLE),
    },
    ConditionType.CONFIGURED: {
        Status.TRUE: (Reason.APPLIED, Reason.UPDATE_PENDING),
        Status.FALSE: (
            *_UNRESOLVED,
            *_NO_BUDGET,
            Reason.REFUSED,
            Reason.FLAG_REFUSED,
            Reason.INVALID_POD_TEMPLATE,
            Reason.NAME_TAKEN,
            Reason.SETTLING,
            Reason.APPLY_FAILED,
        ),
        Status.UNKNOWN: ALWAYS_POSSIBLE,
    },
    ConditionType.AVAILABLE: {
        Status.TRUE: (Reason.MINIMUM_REPLICAS,),
        Status.FALSE: (
            Reason.NOT_STARTED,
            Reason.STARTING,
            Reason.REPLICA_FAILURE,
            Reason.UNSCHEDULABLE,
            Reason.CLAIM_NOT_BOUND,
            Reason.IMAGE_PULL_FAILED,
            Reason.CONTAINER_NOT_CREATED,
            Reason.ENGINE_REFUSED_TO_START,
            Reason.OUT_OF_DEVICE_MEMORY,
            Reason.CRASH_LOOP,
            Reason.OOM_KILLED,
            Reason.VERSION_MISMATCH,
            Reason.PROGRESS_DEADLINE,
        ),
        Status.UNKNOWN: ALWAYS_POSSIBLE,
    },
    ConditionType.METRICS_AVAILABLE: {
        Status.TRUE: (Reason.SCRAPED,),
        Status.FALSE: (
            Reason.UNREACHABLE,
            Reason.STALE,
            Reason.INVALID_METRICS,
            Reason.AMBIGUOUS_METRICS,
            Reason.UNKNOWN_CONNECTION,
            Reason.SOURCE_UNREACHABLE,
            Reason.NO_SERIES,
        ),
        Status.UNKNOWN: (Reason.NO_ENGINE, Reason.AWAITING_SCRAPE, *ALWAYS_POSSIBLE),
    },
    ConditionType.BUDGET_VERIFIED: {
        Status.TRUE: (Reason.CONFIRMED,),
        Status.FALSE: (Reason.BELOW_PLAN,),
        Status.UNKNOWN: (Reason.NO_ENGINE_REPORT, *ALWAYS_POSSIBLE),
    },
    ConditionType.KV_PRESSURE: {
        Status.TRUE: PRESSURE,
        Status.FALSE: (*_FAULTS, *_CALM),
        Status.UNKNOWN: (Reason.NO_VERDICT, Reason.ENGINE_STUCK, *ALWAYS_POSSIBLE),
    },
    ConditionType.ENGINE_HEALTHY: {
        Status.TRUE: (Reason.HEALTHY,),
        Status.FALSE: (Reason.ENGINE_STUCK,),
        Status.UNKNOWN: (Reason.NO_VERDICT, *ALWAYS_POSSIBLE),
    },
    ConditionType.SEQUENCES_OBSERVED: {
        Status.TRUE: (Reason.PROBED,),
        Status.FALSE: (Reason.PROBE_ABSENT, Reason.PROBE_OFF, Reason.INVALID_METRICS),
        Status.UNKNOWN: (Reason.NO_ENGINE, *ALWAYS_POSSIBLE),
    },
}


# False for a while in every start and roll-out that goes well.
_PROGRESS: Final = frozenset({Reason.STARTING, Reason.SETTLING})


def is_warning(kind: str, status: str, reason: str) -> bool:
    """Return whether a condition says something that somebody should look into."""
    return _is_bad(kind, status, reason) and reason not in _PROGRESS


def _is_bad(kind: str, status: str, reason: str) -> bool:
    if kind == ConditionType.KV_PRESSURE:
        return status != Status.UNKNOWN and reason not in _CALM
    return status == Status.FALSE


def is_news(kind: str, now: tuple[str, str], before: tuple[str, str] | None) -> bool:
    """Return whether a condition's (status, reason) deserves an Event.

    A condition that appears in good health, or is Unknown, is no news; of the conditions that live
    numbers decide neither is one calm verdict after another.
    """
    if now[0] == Status.UNKNOWN or now == before:
        return False
    live = kind in (ConditionType.KV_PRESSURE, ConditionType.ENGINE_HEALTHY)
    earlier = before is not None and not (live and not _is_bad(kind, *before))
    return earlier or _is_bad(kind, *now)


def summarize(findings: dict[ConditionType, Finding]) -> dict[ConditionType, Finding]:
    """Return the findings with Ready and, where they are True, Reconciling or Stalled.

    The truth table (docs/conditions.md): Ready is True when Configured and Available are; a pool
    whose current generation is not applied for a reason that only an edit can cure is Stalled;
    anything else that is not Ready is Reconciling. Metrics, verification and a topology that was
    measured not to fit never change Ready.
    """
    configured = findings[ConditionType.CONFIGURED]
    available = findings[ConditionType.AVAILABLE]
    if configured.status is Status.TRUE and available.status is Status.TRUE:
        ready = Finding(Status.TRUE, Reason.SERVING, available.message)
        return {ConditionType.READY: ready, **findings}
    cause = available if configured.status is Status.TRUE else configured
    if configured.status is Status.FALSE and configured.reason in NEEDS_EDIT:
        ready = Finding(Status.FALSE, cause.reason, cause.message)
        extra = {ConditionType.STALLED: Finding(Status.TRUE, cause.reason, cause.message)}
    else:
        status = Status.UNKNOWN if cause.status is Status.UNKNOWN else Status.FALSE
        ready = Finding(status, cause.reason, cause.message)
        extra = {ConditionType.RECONCILING: Finding(Status.TRUE, cause.reason, cause.message)}
    return {ConditionType.READY: ready, **extra, **findings}


def violations(conditions: Iterable[tuple[ConditionType, Finding]]) -> list[str]:
    """Return how a set of conditions breaks the truth table; empty when it holds."""
    present = dict(conditions)
    missing = [
        f"{kind} is missing"
        for kind in (ConditionType.READY, *FINDING_TYPES)
        if kind not in present
    ]
    if missing:
        return missing
    problems = [
        f"{kind} is {found.status} with reason {found.reason}, which is no reason for it"
        for kind, found in present.items()
        if kind in REASONS and found.reason not in REASONS[kind][found.status]
    ]
    problems += [f"{kind} has no message" for kind, found in present.items() if not found.message]
    stalled = present.get(ConditionType.STALLED)
    progress = [k for k in (ConditionType.RECONCILING, ConditionType.STALLED) if k in present]
    problems += [
        f"{kind} is present but not True"
        for kind in progress
        if present[kind].status is not Status.TRUE
    ]
    ready = present[ConditionType.READY]
    if len(progress) + (ready.status is Status.TRUE) != 1:
        problems.append("exactly one of Ready=True, Reconciling and Stalled must hold")
    configured, available = present[ConditionType.CONFIGURED], present[ConditionType.AVAILABLE]
    problems += [
        f"Ready is True although {kind} is {present[kind].status}"
        for kind in (ConditionType.CONFIGURED, ConditionType.AVAILABLE)
        if ready.status is Status.TRUE and present[kind].status is not Status.TRUE
    ]
    if ready.status is not Status.TRUE:
        cause = available if configured.status is Status.TRUE else configured
        problems += [
            f"{kind} has reason {present[kind].reason}, but its cause is {cause.reason}"
            for kind in (ConditionType.READY, *progress)
            if present[kind].reason is not cause.reason
        ]
    if stalled is not None and ready.status is not Status.FALSE:
        problems.append(f"Stalled is present although Ready is {ready.status}")
    if stalled is not None and not (
        configured.status is Status.FALSE and configured.reason in NEEDS_EDIT
    ):
        problems.append(f"Stalled is present although no edit cures {configured.reason}")
    return problems
