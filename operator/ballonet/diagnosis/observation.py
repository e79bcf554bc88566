"""One engine pod at one instant, as numbers: what every source of metrics has to give.

An absent series is None, never 0: an engine that does not report its waiting requests may have
many. The names of the series stand in the engine modules (``ballonet.engines``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """What the offload connector of a pod has done since it started, over its engines.

    Attributes:
        stored_bytes, loaded_bytes: moved to and from host memory.
        allocation_failures: transfers for which host memory had no room.
    """

    stored_bytes: int | None = None
    loaded_bytes: int | None = None
    allocation_failures: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequences:
    """The live sequences of a pod, as the probe counts them; exact, and only with the probe.

    Attributes:
        count: sequences that hold blocks.
        tokens: their tokens, added up.
        longest_tokens: the longest of them.
        shared_blocks: blocks that two or more of them hold.
        past_ceiling: by role, how many hold more tokens than the role declares.
        past_compaction: by role, how many hold more than their runtime should have left them.
        ended_past_ceiling: by role, how many have ended so since the pod started.
    """

    count: int
    tokens: int
    longest_tokens: int
    shared_blocks: int | None = None
    past_ceiling: Mapping[str, int] = field(default_factory=dict)
    past_compaction: Mapping[str, int] = field(default_factory=dict)
    ended_past_ceiling: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One engine of a pod that has several: what says whether it is stuck, or lacks room.

    Figures are those of an Observation of that name.
    """

    running: int | None = None
    waiting: int | None = None
    waiting_capacity: int | None = None
    fetching: int | None = None
    awake: bool | None = None
    usage_per_mille: int | None = None
    preemptions: int | None = None
    prompt_tokens: int | None = None
    generation_tokens: int | None = None
    iterations: int | None = None


OF_ENGINE: Final = tuple(one.name for one in fields(Engine))


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One engine pod at one instant, summed over its engines unless said otherwise.

    Counters count since the pod's start; they fall when it starts anew (see ``started_at``).

    Attributes:
        at: when the engine said it, by the sample's own time and not by its arrival.
        engines: engine processes (data-parallel ranks) that reported.
        by_engine: each of them by its number; empty where there is one.
        started_at: when the serving process started.

        running: requests that hold a slot.
        waiting: requests that wait, for whatever reason.
        waiting_capacity: those of them that wait for a slot or for blocks; engines before vLLM
            0.20 do not tell.
        fetching: requests that wait for KV data from elsewhere.
        awake: whether the engine is not put to sleep.

        blocks: KV blocks of one engine, the null block among them.
        used_blocks: blocks that live requests hold; cached ones of ended requests are not counted.
        usage_per_mille: usage of the fullest engine, in thousandths.

        preemptions: sequences that lost their blocks and had to begin again.
        prompt_tokens, generation_tokens: tokens processed; cached prompt tokens are counted too.
        iterations: engine steps.
        rejections: requests turned away by a bound of the queue.
        http_4xx, http_5xx: answers of the endpoints that generate, by class of status.

        finished: ended requests by reason (``stop``, ``length``, ``abort``, ``error``).
        finished_prompt_tokens, finished_generation_tokens: tokens of ended requests, added up.
        finished_requests: how many ended requests these are of.
        computed_prompt_tokens: prompt tokens of ended requests that no cache had.

        prefix_queried_tokens, prefix_hit_tokens: tokens looked up and found in the prefix cache.
        external_queried_tokens, external_hit_tokens: the same in a cache outside the device.
        host_hit_tokens: those of them that host memory had; engines before vLLM 0.32 do not tell.

        offload: None without an offload connector.
        sequences: None without the probe.
    """

    at: datetime
    engines: int
    by_engine: Mapping[str, Engine] = field(default_factory=dict)
    started_at: datetime | None = None

    running: int | None = None
    waiting: int | None = None
    waiting_capacity: int | None = None
    fetching: int | None = None
    awake: bool | None = None

    blocks: int | None = None
    used_blocks: int | None = None
    usage_per_mille: int | None = None

    preemptions: int | None = None
    prompt_tokens: int | None = None
    generation_tokens: int | None = None
    iterations: int | None = None
    rejections: int | None = None
    http_4xx: int | None = None
    http_5xx: int | None = None

    finished: Mapping[str, int] = field(default_factory=dict)
    finished_prompt_tokens: int | None = None
    finished_generation_tokens: int | None = None
    finished_requests: int | None = None
    computed_prompt_tokens: int | None = None

    prefix_queried_tokens: int | None = None
    prefix_hit_tokens: int | None = None
    external_queried_tokens: int | None = None
    external_hit_tokens: int | None = None
    host_hit_tokens: int | None = None

    offload: Offload | None = None
    sequences: Sequences | None = None

    @property
    def waiting_for_room(self) -> int | None:
        """Requests that wait for a slot or for blocks; all that wait where it is not told."""
        return self.waiting if self.waiting_capacity is None else self.waiting_capacity

    def of(self, number: str) -> Observation:
        """Return what is known of one engine alone; what only the pod tells is absent."""
        engine = self.by_engine.get(number, Engine())
        return Observation(
            at=self.at,
            engines=1,
            started_at=self.started_at,
            blocks=self.blocks,
            **{name: getattr(engine, name) for name in OF_ENGINE},
        )

    @property
    def usable_blocks(self) -> int | None:
        """Blocks that sequences can hold, over all engines: each engine's null block is none."""
        return None if self.blocks is None else (self.blocks - 1) * self.engines
