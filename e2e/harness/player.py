"""Plays traces on stub engines: each sample becomes the page that an engine would have shown."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Self

from packaging.version import Version

from ballonet.diagnosis.observation import Observation
from ballonet.engines.metrics import Figure
from ballonet.engines.vllm_metrics import METRICS
from e2e.harness.stub import Stub

MODEL: Final = "tiny"
# What the patterns of the table are tried with, to find a value of a label that matches.
_ENDPOINT: Final = "/v1/completions"
Sample = tuple[str, Observation]


def page(observation: Observation, about: Mapping[str, Any], version: str = "0.32.0") -> str:
    """Return the page of a pod of vLLM `version`, in which absent figures are absent series.

    What the observation adds up over the pod's engines, and does not tell of each, is spread over
    them again. `about` says `ceiling` and `block_tokens` of the trace's pool.
    """
    # Of a figure with an older and a newer name both may be the same series.
    lines: dict[str, None] = {}
    for name, figure in METRICS.figures():
        # How many engines there are stands in the labels of all series.
        if name == "engines" or Version(figure.since) > Version(version):
            continue
        for labels, values in _series(name, figure, observation, about):
            for rank, value in enumerate(values):
                # The series of the process and of its HTTP server know no engines.
                own = figure.name.startswith(METRICS.prefix)
                pairs = {"engine": str(rank), "model_name": MODEL} if own else {}
                shown = ",".join(f'{k}="{v}"' for k, v in (pairs | labels).items())
                lines[f"{figure.name}{{{shown}}} {value}"] = None
    return "\n".join(lines) + "\n"


def _series(
    name: str, figure: Figure, observation: Observation, about: Mapping[str, Any]
) -> Iterator[tuple[dict[str, str], Sequence[float]]]:
    """Yield the labels of each series that gives the field `name`, and a value an engine."""
    labels = {label: _matching(pattern) for label, pattern in figure.where.items()}
    engines, blocks = observation.engines, observation.blocks
    if name == "usage_per_mille":
        yield labels, _shares(observation)
    elif told := _told(observation, name):
        yield labels, told
    elif name == "blocks":
        if blocks is not None:
            yield _cache_labels(blocks, engines, about), [1] * engines
    elif name == "started_at":
        if observation.started_at is not None:
            yield labels, [observation.started_at.timestamp()]
    elif name == "finished":
        for reason, count in observation.finished.items():
            yield {METRICS.finished_label: reason}, _spread(count, engines)
    elif name == "awake":
        if observation.awake is not None:
            yield labels, [int(observation.awake)] * engines
    else:
        group, _, field = name.rpartition(".")
        value = getattr(getattr(observation, group) if group else observation, field, None)
        if value is not None:
            own = figure.name.startswith(METRICS.prefix)
            yield labels, _spread(value, engines if own else 1)


def _shares(observation: Observation) -> list[float]:
    """Return the share of blocks in use of each engine; nothing where it is not known."""
    if told := _told(observation, "usage_per_mille"):
        return [share / 1000 for share in told]
    blocks, used = observation.blocks, observation.used_blocks
    if blocks is None or used is None:
        return []
    return [share / (blocks - 1) for share in _spread(used, observation.engines)]


def _told(observation: Observation, name: str) -> list[int]:
    """Return the figure of each engine; nothing where the observation does not tell."""
    told = [getattr(engine, name, None) for engine in observation.by_engine.values()]
    return [] if None in told else [int(value) for value in told if value is not None]


def _cache_labels(blocks: int, engines: int, about: Mapping[str, Any]) -> dict[str, str]:
    ceiling, block_tokens = about["ceiling"], about["block_tokens"]
    concurrency = blocks / -(-ceiling // block_tokens)
    return {
        "block_size": str(block_tokens),
        "enable_prefix_caching": "True",
        "kv_cache_max_concurrency": str(concurrency),
        "kv_cache_size_tokens": str(int(concurrency * ceiling)),
        # Each engine repeats the sum over all of them.
        "num_gpu_blocks": str(blocks * engines),
    }


def _matching(pattern: str) -> str:
    """Return a value that the whole of the pattern matches."""
    candidates = (_ENDPOINT, *pattern.split("|"))
    return next(text for text in candidates if re.fullmatch(pattern, text))


def _spread(total: int, engines: int) -> list[int]:
    return [(total + engines - 1 - rank) // engines for rank in range(engines)]


class Player:
    """Plays samples on stubs by the name of their pod, for the length of a `with` block.

    `speed` 2 plays a trace in half its time. The last page stays when the trace has ended.
    """

    def __init__(
        self,
        stubs: Mapping[str, Stub],
        about: Mapping[str, Any],
        samples: Sequence[Sample],
        *,
        speed: float = 1.0,
        versions: Mapping[str, str] | None = None,
    ) -> None:
        self._stubs = stubs
        self._about = about
        self._samples = samples
        self._speed = speed
        self._versions = versions or {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._play, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _play(self) -> None:
        first, begun = self._samples[0][1].at, time.monotonic()
        for pod, observation in self._samples:
            due = begun + (observation.at - first).total_seconds() / self._speed
            if self._stop.wait(max(0.0, due - time.monotonic())):
                return
            version = self._versions.get(pod, "0.32.0")
            self._stubs[pod].change(page=page(observation, self._about, version))
