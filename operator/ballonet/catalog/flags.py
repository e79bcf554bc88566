"""Which flag of vLLM exists in which version."""

from __future__ import annotations

from functools import cache

from ballonet.catalog.lookup import load


@cache
def vllm_flag_ranges() -> dict[str, tuple[tuple[str, str], ...]]:
    """Return the sampled versions, first and last, between which each flag exists."""
    flags: dict[str, list[list[str]]] = load("vllm_flags.json")["flags"]
    return {flag: tuple((first, last) for first, last in ranges) for flag, ranges in flags.items()}


@cache
def vllm_sampled_versions() -> tuple[str, ...]:
    """Return the versions whose flags were read, oldest first."""
    return tuple(load("vllm_flags.json")["versions"])


@cache
def vllm_switches() -> frozenset[str]:
    """Return the flags that are known to have a ``--no-`` form."""
    return frozenset(load("vllm_flags.json")["switches"])
