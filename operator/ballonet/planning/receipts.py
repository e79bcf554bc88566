"""Receipts: what engines of one configuration really had for KV blocks, boot by boot.

A prediction of memory is some GiB wide; two starts of the same engine on the same device differ by
far less. So what a start measured is kept, and the next plan of an equal configuration begins from
it; one with other limits is moved by the difference that the prediction makes between the two.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, Any, Final, Self

from pydantic import Field, ValidationError, model_validator

from ballonet.api.model import Model, integer, text
from ballonet.api.status import MAX_INTEGER, Int32
from ballonet.catalog.entries import problems_of
from ballonet.engines.vllm_written import Limits
from ballonet.kv.memory import MemoryPart, MemoryPlan
from ballonet.kv.units import GIB, Interval, ceil_div, counted, format_bytes

# How far the next boot may lie beside a measured one. Two boots of one configuration in public logs
# differ by 0.02 % to 0.24 %, and once by 0.15 GiB (docs/receipts.md); a convention, not a bound.
MARGIN_BYTES: Final = 3 * GIB // 10
MARGIN_PERCENT: Final = 1
# Where they stand in the ConfigMap of a namespace.
KEY: Final = "receipts.jsonl"
# All receipts of a namespace; an object of the API server takes 1 MiB.
MAX_BYTES: Final = 256 * 1024
# The shortest takes more than 256 of them. Lines beyond are somebody's that are none.
MAX_LINES: Final = MAX_BYTES // 256
# Boots of a receipt that are known one by one, so that none is counted twice.
MAX_MARKS: Final = 16
# As status takes them; whoever may edit a ConfigMap may write any number.
MAX_BOOTS: Final = 2**31 - 1
# Receipts of one configuration that plans look at, the newest.
MAX_LOOKED_AT: Final = 16

Hash = Annotated[str, text(16, r"^[0-9a-f]{16}$")]
Time = Annotated[str, text(20, r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$")]
Positive = Annotated[int, integer(1, MAX_INTEGER, bits=64)]
Boots = Annotated[int, integer(1, MAX_BOOTS)]
Words = Annotated[str, text(253, r"^[\x20-\x7e]*$", low=0)]


class CompileCache(StrEnum):
    """Whether an engine found compiled kernels of an earlier run when it started."""

    COLD = "Cold"
    WARM = "Warm"
    UNKNOWN = "Unknown"


class StartTimes(Model):
    """How long starts took, from the container's start to a served model."""

    compile_cache: CompileCache
    low_seconds: Int32
    high_seconds: Int32


@dataclass(frozen=True, slots=True)
class Boot:
    """One start of an engine container, and what it measured.

    Attributes:
        configuration: see ``planning.configuration``; model, version and accelerator are in it, and
            stand here for people.
        image: digest of the image that ran.
        device: product, memory and MIG profile by the node's labels; else the accelerator's type.
        pod_uid, restarts: which start of which pod.
        started_at: when the container started, in UTC.
        kv_cache_bytes: KV memory of a rank.
        blocks: KV blocks of an engine, the null block among them.
        start_seconds: from the container's start until it served; None where that is not known.
    """

    configuration: str
    model: str
    version: str
    accelerator: str
    image: str
    device: str
    limits: Limits
    pod_uid: str
    restarts: int
    started_at: str
    kv_cache_bytes: int
    blocks: int
    start_seconds: int | None = None
    compile_cache: CompileCache = CompileCache.UNKNOWN

    @property
    def mark(self) -> str:
        """Which boot it is, in an order by time."""
        return f"{self.started_at}/{self.run}"

    @property
    def run(self) -> str:
        """Which start of which pod."""
        return f"{self.pod_uid[:13]}/{self.restarts}"


