"""The page of metrics, in Prometheus' text format; made anew for each scrape."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping

from ballonet_probe.lifecycle import BUCKET_TOKENS, OTHER, Histogram, Lifecycle
from ballonet_probe.settings import RoleLimits, Settings
from ballonet_probe.snapshot import PHASES, Sequence, Snapshot

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SHARED = "_shared"
MAX_ID_CHARACTERS = 128

Labels = Mapping[str, object]


class Page:
    """Lines of metrics; every sample carries the same first labels."""

    def __init__(self, common: Labels) -> None:
        self._common = common
        self._lines: list[str] = []

    def family(
        self, name: str, kind: str, text: str, samples: Iterable[tuple[Labels, object]]
    ) -> None:
        """Add one metric with its samples."""
        self._lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
        self._lines += [self._sample(name, labels, value) for labels, value in samples]

    def histograms(self, name: str, kind: str, text: str, by_role: Mapping[str, Histogram]) -> None:
        """Add a histogram a role; ``kind`` is gauge where counts can fall."""
        self._lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
        for role, histogram in sorted(by_role.items()):
            below = 0
            bounds = (*map(str, BUCKET_TOKENS), "+Inf")
            for bound, count in zip(bounds, histogram.counts, strict=True):
                below += count
                labels = {"role": role, "le": bound}
                self._lines.append(self._sample(f"{name}_bucket", labels, below))
            self._lines.append(self._sample(f"{name}_sum", {"role": role}, histogram.sum))
            self._lines.append(self._sample(f"{name}_count", {"role": role}, below))

    def text(self) -> str:
        """Return all lines."""
        return "\n".join(self._lines) + "\n"

    def _sample(self, name: str, labels: Labels, value: object) -> str:
        pairs = ",".join(
            f'{key}="{_escaped(str(one))}"' for key, one in {**self._common, **labels}.items()
        )
        return f"{name}{{{pairs}}} {value}"


def live_page(
    common: Labels,
    settings: Settings,
    snapshot: Snapshot,
    lifecycle: Lifecycle,
    *,
    scan_seconds: float,
) -> str:
    """Return the page of a probe that works."""
    page = Page(common)
    page.family("ballonet_probe_up", "gauge", "Whether the probe reads its engine.", [({}, 1)])
    page.family(
        "ballonet_probe_scan_seconds",
        "gauge",
        "How long the engine waited for this page.",
        [({}, f"{scan_seconds:.6f}")],
    )
    page.family(
        "ballonet_kv_blocks_total",
        "gauge",
        "KV blocks that sequences can use; the null block is none of them.",
        [({}, snapshot.total_blocks)],
    )
    page.family(
        "ballonet_kv_blocks_free", "gauge", "KV blocks in no use.", [({}, snapshot.free_blocks)]
    )
    _add_sequences(page, settings, snapshot, lifecycle)
    _add_phases(page, snapshot)
    page.family(
        "ballonet_running_peak",
        "gauge",
        "Most sequences that ran at once in the last one to two minutes.",
        [({}, lifecycle.running.highest())],
    )
    _add_roles(page, snapshot, lifecycle)
    _add_promises(page, settings, snapshot, lifecycle)
    return page.text()


def _add_sequences(
    page: Page, settings: Settings, snapshot: Snapshot, lifecycle: Lifecycle
) -> None:
    """Add what the largest sequences hold by themselves, and the sums that make it whole."""
    shown, rest = _top(snapshot.sequences, settings.top)
    named = [(_labels(one, settings, lifecycle), one) for one in shown]
    sums = (
        (_no_sequence(SHARED), snapshot.shared_blocks),
        (_no_sequence(OTHER), sum(one.exclusive_blocks for one in rest)),
    )
    page.family(
        "ballonet_kv_blocks_in_use",
        "gauge",
        "KV blocks that only this sequence uses; _shared are those of several; the sum is all.",
        [*((labels, one.exclusive_blocks) for labels, one in named), *sums],
    )
    page.family(
        "ballonet_seq_tokens",
        "gauge",
        "Tokens of a live sequence, prompt and output.",
        [(labels, one.tokens) for labels, one in named],
    )


def _add_phases(page: Page, snapshot: Snapshot) -> None:
    """Add all live sequences by phase."""
    by_phase = {
        phase: [one.tokens for one in snapshot.sequences if one.phase == phase] for phase in PHASES
    }
    page.family(
        "ballonet_kv_sequences",
        "gauge",
        "Live sequences by phase.",
        [({"phase": phase}, len(tokens)) for phase, tokens in by_phase.items()],
    )
    page.family(
        "ballonet_kv_sequence_tokens",
        "gauge",
        "Tokens of live sequences by phase, added up.",
        [({"phase": phase}, sum(tokens)) for phase, tokens in by_phase.items()],
    )
    page.family(
        "ballonet_kv_sequence_longest_tokens",
        "gauge",
        "Tokens of the longest live sequence by phase.",
        [({"phase": phase}, max(tokens, default=0)) for phase, tokens in by_phase.items()],
    )


def _add_roles(page: Page, snapshot: Snapshot, lifecycle: Lifecycle) -> None:
    """Add live and ended sequences, and what happened to them, by role."""
    live: dict[str, list[int]] = {}
    for one in snapshot.sequences:
        live.setdefault(lifecycle.role(one.role), []).append(one.tokens)
    page.histograms(
        "ballonet_seq_live_tokens",
        "gauge",
        "Tokens of live sequences by role.",
        {role: Histogram(tokens) for role, tokens in live.items()},
    )
    page.histograms(
        "ballonet_seq_finished_tokens",
        "histogram",
        "Tokens of sequences that ended, by role.",
        lifecycle.finished_tokens,
    )
    page.family(
        "ballonet_seq_events_total",
        "counter",
        "What happened to sequences, by role.",
        [
            ({"role": role, "event": event}, count)
            for (event, role), count in sorted(lifecycle.events.items())
        ],
    )


def _add_promises(page: Page, settings: Settings, snapshot: Snapshot, lifecycle: Lifecycle) -> None:
    """Add how many sequences are, or ended, past what their role declares."""
    for name, text, is_past, ended in (
        ("ceiling", "its role's ceiling", RoleLimits.past_ceiling, lifecycle.past_ceiling),
        (
            "compaction",
            "the tokens at which its role should have compacted",
            RoleLimits.past_compaction,
            lifecycle.past_compaction,
        ),
    ):
        past = Counter(dict.fromkeys(settings.roles, 0))
        for one in snapshot.sequences:
            limits = settings.roles.get(one.role)
            past[one.role] += limits is not None and is_past(limits, one.tokens)
        page.family(
            f"ballonet_seq_past_{name}",
            "gauge",
            f"Live sequences longer than {text}.",
            [({"role": role}, past[role]) for role in sorted(settings.roles)],
        )
        page.family(
            f"ballonet_seq_ended_past_{name}_total",
            "counter",
            f"Sequences that ended longer than {text}.",
            [({"role": role}, ended[role]) for role in sorted(settings.roles)],
        )


def off_page(common: Labels, reason: str) -> str:
    """Return the page of a probe that switched itself off; it claims no number."""
    page = Page(common)
    page.family(
        "ballonet_probe_up",
        "gauge",
        "Whether the probe reads its engine.",
        [({"reason": reason[:200]}, 0)],
    )
    return page.text()


def _top(sequences: tuple[Sequence, ...], top: int) -> tuple[list[Sequence], list[Sequence]]:
    ordered = sorted(sequences, key=lambda one: (-one.held_blocks, one.id))
    holding = sum(one.held_blocks > 0 for one in ordered)
    return ordered[: min(top, holding)], ordered[min(top, holding) :]


def _labels(one: Sequence, settings: Settings, lifecycle: Lifecycle) -> Labels:
    return {
        "sequence_id": _shortened(one.id) if settings.plain_ids else _hashed(one.id),
        "run": one.run,
        "role": lifecycle.role(one.role),
        "phase": one.phase,
    }


def _no_sequence(name: str) -> Labels:
    return {"sequence_id": name, "run": "", "role": "", "phase": ""}


def _shortened(text: str) -> str:
    """Return an id as it is; of a long one the beginning, and what tells it from others."""
    return text if len(text) <= MAX_ID_CHARACTERS else f"{text[:MAX_ID_CHARACTERS]}-{_hashed(text)}"


def _hashed(text: str) -> str:
    return hashlib.blake2s(text.encode("utf-8", "replace"), digest_size=6).hexdigest()


def _escaped(text: str) -> str:
    text = text.encode("utf-8", "replace").decode("utf-8")
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
