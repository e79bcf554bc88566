"""The chain of findings: what each one means in numbers. The first that holds is the verdict.

Each finding looks at one pod, or at one engine of it. It returns its evidence as a sentence, or
None where it does not hold; ``CannotSay`` is raised where a series is absent or has not been seen
for long enough. Its docstring is its rule in docs/diagnosis.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import takewhile
from typing import Final

from ballonet.api.conditions import Reason
from ballonet.api.v1alpha1 import DiagnosisSpec
from ballonet.diagnosis.facts import Facts
from ballonet.diagnosis.observation import Observation, Offload
from ballonet.diagnosis.window import CannotSay, History, Read, Window, number
from ballonet.kv.units import counted

# Requests come and go between samples: so many of them must show the same.
SUSTAINED: Final = Fraction(4, 5)
# What is found already is kept down to this share.
STILL_SUSTAINED: Final = Fraction(1, 2)
# What waiting requests are short of shows in this share of the samples.
OFTEN: Final = Fraction(1, 3)
# Ended requests of which means are taken.
ENOUGH_REQUESTS: Final = 4
# From this share of the ceiling on a request is near it.
NEAR_CEILING_PERCENT: Final = 80
# A cache that found less than this before has nothing to lose.
WARM: Final = Fraction(1, 5)
# Under this share of what a prefix would give, hardly any request finds it.
HARDLY: Final = Fraction(1, 10)
# From here on blocks of ended requests do not stay for long.
EVICTING_PER_MILLE: Final = 900
# Of what goes to host memory so much should come back.
USEFUL_LOADS: Final = Fraction(1, 10)

Look = Callable[[History, Facts, bool], str | None]
Span = Callable[[DiagnosisSpec], int]


@dataclass(frozen=True, slots=True)
class Rule:
    """One finding of the chain.

    Attributes:
        look: whether it holds for a pod or an engine; its third argument says whether it is found
            already.
        reads: the fields of an observation that it looks at.
        after: how long it must hold without a break, beyond what ``look`` covers.
        release: how long it must not hold before it is dropped.
        each_engine: whether it is looked for in each engine instead of in a pod's sums.
        every_pod: whether it must hold for every pod instead of one.
    """

    name: Reason
    look: Look
    reads: tuple[str, ...]
    after: Span = lambda _: 0
    release: Span = lambda thresholds: thresholds.release_seconds
    each_engine: bool = False
    every_pod: bool = False


# --- engines that do not work, or not as they should ----------------------------------------------


def engine_stuck(history: History, facts: Facts, _found: bool) -> str | None:
    """There is work, and no token or step counter moved for stuckSeconds, while the engine is awake
    and waits for no KV data.
    """
    # What it did not do while it slept or waited for data says nothing of what it does now.
    able = list(takewhile(_may_work, reversed(history.stretch_without_progress)))[::-1]
    if len(able) < 2:
        return None
    window = Window(able)
    if window.seconds < facts.thresholds.stuck_seconds:
        return None
    running, waiting = window.last.running or 0, window.last.waiting_for_room or 0
    return f"no token and no step for {window.seconds} s; {running:,} running, {waiting:,} waiting"


def preempting(history: History, facts: Facts, _found: bool) -> str | None:
    """The counter of preemptions rose within pressureSeconds."""
    window = history.lately(facts.thresholds.pressure_seconds)
    count = window.increase(lambda o: o.preemptions)
    if not count:
        return None
    return (
        f"{counted(count, 'preemption')} in {window.seconds} s with up to "
        f"{window.peak(_running):,} of {_slots(window.last, facts):,} slots taken"
        f"{_usage_text(window)}"
    )


def rejecting(history: History, facts: Facts, _found: bool) -> str | None:
    """The queue turned requests away within pressureSeconds; where the engine does not count that
    and the queue is bounded, HTTP 5xx count as weaker evidence.
    """
    window = history.lately(facts.thresholds.pressure_seconds)
    if window.last.rejections is not None:
        count = window.increase(lambda o: o.rejections)
        said = "turned away by the bound of the queue"
    elif facts.bounded_queue:
        count = window.increase(lambda o: o.http_5xx)
        said = "answered with HTTP 5xx; that the bound of the queue did it is inferred"
    else:
        return None
    if not count:
        return None
    return f"{counted(count, 'request')} in {window.seconds} s {said}"


def _may_work(sample: Observation) -> bool:
    return sample.awake is not False and not sample.fetching


# --- requests that wait ---------------------------------------------------------------------------


def block_bound(history: History, facts: Facts, found: bool) -> str | None:
    """Requests wait for room in 80 % of pressureSeconds, slots are free, and the blocks that are
    free do not hold a sequence at the ceiling.
    """
    window = _waiting(history, facts.thresholds.pressure_seconds, found)
    if window is None or _short_of(window, facts) != "blocks":
        return None
    showing = _showing(window, facts, "blocks")
    return _waiting_text(window, facts, showing) + _blocks_text(window, facts, showing)


def limit_too_tight(history: History, facts: Facts, found: bool) -> str | None:
    """Requests wait for room in 80 % of trendSeconds, all slots are taken, and usage stays under
    tightUsagePercent (95th percentile).
    """
    window = _waiting(history, facts.thresholds.trend_seconds, found)
    if window is None or _short_of(window, facts) != "slots":
        return None
    tight = facts.thresholds.tight_usage_percent
    usage = window.high(lambda o: o.usage_per_mille)
    if usage >= tight * 10:
        return None
    waiting = _waiting_text(window, facts, _showing(window, facts, "slots"))
    return f"{waiting}, and usage stays under {tight} %; 95 % of the time up to {usage / 10:g} %"


def slot_bound(history: History, facts: Facts, found: bool) -> str | None:
    """Requests wait for room in 80 % of pressureSeconds, and all slots are taken."""
    window = _waiting(history, facts.thresholds.pressure_seconds, found)
    if window is None or _short_of(window, facts) != "slots":
        return None
    showing = _showing(window, facts, "slots")
    return _waiting_text(window, facts, showing) + _usage_text(window)


def compute_bound(history: History, facts: Facts, found: bool) -> str | None:
    """Requests wait for room in 80 % of pressureSeconds although slots and the blocks of a whole
    sequence are free.
    """
    window = _waiting(history, facts.thresholds.pressure_seconds, found)
    if window is None or _short_of(window, facts) is not None:
        return None
    showing = _showing(window, facts, None)
    return _waiting_text(window, facts, showing) + _blocks_text(window, facts, showing)


def _waiting(history: History, seconds: int, found: bool) -> Window | None:
    """Return the window if requests wait for room in most of it."""
    window = history.over(seconds)
    waiting = window.values(lambda o: o.waiting_for_room)
    share = Fraction(sum(map(bool, waiting)), len(waiting))
    return window if share >= (STILL_SUSTAINED if found else SUSTAINED) else None


def _short_of(window: Window, facts: Facts) -> str | None:
    """Return what the requests that wait are short of: slots, blocks, or None for neither.

    When several requests end in one step, gauges show for a moment that there is room.

    Raises:
        CannotSay: slots are not what is short, and whether blocks are is not reported.
    """
    waiting = [o for o in window.samples if o.waiting_for_room]
    short = Counter(_lacks(o, facts) for o in waiting)
    likely = [what for what in ("blocks", "slots") if short[what] >= len(waiting) * OFTEN]
    if not likely and short[_UNKNOWN]:
        raise CannotSay
    return max(likely, key=lambda what: short[what], default=None)


_UNKNOWN: Final = "unknown"


def _lacks(sample: Observation, facts: Facts) -> str | None:
    running = number(sample.running)
    if running >= _slots(sample, facts):
        return "slots"
    # Usage alone is no test: a long prompt at the head of the queue needs many blocks at once. It
    # is all that there is where the blocks of a sequence are not known.
    needed, usage = facts.blocks_at_ceiling, sample.usage_per_mille
    if needed is None:
        short = None if usage is None else usage >= facts.thresholds.tight_usage_percent * 10
    else:
        free = _free_blocks(sample)
        short = None if free is None else free < needed
    if short is None:
        return _UNKNOWN
    return "blocks" if short else None


# --- what fills the memory ------------------------------------------------------------------------


def long_context(history: History, facts: Facts, _found: bool) -> str | None:
    """Within trendSeconds used blocks and blocks per running sequence rose by growthPercent, the
    number of running sequences did not, and usage is at least tightUsagePercent.
    """
    growth = _growth(history, facts)
    if growth is None or not growth.longer or growth.more:
        return None
    return growth.text


def long_context_and_admission(history: History, facts: Facts, _found: bool) -> str | None:
    """As LongContext, and the number of running sequences rose by growthPercent too."""
    growth = _growth(history, facts)
    if growth is None or not (growth.longer and growth.more):
        return None
    return growth.text


@dataclass(frozen=True, slots=True)
class _Growth:
    longer: bool
    more: bool
    text: str


def _growth(history: History, facts: Facts) -> _Growth | None:
    """Return how memory grew from the first to the last third of the time; None if it did not.

    Longer sequences hold more blocks each. With the probe their tokens are known instead, which
    also tells where blocks do not: behind a window, and where prefixes are shared.
    """
    window = history.over(facts.thresholds.trend_seconds)
    used = window.ends(lambda o: o.used_blocks)
    usage = window.ends(lambda o: o.usage_per_mille)[1]
    enough = usage >= facts.thresholds.tight_usage_percent * 10
    if not (enough and _rises(used, facts)):
        return None
    running = window.ends(_running)
    exact = window.last.sequences is not None
    lengths = window.ends(_mean_tokens if exact else _blocks_per_sequence)
    if exact:
        length = f"from {int(lengths[0]):,} to {int(lengths[1]):,} tokens each"
    else:
        tokens = facts.tokens_of(lengths[1])
        least = "" if tokens is None else f", at least {tokens:,} tokens"
        length = f"from {_tenths(lengths[0])} to {_tenths(lengths[1])} blocks each{least}"
    text = (
        f"in {window.seconds} s usage rose to {int(usage) / 10:g} %: sequences {length}, "
        f"{int(running[0]):,} to {int(running[1]):,} of them at once{_uncompacted(window.last)}"
    )
    return _Growth(_rises(lengths, facts), _rises(running, facts), text)


def _uncompacted(sample: Observation) -> str:
    """Return which roles' sequences are longer than their runtime should have left them."""
    past = sample.sequences.past_compaction if sample.sequences else {}
    roles = [f"{count:,} of role {role}" for role, count in sorted(past.items()) if count]
    return f"; past compactAtTokens: {', '.join(roles)}" if roles else ""


