"""What the plan of the serving template says, as far as live numbers are judged by it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction

from ballonet.api.v1alpha1 import DiagnosisSpec, InferencePoolSpec, Queue
from ballonet.kv.layout import CacheLayout
from ballonet.kv.units import largest
from ballonet.planning.offload import host_cache
from ballonet.planning.plan import Plan
from ballonet.planning.topology import caches_prefixes, engines


@dataclass(frozen=True, slots=True)
class DeclaredPrefix:
    """A prompt beginning that roles declare to share.

    Attributes:
        tokens: those of it that whole blocks hold, and so the cache can find again.
        sequences: share of the pool's sequences that begin with it.
    """

    name: str
    tokens: int
    sequences: Fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What live numbers are held against; figures are of one engine.

    Attributes:
        slots: sequences that an engine runs at once.
        ceiling: most tokens of a sequence.
        blocks_of: blocks that a sequence of so many tokens takes at most; None where that is not
            known.
        prefixes: declared prefixes of at least one block.
        prefix_caching: whether the engine keeps blocks of prompt beginnings.
        engines: engines of the pool, each with a cache of its own.
        bounded_queue: whether the engine turns requests away.
        offload_bytes: host memory of a pod that blocks may go to; None without offload.
        thresholds: when numbers count.
    """

    slots: int
    ceiling: int
    blocks_of: Callable[[int], int] | None = None
    prefixes: tuple[DeclaredPrefix, ...] = ()
    prefix_caching: bool = True
    engines: int = 1
    bounded_queue: bool = False
    offload_bytes: int | None = None
    thresholds: DiagnosisSpec = field(default_factory=DiagnosisSpec)

    @property
    def blocks_at_ceiling(self) -> int | None:
        """Blocks of a sequence at the ceiling."""
        return None if self.blocks_of is None else self.blocks_of(self.ceiling)

    def tokens_of(self, blocks: Fraction) -> int | None:
        """Return the tokens that a sequence of so many blocks holds at least; None where unknown.

        At least, because blocks of a prefix may be shared, and because a window or a state stops
        growing: from there on a sequence may have any length.
        """
        if self.blocks_of is None:
            return None
        blocks_of, held = self.blocks_of, int(blocks)
        shorter = largest(1, self.ceiling - 1, lambda tokens: blocks_of(tokens) < held)
        return (shorter or 0) + 1


def facts_of(
    plan: Plan, *, slots: int, thresholds: DiagnosisSpec, block_tokens: int | None = None
) -> Facts:
    """Return what the plan of the serving template says.

    Args:
        plan: of the template that serves.
        slots: sequences that the engines were really started for.
        thresholds: those of today, which need no new template.
        block_tokens: tokens of a block as the engines report them; None for the planned ones.
    """
    spec, layout = plan.spec, plan.layout
    if layout is not None and block_tokens is not None and block_tokens != layout.block_tokens:
        layout = layout.with_block_tokens(block_tokens)
    cache = host_cache(spec, layout)
    return Facts(
        slots=slots,
        ceiling=spec.sequence.max_tokens,
        blocks_of=None if layout is None else layout.blocks,
        prefixes=() if layout is None else tuple(_prefixes(spec, layout)),
        prefix_caching=caches_prefixes(spec) if layout is None else layout.prefix_caching,
        engines=engines(spec),
        bounded_queue=spec.admission.queue is Queue.BOUNDED,
        offload_bytes=None if cache is None else cache.bytes * spec.parallelism.data,
        thresholds=thresholds,
    )


def _prefixes(spec: InferencePoolSpec, layout: CacheLayout) -> Iterator[DeclaredPrefix]:
    """Yield the prefixes of at least one block that the model's cache can share at all."""
    caching = replace(layout, prefix_caching=True)
    block = layout.prefix_granularity_tokens
    roles = [(t.concurrent_runs * role.count, role) for t in spec.topologies for role in t.roles]
    # What is no agent run begins with none of them.
    sequences = sum(count for count, _ in roles) + spec.reserved_slots
    for prefix in spec.shared_prefixes:
        sharers = sum(count for count, role in roles if role.shared_prefix == prefix.name)
        if sharers and caching.shared_blocks(prefix.tokens):
            yield DeclaredPrefix(
                prefix.name, prefix.tokens // block * block, Fraction(sharers, sequences)
            )