class Receipt(Model):
    """What the boots of one configuration measured under the same limits, on one kind of device."""

    configuration: Hash
    model: Words
    version: Words
    accelerator: Words
    image: Words
    device: Words
    max_model_tokens: Positive
    max_num_seqs: Positive
    max_batched_tokens: Positive
    kv_cache_low_bytes: Positive
    kv_cache_high_bytes: Positive
    low_blocks: Positive
    high_blocks: Positive
    boots: Boots
    starts: list[StartTimes] = Field(default_factory=list, max_length=len(CompileCache))
    last_boot: Time
    marks: list[Annotated[str, text(64)]] = Field(default_factory=list, max_length=MAX_MARKS)

    @model_validator(mode="after")
    def _upright(self) -> Self:
        Interval(self.kv_cache_low_bytes, self.kv_cache_high_bytes)
        Interval(self.low_blocks, self.high_blocks)
        return self

    @classmethod
    def of(cls, boot: Boot) -> Receipt:
        """Return the receipt of one boot."""
        times = []
        if boot.start_seconds is not None:
            times = [
                StartTimes(
                    compile_cache=boot.compile_cache,
                    low_seconds=boot.start_seconds,
                    high_seconds=boot.start_seconds,
                )
            ]
        return cls(
            configuration=boot.configuration,
            model=boot.model,
            version=boot.version,
            accelerator=boot.accelerator,
            image=boot.image,
            device=boot.device,
            max_model_tokens=boot.limits.max_model_tokens,
            max_num_seqs=boot.limits.max_num_seqs,
            max_batched_tokens=boot.limits.max_batched_tokens,
            kv_cache_low_bytes=boot.kv_cache_bytes,
            kv_cache_high_bytes=boot.kv_cache_bytes,
            low_blocks=boot.blocks,
            high_blocks=boot.blocks,
            boots=1,
            starts=times,
            last_boot=boot.started_at,
            marks=[boot.mark],
        )

    @property
    def limits(self) -> Limits:
        """The limits under which the engines ran."""
        return Limits(self.max_model_tokens, self.max_num_seqs, self.max_batched_tokens)

    @property
    def kv_cache_bytes(self) -> Interval:
        """Lowest and highest KV memory of a rank."""
        return Interval(self.kv_cache_low_bytes, self.kv_cache_high_bytes)

    @property
    def key(self) -> tuple[Any, ...]:
        """What boots must have in common to be counted together."""
        limits = (self.max_model_tokens, self.max_num_seqs, self.max_batched_tokens)
        return (self.configuration, self.device, self.image, *limits)

    def counts(self, mark: str) -> bool:
        """Return whether a boot is in it; one older than all that it names is taken to be."""
        full = len(self.marks) == MAX_MARKS
        return mark in self.marks or (full and mark < self.marks[0])

    def with_boots(self, other: Receipt, boots: int) -> Receipt:
        """Return both as one receipt of this many boots."""
        return self.model_copy(
            update={
                "kv_cache_low_bytes": min(self.kv_cache_low_bytes, other.kv_cache_low_bytes),
                "kv_cache_high_bytes": max(self.kv_cache_high_bytes, other.kv_cache_high_bytes),
                "low_blocks": min(self.low_blocks, other.low_blocks),
                "high_blocks": max(self.high_blocks, other.high_blocks),
                "boots": min(boots, MAX_BOOTS),
                "starts": _joined([*self.starts, *other.starts]),
                "last_boot": max(self.last_boot, other.last_boot),
                "marks": sorted({*self.marks, *other.marks})[-MAX_MARKS:],
            }
        )

    def line(self) -> str:
        """Return the receipt as one line of JSON, the same for the same receipt."""
        return json.dumps(self.model_dump(mode="json", by_alias=True), separators=(",", ":"))


def _joined(starts: Iterable[StartTimes]) -> list[StartTimes]:
    by_cache: dict[CompileCache, StartTimes] = {}
    for one in starts:
        other = by_cache.get(one.compile_cache, one)
        by_cache[one.compile_cache] = StartTimes(
            compile_cache=one.compile_cache,
            low_seconds=min(one.low_seconds, other.low_seconds),
            high_seconds=max(one.high_seconds, other.high_seconds),
        )
    return [by_cache[cache] for cache in CompileCache if cache in by_cache]