def _rises(ends: tuple[Fraction | int, Fraction | int], facts: Facts) -> bool:
    before, after = ends
    least_percent = 100 + facts.thresholds.growth_percent
    return 100 * after >= least_percent * before and after - before >= 1


# --- what requests are like -----------------------------------------------------------------------


def ceiling_hit(history: History, facts: Facts, _found: bool) -> str | None:
    """Requests ended by length within trendSeconds and ended requests hold at least ceilingPercent
    of the ceiling on average, with the probe the longest does; or requests got HTTP 4xx while
    others are at 80 % of the ceiling.
    """
    window = history.lately(facts.thresholds.trend_seconds)
    by_length = window.increase(_ended_by_length)
    ended, mean = _ended_tokens(window)
    reached = facts.ceiling * facts.thresholds.ceiling_percent
    longest = window.last.sequences.longest_tokens if window.last.sequences else 0
    if by_length and 100 * max(mean, longest) >= reached:
        exact = f"; the longest now holds {longest:,}" if longest else ""
        return (
            f"{by_length:,} of {counted(ended, 'request')} ended by length in {window.seconds} s, "
            f"{mean:,} tokens on average with the prompt{exact}; the ceiling is {facts.ceiling:,}"
        )
    refused = _told_increase(window, lambda o: o.http_4xx)
    near = max(mean, longest, _live_tokens(window.last, facts))
    if refused > 0 and 100 * near >= NEAR_CEILING_PERCENT * facts.ceiling:
        return (
            f"{counted(refused, 'request')} answered with HTTP 4xx in {window.seconds} s while "
            f"others hold {near:,} of {facts.ceiling:,} tokens; that they were too long is inferred"
        )
    return None


