"""Which flag, model architecture and attention backend of vLLM exists in which version."""

from __future__ import annotations

from functools import cache
from typing import Final

from ballonet.catalog.lookup import load

Ranges = dict[str, tuple[tuple[str, str], ...]]
"""By name, the versions read, first and last, between which it exists."""
_MODELS: Final = "vllm_models.json"


@cache
def vllm_flag_ranges() -> Ranges:
    """Return the sampled versions, first and last, between which each flag exists."""
    return _ranges(load("vllm_flags.json")["flags"])


@cache
def vllm_sampled_versions() -> tuple[str, ...]:
    """Return the versions whose flags were read, oldest first."""
    return tuple(load("vllm_flags.json")["versions"])


@cache
def vllm_switches() -> frozenset[str]:
    """Return the flags that are known to have a ``--no-`` form."""
    return frozenset(load("vllm_flags.json")["switches"])


@cache
def vllm_values() -> dict[str, tuple[int, int | None]]:
    """Return the least and the most values of each flag that does not take exactly one.

    None is no bound. Switches take no value.
    """
    data = load("vllm_flags.json")
    values: dict[str, list[int | None]] = data["values"]
    return dict.fromkeys(data["switches"], (0, 0)) | {
        flag: (least or 0, most) for flag, (least, most) in values.items()
    }


@cache
def vllm_registry_versions() -> tuple[str, ...]:
    """Return the versions whose models and attention backends were read, oldest first."""
    return tuple(load(_MODELS)["versions"])


@cache
def vllm_architecture_ranges() -> Ranges:
    """Return the versions that have each architecture which not all of them have.

    Left out is what a version without it may run all the same, by the Transformers library.
    """
    return _ranges(load(_MODELS)["architectures"])


@cache
def vllm_transformers_architectures() -> frozenset[str]:
    """Return which of these architectures a Transformers library from 5 on may run."""
    return frozenset(load(_MODELS)["in_transformers_5"])


@cache
def vllm_unstaged_ranges() -> Ranges:
    """Return the versions that run an architecture in one pipeline stage only."""
    return _ranges(load(_MODELS)["without_pipeline"])


@cache
def vllm_backend_ranges() -> Ranges:
    """Return the versions that know the name of each attention backend."""
    return _ranges(load(_MODELS)["attention_backends"])


def _ranges(data: dict[str, list[list[str]]]) -> Ranges:
    return {name: tuple((first, last) for first, last in ranges) for name, ranges in data.items()}
