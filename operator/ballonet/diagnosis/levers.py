"""What helps against each verdict: one table, and the first of its levers that can be pulled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ballonet.api.conditions import Reason
from ballonet.api.quantity import quantity_bytes
from ballonet.api.v1alpha1 import MAX_REPLICAS, OffloadMode, PrefixCaching, Queue
from ballonet.kv.units import GIB, ceil_div
from ballonet.planning.offload import offloads
from ballonet.planning.plan import Plan, Remedy
from ballonet.planning.remedies import Json


@dataclass(frozen=True, slots=True)
class Lever:
    """One thing that helps.

    Attributes:
        advice: what to do and why.
        change: merge patch of the spec that does it, None where it cannot be pulled for this plan;
            a lever without it takes something else than an edit, or a value that only the user
            knows.
    """

    name: str
    advice: str
    change: Callable[[Plan], Json | None] | None = None


@dataclass(frozen=True, slots=True)
class Advice:
    """A lever to pull; ``patch`` is a JSON merge patch for the pool, where one edit does it."""

    name: str
    text: str
    patch: Json | None = None


def _larger_ceiling(plan: Plan) -> Json:
    return {"sequence": {"maxTokens": plan.spec.sequence.max_tokens * 5 // 4}}


def _more_replicas(plan: Plan) -> Json | None:
    return {"replicas": plan.spec.replicas + 1} if plan.spec.replicas < MAX_REPLICAS else None


def _fewer_replicas(plan: Plan) -> Json | None:
    return {"replicas": plan.spec.replicas - 1} if plan.spec.replicas > 1 else None


def _unbounded_queue(plan: Plan) -> Json | None:
    bounded = plan.spec.admission.queue is Queue.BOUNDED
    return {"admission": {"queue": str(Queue.UNBOUNDED)}} if bounded else None


def _prefix_caching(plan: Plan) -> Json | None:
    off = plan.spec.sequence.prefix_caching is PrefixCaching.DISABLED
    return {"sequence": {"prefixCaching": str(PrefixCaching.ENABLED)}} if off else None


def _offload(plan: Plan) -> Json | None:
    """Offload into as much host memory as the engine's KV cache takes."""
    if offloads(plan.spec) or plan.memory is None or plan.memory.kv_cache_bytes is None:
        return None
    ranks = plan.spec.parallelism.tensor
    gib = ceil_div(plan.memory.kv_cache_bytes.high * ranks, GIB)
    return {"offload": {"mode": str(OffloadMode.ENABLED), "hostMemory": f"{gib}Gi"}}


def _more_host_memory(plan: Plan) -> Json | None:
    memory = plan.spec.offload.host_memory
    return None if memory is None else {"offload": {"hostMemory": str(2 * quantity_bytes(memory))}}


_RESTART: Final = Lever(
    "RestartPod",
    "Delete the pod: the engine does not come back by itself, and its requests are lost anyway.",
)
_LOWER_CEILING: Final = Lever(
    "Ceiling",
    "Lower spec.sequence.maxTokens, or the maxTokens of roles, to what sequences really need: "
    "each then takes fewer blocks, and more of them fit.",
)
_COMPACTION: Final = Lever(
    "Compaction",
    "Let the runtime compact or end contexts earlier: the ceilings that it must keep stand in the "
    "pool's budget ConfigMap.",
)
_RAISE_CEILING: Final = Lever(
    "RaiseCeiling",
    "Raise spec.sequence.maxTokens by a quarter: the topologies still fit.",
    _larger_ceiling,
)
_PREFIX: Final = Lever(
    "PrefixSharing",
    "Send the shared part first and the same to the byte: no date, id or name before it, the same "
    "tools in the same order, and no cache_salt of each run.",
)
_PREFIX_FOUND: Final = Lever(
    "PrefixSharing",
    "Mend what the evidence says. Before the prefix: send it first and the same to the byte, with "
    "the same tools in the same order and no cache_salt of each run. Spread: keep those who share "
    "it on one engine. Taken for others: make room by lower ceilings or a replica.",
)
_PREFIX_CACHING: Final = Lever(
    "PrefixCaching", "Switch prefix caching on: it is off in spec.sequence.", _prefix_caching
)
_OFFLOAD: Final = Lever(
    "Offload",
    "Keep the blocks of parked agents in host memory: more slots would only lose more of them.",
    _offload,
)
_HOST_MEMORY: Final = Lever(
    "HostMemory",
    "Give offload twice the host memory, or switch it off: what it takes is lost before it is "
    "used.",
    _more_host_memory,
)
_REPLICAS: Final = Lever(
    "Replicas", "Run one replica more: slots and blocks grow together.", _more_replicas
)
_FEWER_REPLICAS: Final = Lever(
    "FewerReplicas", "Run one replica less: the topologies still fit.", _fewer_replicas
)
_SMALLER: Final = Lever(
    "SmallerDevice",
    "Give memory back: a smaller device or part of one, or a longer ceiling on this one.",
)
_QUEUE: Final = Lever(
    "Queue",
    "Let requests wait instead of turning them away; runtimes must then wait for longer.",
    _unbounded_queue,
)

LEVERS: Final[Mapping[Reason, tuple[Lever, ...]]] = {
    Reason.ENGINE_STUCK: (_RESTART,),
    Reason.PREEMPTING: (_LOWER_CEILING, _REPLICAS),
    Reason.REJECTING: (_REPLICAS, _QUEUE),
    Reason.BLOCK_BOUND: (_LOWER_CEILING, _PREFIX, _REPLICAS),
    Reason.LIMIT_TOO_TIGHT: (_LOWER_CEILING, _REPLICAS),
    Reason.SLOT_BOUND: (_REPLICAS, _LOWER_CEILING),
    Reason.COMPUTE_BOUND: (_REPLICAS,),
    Reason.LONG_CONTEXT: (_COMPACTION, _LOWER_CEILING),
    Reason.LONG_CONTEXT_AND_ADMISSION: (_COMPACTION, _REPLICAS),
    Reason.CEILING_HIT: (_RAISE_CEILING, _COMPACTION),
    Reason.ROLE_CEILING_EXCEEDED: (_COMPACTION,),
    Reason.PREFIX_MISS: (_PREFIX_CACHING, _PREFIX_FOUND),
    Reason.CACHE_CHURN: (_OFFLOAD, _REPLICAS),
    Reason.OFFLOAD_THRASH: (_HOST_MEMORY,),
    Reason.OVERPROVISIONED: (_FEWER_REPLICAS, _SMALLER),
}
# Where the topologies do not fit either, what makes them fit is known with its price.
_BY_REMEDY: Final = frozenset({Reason.PREEMPTING, Reason.BLOCK_BOUND, Reason.SLOT_BOUND})


def advise(
    verdict: Reason,
    plan: Plan,
    *,
    fits: Callable[[Json], bool],
    remedies: Sequence[Remedy] = (),
) -> Advice | None:
    """Return the first lever that can be pulled against a verdict; None where none is needed.

    Args:
        verdict: what the diagnosis says.
        plan: of the spec of today.
        fits: whether the pool would fit and start after a merge patch.
        remedies: what makes the topologies fit, where they do not.
    """
    if verdict in _BY_REMEDY and remedies:
        return Advice(remedies[0].name, remedies[0].description, remedies[0].patch)
    for lever in LEVERS.get(verdict, ()):
        if lever.change is None:
            return Advice(lever.name, lever.advice)
        change = lever.change(plan)
        if change is not None and fits({"spec": change}):
            return Advice(lever.name, lever.advice, {"spec": change})
    return None