def role_ceiling_exceeded(history: History, facts: Facts, _found: bool) -> str | None:
    """Sequences hold, or ended within trendSeconds with, more tokens than their role declares."""
    window = history.lately(facts.thresholds.trend_seconds)
    # A probe that was silent once says nothing less of what came after.
    before = next((o.sequences for o in window.samples if o.sequences is not None), None)
    now = window.last.sequences
    if before is None or now is None:
        raise CannotSay
    ended = {
        role: count - before.ended_past_ceiling.get(role, 0)
        for role, count in now.ended_past_ceiling.items()
    }
    past = {
        role: now.past_ceiling.get(role, 0) + ended.get(role, 0)
        for role in sorted({*now.past_ceiling, *ended})
    }
    said = ", ".join(f"{count:,} of role {role}" for role, count in past.items() if count > 0)
    if not said:
        return None
    return (
        f"sequences past the ceiling of their role in {window.seconds} s: {said}; the longest now "
        f"holds {now.longest_tokens:,} tokens"
    )


def prefix_miss(history: History, facts: Facts, _found: bool) -> str | None:
    """A prefix of at least one block is declared, and within trendSeconds the cache found less than
    prefixHitPercent of what it alone would give; or prefix caching is off.
    """
    if not facts.prefixes:
        return None
    window = history.over(facts.thresholds.trend_seconds)
    ended = window.increase(lambda o: o.finished_requests)
    tokens = window.increase(lambda o: o.finished_prompt_tokens)
    if ended < ENOUGH_REQUESTS or not tokens:
        return None
    prompt = Fraction(tokens, ended)
    expected = min(
        Fraction(1), sum((p.tokens * p.sequences for p in facts.prefixes), Fraction(0)) / prompt
    )
    names = ", ".join(prefix.name for prefix in facts.prefixes)
    gives = f"prefix {names} alone should give {_percent(expected)} %"
    if not facts.prefix_caching:
        return f"prefix caching is off; {gives} of {tokens:,} prompt tokens in {window.seconds} s"
    queried = window.increase(lambda o: o.prefix_queried_tokens)
    hit = window.increase(lambda o: o.prefix_hit_tokens)
    if not queried:
        return None
    share = Fraction(hit, queried)
    if share >= expected * facts.thresholds.prefix_hit_percent / 100:
        return None
    return (
        f"{_percent(share)} % of {queried:,} prompt tokens were found in the cache in "
        f"{window.seconds} s; {gives}; {_why_missed(window, share / expected, prompt, facts)}"
    )


