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
