"""Which model architectures and attention backends versions of vLLM know.

Read in every release from 0.10.2 to 0.33.0 (``model_executor/models/registry.py``;
``AttentionBackendEnum`` of ``attention/backends/registry.py``, ``_Backend`` of
``platforms/interface.py`` before). An engine ends at its start where it is given another name.

An architecture counts as absent only where nothing else can run it: not a class of the same model
under another ending, which vLLM takes instead, and not the Transformers library, whose classes vLLM
falls back to. What Transformers 4.57 has is in no table; up to 0.19.0 there was no Transformers 5
yet, or vLLM did not take it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Final

from ballonet.catalog.flags import (
    vllm_architecture_ranges,
    vllm_backend_ranges,
    vllm_registry_versions,
    vllm_transformers_architectures,
    vllm_unstaged_ranges,
)
from ballonet.engines.vllm_versions import Names, Version, parse_version

_LAST_WITHOUT_TRANSFORMERS_5: Final = Version(0, 19, 0)


def versions_with(architectures: Sequence[str]) -> str:
    """Return in words which versions have one of the architectures that a config names.

    Empty where every version may run one of them, or nothing is known of one.
    """
    ranges = _architectures().ranges
    if any(name not in ranges for name in architectures):
        return ""
    return " or ".join(
        f"{first}" if first == last else f"{first} to {last}"
        for name in architectures
        for first, last in ranges[name]
    )


def lacks(architectures: Sequence[str], version: str) -> bool:
    """Return whether a version surely runs none of the architectures that a config names."""
    known = _architectures()
    return bool(architectures) and all(
        name in known.ranges
        and name not in _possible_architectures(version)
        and not _falls_back(name, version)
        for name in architectures
    )


def runs_in_one_stage(architectures: Sequence[str], version: str) -> bool:
    """Return whether a version surely divides none of the architectures into pipeline stages.

    is_pp_supported_model, config/model.py.
    """
    return bool(architectures) and _in_one_stage(version).issuperset(architectures)


@lru_cache(maxsize=64)
def _in_one_stage(version: str) -> frozenset[str]:
    return Names.of(vllm_registry_versions(), vllm_unstaged_ranges()).sure(version)


@lru_cache(maxsize=64)
def attention_backends(version: str) -> frozenset[str]:
    """Return the names of attention backends that a version may know."""
    return Names.of(vllm_registry_versions(), vllm_backend_ranges()).possible(version)


@cache
def _architectures() -> Names:
    return Names.of(vllm_registry_versions(), vllm_architecture_ranges())


@lru_cache(maxsize=64)
def _possible_architectures(version: str) -> frozenset[str]:
    return _architectures().possible(version)


def _falls_back(architecture: str, version: str) -> bool:
    """Return whether a version may run an architecture by the Transformers library."""
    return (
        parse_version(version) > _LAST_WITHOUT_TRANSFORMERS_5
        and architecture in vllm_transformers_architectures()
    )