def _why_missed(window: Window, found: Fraction, prompt: Fraction, facts: Facts) -> str:
    """Return what most likely keeps prefixes from being found; ``found`` is the share that was."""
    usage = window.peak(lambda o: o.usage_per_mille)
    if prompt < min(prefix.tokens for prefix in facts.prefixes):
        return f"prompts have {int(prompt):,} tokens on average, less than a prefix"
    if usage >= EVICTING_PER_MILLE:
        return f"usage was up to {usage / 10:g} %, so that cached blocks were taken for others"
    if found < HARDLY:
        return "something variable stands before it, or each run has a cache_salt of its own"
    if facts.engines > 1:
        return f"requests are spread over {facts.engines:,} engines, each with a cache of its own"
    return "a part of the requests begins with something else"


def cache_churn(history: History, facts: Facts, _found: bool) -> str | None:
    """From the first to the second half of trendSeconds the share of prompt tokens found in the
    cache fell by half, and a request computes growthPercent more of them.
    """
    earlier, later = history.over(facts.thresholds.trend_seconds).halves()
    warm, cold = _hit_share(earlier), _hit_share(later)
    few, many = _computed_tokens(earlier), _computed_tokens(later)
    # Where hardly anything is asked, the cache loses nothing that anybody misses.
    if warm is None or cold is None or few is None or many is None:
        return None
    if warm < WARM or 2 * cold > warm or not _rises((few, many), facts):
        return None
    return (
        f"the cache found {_percent(warm)} % of prompt tokens and then {_percent(cold)} %, so that "
        f"a request computes {int(many):,} of them instead of {int(few):,}{_usage_text(later)}"
    )


def offload_thrash(history: History, facts: Facts, _found: bool) -> str | None:
    """Within trendSeconds host memory had no room for transfers, or took more bytes than it has and
    gave back less than a tenth.
    """
    if history.last.offload is None:
        raise CannotSay
    window = history.over(facts.thresholds.trend_seconds)
    failures = _told_increase(window, _offload(lambda offload: offload.allocation_failures))
    if failures:
        return f"host memory had no room for {counted(failures, 'transfer')} in {window.seconds} s"
    stored = window.increase(_offload(lambda offload: offload.stored_bytes))
    loaded = window.increase(_offload(lambda offload: offload.loaded_bytes))
    if facts.offload_bytes is None or stored < facts.offload_bytes:
        return None
    if loaded >= USEFUL_LOADS * stored:
        return None
    return (
        f"{stored:,} bytes went to host memory in {window.seconds} s, more than its "
        f"{facts.offload_bytes:,}, and {loaded:,} came back"
    )


