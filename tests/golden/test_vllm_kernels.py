"""KV formats that vLLM's own choice of an attention backend takes, against the table of kernels."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from ballonet.catalog import Catalog
from ballonet.engines.vllm_kernels import layer_without_kernel
from ballonet.engines.vllm_planned import wrong_in_version
from ballonet.engines.vllm_versions import parse_version
from ballonet.kv.geometry import ModelGeometry, parse_config

LINES = [
    json.loads(line)
    for line in (Path(__file__).parent / "data" / "vllm_kernels.jsonl").read_text().splitlines()
]
COMPUTE = [(7, 0), (7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (10, 3), (11, 0), (12, 0)]
FORMATS = sorted({line["format"] for line in LINES})
TAKEN = {
    (version, line["attention"], line["format"]): set(line["compute"])
    for line in LINES
    for version in line["engine_versions"]
}
MODELS = {
    "sinks": "openai/gpt-oss-20b",
    "two-way images": "google/gemma-3-27b-it",
    "latent": "deepseek-ai/DeepSeek-V3",
}
PLAIN = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "hidden_size": 1024,
    "intermediate_size": 1024,
    "vocab_size": 1024,
    "max_position_embeddings": 4096,
}


@cache
def geometry(attention: str) -> ModelGeometry:
    """Return a model of this attention."""
    if attention in MODELS:
        entry = Catalog.builtin().model(MODELS[attention])
        assert entry is not None
        return entry.geometry
    return parse_config(json.dumps(PLAIN | {"head_dim": int(attention.split()[1])}))


def refused_later(version: str, attention: str, name: str, compute: str) -> bool:
    """Return whether a choice lets a format pass that the chosen backend then refuses."""
    minor = parse_version(version)[:2]
    if name == "nvfp4":
        # FlashAttention 3 takes all formats of fewer bits for FP8 up to 0.21, and FlashInfer NVFP4
        # for what only Blackwell's data centre GPUs have up to 0.24.
        return not compute.startswith("10.") and minor <= (0, 24)
    # Prefills of wide heads need more memory than a block of Turing has.
    return compute == "7.5" and name.startswith("fp8") and attention in ("heads 256", "heads 512")


@pytest.mark.parametrize(
    ("version", "attention"), sorted({(version, attention) for version, attention, _ in TAKEN})
)
def test_formats_are_kept_where_a_backend_would_be_chosen_for_them(
    version: str, attention: str
) -> None:
    parsed, model = parse_version(version), geometry(attention)
    known = [name for name in FORMATS if wrong_in_version("--kv-cache-dtype", name, parsed) is None]
    ours = {
        name: {
            f"{major}.{minor}"
            for major, minor in COMPUTE
            if layer_without_kernel(
                name, model, vendor="nvidia", compute=(major, minor), version=parsed
            )
            is None
        }
        for name in known
    }
    theirs = {
        name: {
            compute
            for compute in TAKEN.get((version, attention, name), ())
            if not refused_later(version, attention, name, compute)
        }
        for name in known
    }
    assert ours == theirs