@dataclass(frozen=True)
class Receipts:
    """The receipts of a namespace: one for each key, in the order of their keys."""

    all: tuple[Receipt, ...] = ()

    @classmethod
    def read(cls, lines: str) -> Receipts:
        """Return the receipts in a text; lines that are none are left out."""
        found = tuple(line for line in _lines(lines) if isinstance(line, Receipt))
        return NO_RECEIPTS.with_receipts(cls(found))

    @classmethod
    def joined(
        cls, receipts: Iterable[Receipt], boots: Callable[[Receipt, Receipt], int]
    ) -> Receipts:
        """Return receipts with those of one key as one; ``boots`` says of how many boots that is.

        They take at most MAX_BYTES as text: then the oldest of the configuration that has most is
        left out, so that one whose limits change all the time does not drive out the others. Where
        several have most it is the oldest of them all.
        """
        by_key: dict[tuple[Any, ...], Receipt] = {}
        for receipt in receipts:
            old = by_key.get(receipt.key)
            new = receipt if old is None else old.with_boots(receipt, boots(old, receipt))
            by_key[receipt.key] = new
        return cls(tuple(by_key[key] for key in sorted(_within_bounds(by_key))))

    def text(self) -> str:
        """Return one line of JSON for each receipt, which ``read`` takes."""
        return "".join(f"{receipt.line()}\n" for receipt in self.all)

    def of(self, configuration: str) -> tuple[Receipt, ...]:
        """Return the newest receipts of a configuration."""
        own = [receipt for receipt in self.all if receipt.configuration == configuration]
        return tuple(sorted(own, key=lambda one: one.last_boot)[-MAX_LOOKED_AT:])

    def counts(self, configuration: str, mark: str) -> bool:
        """Return whether a boot of a configuration is counted already."""
        # Also by those that plans do not look at: a boot must not become new when others come.
        return any(
            receipt.configuration == configuration and receipt.counts(mark) for receipt in self.all
        )

    def with_boots(self, boots: Iterable[Boot]) -> Receipts:
        """Return the receipts with more boots, those left out that are counted already."""
        new = {
            (boot.configuration, boot.mark): Receipt.of(boot)
            for boot in boots
            if not self.counts(boot.configuration, boot.mark)
        }
        if not new:
            return self
        return self.joined((*self.all, *new.values()), lambda one, other: one.boots + other.boots)

    def with_receipts(self, others: Receipts) -> Receipts:
        """Return these and others; of one key the larger number of boots is kept.

        The boots of both may be the same ones, so they are not added up, and what was taken in once
        changes nothing the second time.
        """
        return self.joined((*self.all, *others.all), lambda one, other: max(one.boots, other.boots))


NO_RECEIPTS: Final = Receipts()


def receipts_in(config_map: Mapping[str, Any]) -> Receipts:
    """Return the receipts in a ConfigMap; none where it holds none."""
    return Receipts.read(_text_of(config_map))


def basis(receipts: Iterable[Receipt]) -> Receipts:
    """Return what plans need of receipts: without start times and the marks of boots."""
    return Receipts(tuple(one.model_copy(update={"starts": [], "marks": []}) for one in receipts))


def left_out_of(config_map: Mapping[str, Any]) -> tuple[str, ...]:
    """Return which lines among the receipts of a ConfigMap are left out, and why."""
    return tuple(line for line in _lines(_text_of(config_map)) if isinstance(line, str))


def _text_of(config_map: Mapping[str, Any]) -> str:
    data = config_map.get("data")
    lines = data.get(KEY) if isinstance(data, Mapping) else None
    return lines if isinstance(lines, str) else ""


def _lines(text: str) -> Iterator[Receipt | str]:
    """Yield each receipt of a text, and of each line that is left out why."""
    lines = text[:MAX_BYTES].split("\n", MAX_LINES)
    for number, line in enumerate(lines[:MAX_LINES], 1):
        try:
            if line.strip():
                yield Receipt.model_validate_json(line)
        except ValidationError as error:
            problems = problems_of(error.errors(include_url=False), Receipt.model_fields)
            yield f"line {number}: {next(problems)}"
    beyond = text[sum(len(line) + 1 for line in lines[:MAX_LINES]) :].split("\n")
    for number, line in enumerate(beyond, min(len(lines), MAX_LINES) + 1):
        if line.strip():
            yield f"line {number}: is beyond {MAX_LINES:,} lines or {MAX_BYTES // 1024} KiB"


def _within_bounds(by_key: dict[tuple[Any, ...], Receipt]) -> dict[tuple[Any, ...], Receipt]:
    sizes = {key: len(receipt.line()) + 1 for key, receipt in by_key.items()}
    size = sum(sizes.values())
    kept = dict(by_key)
    numbers = Counter(receipt.configuration for receipt in kept.values())
    while size > MAX_BYTES:
        most = max(numbers.values())
        oldest = min(
            (key for key, receipt in kept.items() if numbers[receipt.configuration] == most),
            key=lambda key: (kept[key].last_boot, key),
        )
        numbers[kept.pop(oldest).configuration] -= 1
        size -= sizes[oldest]
    return kept


# --- what a plan makes of them -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Known:
    """What boots of one configuration measured under the same limits, and what was predicted.

    Attributes:
        boots: on the device or image with the fewest: a plan cannot tell where its engine will run.
        predicted: the prediction under these limits.
    """

    limits: Limits
    kv_cache_bytes: Interval
    boots: int
    predicted: MemoryPlan

    @property
    def margin_bytes(self) -> int:
        """How far the next boot may lie beside the measured ones, if only one was measured."""
        percent = ceil_div(self.kv_cache_bytes.low * MARGIN_PERCENT, 100)
        return max(MARGIN_BYTES, percent)