# --- pools that have room -------------------------------------------------------------------------


def overprovisioned(history: History, facts: Facts, _found: bool) -> str | None:
    """No request waited and usage stayed under spareUsagePercent for spareSeconds, in every pod and
    while one operator watched.
    """
    window = history.over(facts.thresholds.pressure_seconds)
    spare = facts.thresholds.spare_usage_percent
    if window.peak(lambda o: o.waiting) or window.peak(lambda o: o.usage_per_mille) >= spare * 10:
        return None
    seconds = facts.thresholds.spare_seconds
    return f"no request has waited, and usage has stayed under {spare} % for {seconds:,} s"


def idle(history: History, facts: Facts, _found: bool) -> str | None:
    """No request ran or waited and no token was made for idleSeconds, in every pod and while one
    operator watched.
    """
    window = history.over(facts.thresholds.pressure_seconds)
    work = window.peak(_running) + window.peak(lambda o: o.waiting)
    if work or window.increase(lambda o: o.generation_tokens):
        return None
    seconds = facts.thresholds.idle_seconds
    return f"no request ran or waited, and no token was made, for {seconds:,} s"


# --- numbers --------------------------------------------------------------------------------------


def _told_increase(window: Window, counter: Read) -> int:
    """Return by how much a counter rose that an engine need not have, as far as it is told."""
    told = [value for sample in window.samples if (value := counter(sample)) is not None]
    return told[-1] - told[0] if told else 0


def _offload(read: Callable[[Offload], int | None]) -> Read:
    return lambda sample: None if sample.offload is None else read(sample.offload)


def _running(sample: Observation) -> int | None:
    return sample.running


def _slots(sample: Observation, facts: Facts) -> int:
    return facts.slots * sample.engines


def _free_blocks(sample: Observation) -> int | None:
    """Return the blocks that are free in the fullest engine."""
    if sample.blocks is None or sample.usage_per_mille is None:
        return None
    return (sample.blocks - 1) * (1000 - sample.usage_per_mille) // 1000


def _blocks_per_sequence(sample: Observation) -> Fraction | None:
    if sample.used_blocks is None or not sample.running:
        return None
    return Fraction(sample.used_blocks, sample.running)


def _mean_tokens(sample: Observation) -> Fraction | None:
    if sample.sequences is None or not sample.sequences.count:
        return None
    return Fraction(sample.sequences.tokens, sample.sequences.count)


def _live_tokens(sample: Observation, facts: Facts) -> int:
    """Return the tokens that live sequences hold at least, on average; 0 where unknown."""
    blocks = _blocks_per_sequence(sample)
    return 0 if blocks is None else facts.tokens_of(blocks) or 0


def _ended_by_length(sample: Observation) -> int | None:
    return sample.finished.get("length", 0) if sample.finished else None


def _ended_tokens(window: Window) -> tuple[int, int]:
    """Return how many requests ended, and their tokens with the prompt on average."""
    ended = window.increase(lambda o: o.finished_requests)
    prompt = window.increase(lambda o: o.finished_prompt_tokens)
    made = window.increase(lambda o: o.finished_generation_tokens)
    return ended, (prompt + made) // ended if ended else 0


def _hit_share(window: Window) -> Fraction | None:
    """Return the share of prompt tokens found in the cache; None where no prompt was looked up."""
    queried = window.increase(lambda o: o.prefix_queried_tokens)
    hit = window.increase(lambda o: o.prefix_hit_tokens)
    return Fraction(hit, queried) if queried else None


def _computed_tokens(window: Window) -> Fraction | None:
    """Return the prompt tokens that a request computes; None where too few requests ended."""
    ended = window.increase(lambda o: o.finished_requests)
    computed = window.increase(lambda o: o.computed_prompt_tokens)
    return Fraction(computed, ended) if ended >= ENOUGH_REQUESTS else None


# --- words ----------------------------------------------------------------------------------------


