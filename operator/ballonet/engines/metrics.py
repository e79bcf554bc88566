"""Which series of an engine say what, as data: one table an engine, read by every source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Figure:
    """Series of one name; where a figure is a sum, over all of a pod that match.

    Attributes:
        name: the series as exposed, with the suffixes of counters and histograms.
        where: labels and a regular expression for the whole of each value.
        since: first version of the engine that has it.
    """

    name: str
    since: str
    where: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EngineMetrics:
    """All series that are read from one kind of engine.

    Attributes:
        prefix: what the names of the engine's own series begin with; others are those of any
            Python process or HTTP server.
        engine_label: the label that tells the engines (data-parallel ranks) of a pod apart.
        present: the series that each engine has from its start to its end, and once.
        usage: share of KV blocks in use, 0 to 1.
        cache_info: the series whose labels describe the cache; None where there is none.
        awake: 1 while the engine is not put to sleep.
        started: when the serving process started, in seconds since 1970.
        finished: ended requests, by reason in the label ``finished_label``.
        sums: fields of an Observation; of several figures the first that is there counts.
        offload: the same for the fields of its Offload.
    """

    prefix: str
    engine_label: str
    present: Figure
    usage: Figure
    cache_info: Figure | None
    awake: Figure | None
    started: Figure
    finished: Figure | None
    finished_label: str
    sums: Mapping[str, tuple[Figure, ...]]
    offload: Mapping[str, tuple[Figure, ...]] = field(default_factory=dict)

    def figures(self) -> Iterator[tuple[str, Figure]]:
        """Yield every figure with the field that it fills, offload fields as ``offload.NAME``."""
        single = (
            ("engines", self.present),
            ("usage_per_mille", self.usage),
            ("blocks", self.cache_info),
            ("awake", self.awake),
            ("started_at", self.started),
            ("finished", self.finished),
        )
        yield from ((name, figure) for name, figure in single if figure is not None)
        for name, figures in self.sums.items():
            yield from ((name, figure) for figure in figures)
        for name, figures in self.offload.items():
            yield from ((f"offload.{name}", figure) for figure in figures)

    def series(self) -> tuple[str, ...]:
        """Return the names of all series, each once; that of ``present`` first."""
        return tuple(dict.fromkeys(figure.name for _, figure in self.figures()))
