"""Specs for tests of planning: the tiny model on CPU, a real one on GPUs, and changes of them."""

from __future__ import annotations

import json
from typing import Any

from ballonet.api.v1alpha1 import InferencePoolSpec
from ballonet.planning.remedies import apply_merge_patch, as_written

# One block of 32 tokens: 2 x 2 heads x 64 x 2 bytes x 4 layers x 32 tokens.
TINY_BLOCK_BYTES = 65_536
TINY_CONFIG = json.dumps(
    {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "vocab_size": 4096,
        "max_position_embeddings": 16_777_216,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
    }
)
# A family that keeps a state that nobody has described.
UNKNOWN_CONFIG = json.dumps(
    {**json.loads(TINY_CONFIG), "model_type": "rwkv7", "time_mix_extra_dim": 32}
)
DEMO: dict[str, Any] = {
    "model": {"name": "tiny", "config": {"inline": TINY_CONFIG}},
    "engine": {"version": "0.32.0", "image": "registry.example/vllm-cpu:0.32.0"},
    "accelerator": {"type": "CPU"},
    "sequence": {"maxTokens": 1024},
    "budget": {"kvCacheMemoryPerRank": "8Mi"},
    "topologies": [
        {"name": "research", "roles": [{"name": "planner"}, {"name": "worker", "count": 5}]}
    ],
}
H100: dict[str, Any] = {
    "model": {"name": "Qwen/Qwen3-32B"},
    "engine": {"version": "0.32.0"},
    "accelerator": {"type": "H100-80GB"},
    "parallelism": {"tensor": 2},
    "sequence": {"maxTokens": 32_768},
    "topologies": DEMO["topologies"],
}


def spec(base: dict[str, Any] = DEMO, /, **changes: Any) -> InferencePoolSpec:
    """Return a spec with fields of the base merged over, as a JSON merge patch does it."""
    return InferencePoolSpec.model_validate(apply_merge_patch(base, changes))


def patched_spec(spec: InferencePoolSpec, patch: dict[str, Any]) -> InferencePoolSpec:
    """Return the spec of a pool after a merge patch for the pool, as the API server makes it."""
    patched = apply_merge_patch({"spec": as_written(spec)}, patch)
    return InferencePoolSpec.model_validate(patched["spec"])


def topology(*roles: dict[str, Any], name: str = "research", runs: int = 1) -> dict[str, Any]:
    """Return a topology as it is written in a pool."""
    return {"name": name, "concurrentRuns": runs, "roles": list(roles)}


def role(name: str, count: int = 1, **more: Any) -> dict[str, Any]:
    """Return a role as it is written in a pool."""
    return {"name": name, "count": count, **more}


def kv_memory(blocks: int) -> dict[str, Any]:
    """Return the budget that gives the tiny model this many blocks, the null block among them."""
    return {"kvCacheMemoryPerRank": blocks * TINY_BLOCK_BYTES}