def _tenths(value: Fraction) -> str:
    return f"{round(value * 10) / 10:,.1f}"


def _percent(share: Fraction) -> int:
    return round(share * 100)


def _usage_text(window: Window) -> str:
    usages = [o.usage_per_mille for o in window.samples if o.usage_per_mille is not None]
    return f"; usage up to {max(usages) / 10:g} %" if usages else ""


def _showing(window: Window, facts: Facts, short_of: str | None) -> list[Observation]:
    """Return the samples in which requests wait and are short of that: what else there was for a
    moment would speak against the finding.
    """
    return [o for o in window.samples if o.waiting_for_room and _lacks(o, facts) == short_of]


def _waiting_text(window: Window, facts: Facts, showing: Sequence[Observation]) -> str:
    waiting = window.peak(lambda o: o.waiting_for_room)
    running = max(number(o.running) for o in showing)
    return (
        f"up to {counted(waiting, 'request')} waiting for {window.seconds} s with up to "
        f"{running:,} of {_slots(window.last, facts):,} slots taken"
    )


def _blocks_text(window: Window, facts: Facts, showing: Sequence[Observation]) -> str:
    free = [blocks for o in showing if (blocks := _free_blocks(o)) is not None]
    if not free:
        return ""
    needed = facts.blocks_at_ceiling
    whole = "" if needed is None else f", a sequence at the ceiling takes {needed:,}"
    return f"; down to {min(free):,} of {(window.last.blocks or 1) - 1:,} blocks free{whole}"


# --- the chain ------------------------------------------------------------------------------------

_STEPS: Final = ("prompt_tokens", "generation_tokens", "iterations")
_WAITING: Final = ("running", "waiting", "waiting_capacity", "usage_per_mille", "blocks")
_GROWTH: Final = ("running", "used_blocks", "usage_per_mille", "sequences")
_ENDED: Final = ("finished_requests", "finished_prompt_tokens")
_HITS: Final = ("prefix_queried_tokens", "prefix_hit_tokens")

CHAIN: Final = (
    Rule(
        Reason.ENGINE_STUCK,
        engine_stuck,
        (*_STEPS, "running", "waiting", "waiting_capacity", "awake", "fetching"),
        each_engine=True,
    ),
    Rule(
        Reason.PREEMPTING,
        preempting,
        ("preemptions", "running", "usage_per_mille"),
        each_engine=True,
    ),
    Rule(Reason.REJECTING, rejecting, ("rejections", "http_5xx")),
    Rule(Reason.BLOCK_BOUND, block_bound, _WAITING, each_engine=True),
    Rule(Reason.LIMIT_TOO_TIGHT, limit_too_tight, _WAITING, each_engine=True),
    Rule(Reason.SLOT_BOUND, slot_bound, _WAITING, each_engine=True),
    Rule(Reason.COMPUTE_BOUND, compute_bound, _WAITING, each_engine=True),
    Rule(Reason.LONG_CONTEXT_AND_ADMISSION, long_context_and_admission, _GROWTH),
    Rule(Reason.LONG_CONTEXT, long_context, _GROWTH),
    Rule(
        Reason.CEILING_HIT,
        ceiling_hit,
        (
            "finished",
            *_ENDED,
            "finished_generation_tokens",
            "http_4xx",
            "running",
            "used_blocks",
            "sequences",
        ),
    ),
    Rule(Reason.ROLE_CEILING_EXCEEDED, role_ceiling_exceeded, ("sequences",)),
    Rule(Reason.PREFIX_MISS, prefix_miss, (*_HITS, *_ENDED, "usage_per_mille")),
    Rule(
        Reason.CACHE_CHURN,
        cache_churn,
        (*_HITS, "finished_requests", "computed_prompt_tokens", "usage_per_mille"),
    ),
    Rule(Reason.OFFLOAD_THRASH, offload_thrash, ("offload",)),
    Rule(
        Reason.OVERPROVISIONED,
        overprovisioned,
        ("waiting", "usage_per_mille"),
        after=lambda thresholds: thresholds.spare_seconds,
        release=lambda _: 0,
        every_pod=True,
    ),
    Rule(
        Reason.IDLE,
        idle,
        ("running", "waiting", "generation_tokens"),
        after=lambda thresholds: thresholds.idle_seconds,
        release=lambda _: 0,
        every_pod=True,
    ),
)