def lies_inside(receipt: Receipt, predicted: MemoryPlan) -> bool:
    """Return whether what was measured was thought possible.

    Where it was not, something else is at work (another device, another process on it), and nobody
    knows whether it will be at the next start.
    """
    possible, measured = predicted.kv_cache_bytes, receipt.kv_cache_bytes
    return possible is not None and possible.low <= measured.low and measured.high <= possible.high


def usable(
    receipts: Sequence[Receipt], predict: Callable[[Limits], MemoryPlan]
) -> tuple[Known, ...]:
    """Return what receipts of one configuration say, those of the same limits together."""
    found: dict[Limits, Known] = {}
    for receipt in receipts:
        limits, measured = receipt.limits, receipt.kv_cache_bytes
        old = found.get(limits)
        predicted = predict(limits) if old is None else old.predicted
        if not lies_inside(receipt, predicted):
            continue
        if old is None:
            found[limits] = Known(limits, measured, receipt.boots, predicted)
            continue
        low = min(old.kv_cache_bytes.low, measured.low)
        high = max(old.kv_cache_bytes.high, measured.high)
        boots = min(old.boots, receipt.boots)
        found[limits] = replace(old, kv_cache_bytes=Interval(low, high), boots=boots)
    return tuple(found.values())


def narrowed(predicted: MemoryPlan, limits: Limits, known: Sequence[Known]) -> MemoryPlan:
    """Return a prediction, narrowed by the nearest of what was measured.

    Between equal limits nothing is corrected. Else the measured range is moved by the difference of
    the two predictions, which is known better than either: what they have in common drops out.
    """
    if not known or predicted.kv_cache_bytes is None or predicted.usual_bytes is None:
        return predicted
    moved = [(_moves(one.predicted, predicted), one) for one in known]
    moves, nearest = min(
        moved, key=lambda pair: (pair[1].limits != limits, abs(pair[0][1]), -pair[1].boots)
    )
    margin = nearest.margin_bytes // nearest.boots
    measured = nearest.kv_cache_bytes
    low = max(predicted.kv_cache_bytes.low, measured.low + min(moves) - margin)
    high = min(predicted.kv_cache_bytes.high, measured.high + max(moves) + margin)
    return replace(
        predicted,
        kv_cache_bytes=Interval(low, high),
        usual_bytes=max(low, min(high, (measured.low + measured.high) // 2 + moves[1])),
        measured=_told(nearest, corrected=nearest.limits != limits),
    )


def _moves(before: MemoryPlan, after: MemoryPlan) -> tuple[int, int, int]:
    """Return by how much KV memory differs between two predictions: low end, middle, high end."""
    assert before.kv_cache_bytes is not None and after.kv_cache_bytes is not None
    assert before.usual_bytes is not None and after.usual_bytes is not None
    return (
        after.kv_cache_bytes.low - before.kv_cache_bytes.low,
        after.usual_bytes - before.usual_bytes,
        after.kv_cache_bytes.high - before.kv_cache_bytes.high,
    )


def _told(known: Known, *, corrected: bool) -> str:
    boots = f"{counted(known.boots, 'boot')} of this configuration"
    if not corrected:
        return boots
    limits = known.limits
    return (
        f"{boots} with {limits.max_model_tokens:,} tokens a sequence, {limits.max_num_seqs:,} "
        f"sequences and {limits.max_batched_tokens:,} tokens a step, corrected for these limits"
    )


def pinned(limits: Limits, known: Sequence[Known]) -> MemoryPlan | None:
    """Return the KV memory to give to an engine with these limits, or None to give none.

    It is the lowest that was measured, less the margin of one boot: memory that is given is not
    checked by the engine, and what it works with beside must still find room. Only boots whose
    limits need at least as much working memory say what is left under these.
    """
    covering = [one for one in known if one.limits.cover(limits)]
    if not covering:
        return None
    most = max(covering, key=lambda one: (one.limits == limits, one.kv_cache_bytes.low))
    lowest, margin = most.kv_cache_bytes.low, most.margin_bytes
    if lowest <= margin:
        return None
    size = lowest - margin
    told = _told(most, corrected=False)
    text = f"pinned: the lowest of {told}, {format_bytes(lowest)}, less {format_bytes(margin)}"
    part = MemoryPart("KV cache", Interval.point(size), size, text)
    return MemoryPlan((part,), Interval.point(size), usual_bytes=size, measured=text)
