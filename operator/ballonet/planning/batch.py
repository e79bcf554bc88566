"""Tokens of one engine step, which are never fewer than the sequences that it is set up for."""

from __future__ import annotations

from ballonet.api.v1alpha1 import InferencePoolSpec
from ballonet.engines import vllm


def max_batched_tokens(spec: InferencePoolSpec, device: str, slots: int) -> int:
    """Return the tokens of one engine step; the engine refuses fewer than its sequences."""
    if spec.sequence.max_batched_tokens is not None:
        return spec.sequence.max_batched_tokens
    return max(vllm.default_batched_tokens(device), least_batched_tokens(spec, slots))


def least_batched_tokens(spec: InferencePoolSpec, slots: int) -> int:
    """Return the fewest tokens of a step with which the engine runs this many sequences."""
    return vllm.max_num_seqs(slots, spec.engine.version)


def takes(spec: InferencePoolSpec, slots: int) -> bool:
    """Return whether the engine accepts this many sequences beside the tokens of a step."""
    given = spec.sequence.max_batched_tokens
    return given is None or least_batched_tokens(spec, slots) <= given
