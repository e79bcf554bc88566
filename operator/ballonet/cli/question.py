"""Options of ``ballonet fit`` and ``ballonet gpus`` as a pool: they ask what a pool would ask."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from ballonet.api.v1alpha1 import API_VERSION, KIND, MAX_NAME_CHARACTERS, KvCacheType
from ballonet.catalog.flags import vllm_sampled_versions
from ballonet.cli.pools import PoolDocument
from ballonet.engines import sglang, vllm
from ballonet.engines.vllm_planned import KV_CACHE_TYPES
from ballonet.kv.cache_types import CACHE_TYPES

# What the fields of the pool are called on the command line; longer paths first.
OPTIONS: Final = {
    "spec.budget.kvCacheMemoryPerRank": "--kv-memory",
    "spec.accelerator.memoryPercent": "--memory-percent",
    "spec.accelerator.type": "--gpu",
    "spec.model.weights.memory": "--weights",
    "spec.model.config.inline": "--config",
    "spec.model.config (inline or configMapRef)": "--config FILE",
    "spec.model.name": "MODEL",
    "spec.engine.version": "--engine",
    "spec.engine.args: --kv-cache-dtype": "--kv-cache",
    "spec.engine.args[1]": "--kv-cache",
    "spec.parallelism.tensor": "--tensor",
    "spec.parallelism:": "--tensor:",
    "spec.sequence.kvCacheType": "--kv-cache",
    "spec.sequence.maxTokens": "--context",
    "spec.topologies[agents].roles[worker].maxTokens": "--worker-context",
    "spec.topologies[0].roles[1].maxTokens": "--worker-context",
    "spec.topologies[agents].roles[planner].count": "planners of --agents",
    "spec.topologies[agents].roles[worker].count": "workers of --agents",
    "spec.topologies[agents].roles[agent].count": "--agents",
    "spec.topologies[agents].concurrentRuns": "--runs",
    "spec.topologies[0].concurrentRuns": "--runs",
    "spec.topologies:": "--agents and --runs:",
}
_TOKENS: Final = re.compile(r"(\d{1,9})([km]?)", re.ASCII | re.IGNORECASE)
_AGENTS: Final = re.compile(r"(\d{1,4})(?:\+(\d{1,4}))?", re.ASCII)
_SHORT_VERSION: Final = re.compile(r"\d{1,4}\.\d{1,4}", re.ASCII)
_UNITS: Final = {"": 1, "k": 1024, "m": 1024**2}


def tokens(text: str) -> int:
    """Return the tokens of a text such as ``32768`` or ``32k``; k is 1,024 and m 1,048,576.

    Raises:
        ValueError: the text is no number of tokens.
    """
    match = _TOKENS.fullmatch(text.strip())
    if match is None or not int(match[1]):
        raise ValueError(f"{text!r} is no number of tokens: write for example 32768 or 32k")
    return int(match[1]) * _UNITS[match[2].lower()]


def agents(text: str) -> tuple[int, ...]:
    """Return the sequences of a run: planner and workers of ``1+5``, or all alike of ``6``.

    Raises:
        ValueError: the text is neither.
    """
    match = _AGENTS.fullmatch(text.strip())
    counts = () if match is None else tuple(int(count) for count in match.groups() if count)
    if not counts or not all(counts):
        raise ValueError(f"{text!r} is no number of agents: write planner+workers, as 1+5, or 6")
    return counts


def kv_cache(text: str) -> str:
    """Return the number format of a text such as ``fp8``: a word of the resource or of the engine.

    Raises:
        ValueError: the format is not planned for.
    """
    words = {name: kind.value.lower() for kind, name in KV_CACHE_TYPES.items()}
    formats = (*words.values(), *(name for name in CACHE_TYPES if name not in words))
    name = text.strip().lower()
    name = words.get(name, name)
    if name not in formats:
        raise ValueError(
            f"{text!r} is no number format that is planned for: use one of {', '.join(formats)}"
        )
    return name


class EngineName(Enum):
    """Engines that can be asked about; pools run the first."""

    VLLM = "vLLM"
    SGLANG = "SGLang"


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine and its version."""

    name: EngineName
    version: str

    def __str__(self) -> str:
        return f"{self.name.value} {self.version}"


