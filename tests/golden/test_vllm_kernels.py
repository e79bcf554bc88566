"""KV formats that vLLM's attention backends take, chosen or asked for, against our table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

from ballonet.catalog import Catalog
from ballonet.engines.vllm_kernels import is_read, layer_without_kernel
from ballonet.engines.vllm_models import attention_backends
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
    (version, line.get("asked"), line["attention"], line["format"]): set(line["compute"])
    for line in LINES
    for version in line["engine_versions"]
}
VERSIONS = sorted({version for version, *_ in TAKEN})
ATTENTION = sorted({attention for _, _, attention, _ in TAKEN})
ASKED = sorted({asked for _, asked, _, _ in TAKEN if asked is not None})
MODELS = {
    "windows": "mistralai/Mistral-7B-v0.1",
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


def refused_later(version: str, attention: str, name: str, compute: str, asked: str | None) -> bool:
    """Return whether a choice lets a format pass that the chosen backend then refuses."""
    minor = parse_version(version)[:2]
    # FlashAttention 3, the first choice on 9.x, takes formats of fewer bits for FP8 up to 0.21.
    by_3 = compute in TAKEN.get((version, "FLASH_ATTN", attention, name), ()) and compute == "9.0"
    other = name in ("fp8_e5m2", "fp8_per_token_head", "int8_per_token_head")
    if by_3 and other and minor <= (0, 21) and asked in (None, "FLASH_ATTN"):
        return True
    if name == "nvfp4":
        # So it takes NVFP4, and FlashInfer takes that up to 0.24 for what only Blackwell's data
        # centre GPUs have.
        return not compute.startswith("10.") and minor <= (0, 24)
    # Prefills of wide heads need more memory than a block of Turing has.
    return compute == "7.5" and name.startswith("fp8") and attention in ("heads 256", "heads 512")


def ours(version: str, attention: str, asked: str | None = None) -> Mapping[str, set[str]]:
    """Return where our table keeps each format that a version knows."""
    parsed = parse_version(version)
    return {
        name: {
            f"{major}.{minor}"
            for major, minor in COMPUTE
            if layer_without_kernel(
                name,
                geometry(attention),
                vendor="nvidia",
                compute=(major, minor),
                version=parsed,
                backend=asked,
            )
            is None
        }
        for name in FORMATS
        if wrong_in_version("--kv-cache-dtype", name, parsed) is None
    }


def theirs(version: str, attention: str, asked: str | None = None) -> Mapping[str, set[str]]:
    """Return the same of vLLM itself."""
    taken = {
        name: {
            compute
            for compute in TAKEN.get((version, asked, attention, name), ())
            if not refused_later(version, attention, name, compute, asked)
        }
        for name in FORMATS
        if wrong_in_version("--kv-cache-dtype", name, parse_version(version)) is None
    }
    if (asked, attention) == ("FLASHINFER", "sinks") and parse_version(version)[:2] <= (0, 12):
        # Our table does not tell generations apart by their minor number.
        return {name: on | {"10.3"} if "10.0" in on else on for name, on in taken.items()}
    return taken


@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize("version", VERSIONS)
def test_formats_are_kept_where_a_backend_would_be_chosen_for_them(
    version: str, attention: str
) -> None:
    assert ours(version, attention) == theirs(version, attention)


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("version", VERSIONS)
def test_formats_are_kept_where_the_backend_that_is_asked_for_takes_them(
    version: str, asked: str
) -> None:
    if asked not in attention_backends(version):
        assert not any(line_version == version and of == asked for line_version, of, *_ in TAKEN)
        return
    for attention in ATTENTION:
        assert ours(version, attention, asked) == theirs(version, attention, asked), attention


def test_of_a_backend_that_was_not_read_nothing_is_said() -> None:
    def read(backend: str, version: str, vendor: str = "nvidia") -> bool:
        model = geometry("heads 128")
        parsed = parse_version(version)
        return is_read(backend, model, vendor=vendor, compute=(9, 0), version=parsed)

    assert all(read(backend, "0.33.0") for backend in ASKED)
    assert not read("HPC_ATTN", "0.33.0") and not read("FLASH_ATTN", "0.33.0", "amd")
    # Before 0.11.1 a backend that was asked for was built unasked.
    assert read("FLASH_ATTN", "0.11.1") and not read("FLASH_ATTN", "0.11.0")
