"""Sizes of engine and pod that follow from the spec alone: tokens of a step, ranks.

The tokens of a step are never fewer than the sequences that the engine is set up for.
"""

from __future__ import annotations

from typing import Final

from ballonet.api.v1alpha1 import InferencePoolSpec
from ballonet.engines import vllm

# vLLM's own largest default (engine/arg_utils.py, devices of 70 GiB and more): beyond it nothing
# is known about buffers and graphs, so no plan goes there unless the topologies need it.
MAX_SLOTS: Final = 1024


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


def ranks_per_pod(spec: InferencePoolSpec) -> int:
    """Return the processes of one pod that have a device each; decode context takes none."""
    parallelism = spec.parallelism
    return parallelism.tensor * parallelism.pipeline * parallelism.data