def engine(text: str) -> Engine:
    """Return the engine of a text such as ``vllm@0.32``.

    Without a version the newest known is meant, without a patch the newest known of that minor.

    Raises:
        ValueError: the engine is not planned for.
    """
    name, _, version = text.strip().lower().partition("@")
    if name == "sglang":
        return Engine(EngineName.SGLANG, version or sglang.NEWEST)
    if name != "vllm":
        raise ValueError(
            f"{text!r} is no engine that is planned for: write vllm@VERSION or sglang@VERSION"
        )
    if _SHORT_VERSION.fullmatch(version):
        version = _newest_patch(version)
    return Engine(EngineName.VLLM, version or str(vllm.NEWEST))


def _newest_patch(minor: str) -> str:
    """Return the newest known release of a minor version; one that is not known stays unknown."""
    known = [one for one in vllm_sampled_versions() if one.startswith(f"{minor}.")]
    return known[-1] if known else f"{minor}.0"


@dataclass(frozen=True, slots=True)
class Question:
    """Whether a model with this context fits this GPU, for these agents.

    Attributes:
        agents: sequences of a run, planner first; empty asks only how many fit.
        worker_context: ceiling of the workers, where it is lower.
        kv_cache: number format of the KV cache, one of the resource or of the engine.
        weights, kv_memory: Kubernetes quantities.
        config_text: the model's config.json, where the catalog is not to answer.
    """

    model: str
    gpu: str
    context: int
    engine: Engine
    agents: tuple[int, ...] = ()
    worker_context: int | None = None
    runs: int = 1
    tensor: int = 1
    kv_cache: str | None = None
    memory_percent: int | None = None
    kv_memory: str | None = None
    weights: str | None = None
    config_text: str | None = None

    def pool(self) -> PoolDocument:
        """Return the pool that asks this, with only the fields that were given."""
        spec: dict[str, Any] = {
            "model": _given(
                name=self.model,
                config=_given(inline=self.config_text),
                weights=_given(memory=self.weights),
            ),
            "engine": _given(
                version=self.engine.version, image=self._image(), args=self._engine_arguments()
            ),
            "accelerator": _given(type=self.gpu, memoryPercent=self.memory_percent),
            "parallelism": {"tensor": self.tensor},
            "sequence": _given(maxTokens=self.context, kvCacheType=self._kv_cache_type()),
            "budget": _given(kvCacheMemoryPerRank=self.kv_memory),
            "topologies": self._topologies(),
        }
        body = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"name": pool_name(self.model)},
            "spec": {name: value for name, value in spec.items() if value},
        }
        return PoolDocument("command line", body)

    def _kv_cache_type(self) -> str | None:
        """Return the resource's own word for the KV cache's format, or None."""
        words = {kind.value.lower(): kind.value for kind in KvCacheType}
        return None if self.kv_cache is None else words.get(self.kv_cache.lower())

    def _engine_arguments(self) -> list[str] | None:
        """Return the engine's argument for a format that the resource has no word for."""
        if self.kv_cache is None or self._kv_cache_type() is not None:
            return None
        return ["--kv-cache-dtype", self.kv_cache]

    def _image(self) -> str | None:
        """Return the image of which a CPU pool must name one; it has no say in the plan."""
        cpu = self.gpu.strip().upper() == "CPU"
        return f"registry.example/vllm-cpu:{self.engine.version}" if cpu else None

    def _topologies(self) -> list[dict[str, Any]]:
        if not self.agents:
            return []
        names = ("planner", "worker") if len(self.agents) > 1 else ("agent",)
        roles = [
            {"name": name, "count": count} for name, count in zip(names, self.agents, strict=True)
        ]
        if self.worker_context is not None:
            roles[-1]["maxTokens"] = self.worker_context
        return [{"name": "agents", "concurrentRuns": self.runs, "roles": roles}]


def pool_name(model: str) -> str:
    """Return a legal name of a pool for a model."""
    words = re.sub("[^a-z0-9]+", "-", model.rsplit("/", 1)[-1].lower()).strip("-")
    named = words if words[:1].isalpha() else f"pool-{words}"
    return named[:MAX_NAME_CHARACTERS].rstrip("-")


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value not in (None, {})}
