from __future__ import annotations

import re
from dataclasses import replace

import pytest

from ballonet.api.conditions import Reason
from ballonet.api.v1alpha1 import KvCacheType
from ballonet.engines.base import Gates
from ballonet.engines.vllm import (
    START_FAILURES,
    default_image,
    flags,
    is_known,
    next_graph_size,
    parse_version,
    render_args,
)

GATES = Gates(
    model_path="Qwen/Qwen3-32B",
    served_names=("qwen", "big"),
    max_model_tokens=32768,
    slots=6,
    max_num_seqs=6,
    max_batched_tokens=8192,
    kv_cache_type=KvCacheType.AUTO,
    prefix_caching=True,
    memory_percent=90,
    tensor=2,
)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("0.32.0", (0, 32, 0, 1)),
        ("v0.32.0", (0, 32, 0, 1)),
        ("0.32.0+cpu", (0, 32, 0, 1)),
        ("0.11.0.post2", (0, 11, 0, 1)),
        ("0.20.1rc2", (0, 20, 1, 0)),
        ("0.20.1.dev1", (0, 20, 1, 0)),
        ("0.20.1-rc1", (0, 20, 1, 0)),
        ("0.10.1.1", (0, 10, 1, 1)),
    ],
)
def test_versions_are_read(text: str, numbers: tuple[int, ...]) -> None:
    assert parse_version(text) == numbers


@pytest.mark.parametrize("text", ["", "latest", "0.32", "nightly-2", "1" * 40])
def test_what_is_no_version_says_how_one_looks(text: str) -> None:
    with pytest.raises(ValueError, match=r"write for example 0\.33\.0"):
        parse_version(text)
    assert not is_known(text)


@pytest.mark.parametrize(
    ("version", "known"),
    [
        ("0.10.1", False),
        ("0.10.2rc1", False),
        ("0.10.2", True),
        ("0.11.0", True),
        ("0.20.0", True),
        ("0.33.0", True),
        ("0.33.7", True),
        ("0.34.0", False),
        ("1.0.0", False),
    ],
)
def test_the_range_of_known_versions(version: str, *, known: bool) -> None:
    assert is_known(version) is known


def test_a_version_between_two_takes_what_both_have() -> None:
    assert flags("0.20.0") == flags("0.19.1") & flags("0.20.2")
    assert flags("0.30.1") == flags("0.30.0") & flags("0.31.0")
    assert flags("0.33.9") == flags("0.33.0")
    assert "--swap-space" in flags("0.17.1")
    assert "--swap-space" not in flags("0.18.0")


def test_limits_are_rendered_for_the_newest_version() -> None:
    gates = replace(GATES, max_num_seqs=8, queue_limit=18, block_tokens=16, revision="abc")
    assert " ".join(render_args(gates, "0.32.0")) == (
        "--host 0.0.0.0 --port 8000 --served-model-name qwen big --revision abc "
        "--max-model-len 32768 --max-num-seqs 8 --max-num-active-seqs 6 "
        "--max-num-batched-tokens 8192 --max-num-queued-reqs 18 --block-size 16 "
        "--gpu-memory-utilization 0.90 --tensor-parallel-size 2 --pipeline-parallel-size 1 "
        "--enable-prefix-caching"
    )


def test_parallel_sizes_are_rendered_where_something_is_divided() -> None:
    gates = replace(GATES, data=4, decode_context=2, expert_parallel=True)
    assert " ".join(render_args(gates, "0.30.0")).endswith(
        "--tensor-parallel-size 2 --pipeline-parallel-size 1 --data-parallel-size 4 "
        "--decode-context-parallel-size 2 --enable-expert-parallel --enable-prefix-caching"
    )


def test_before_0_31_one_flag_is_limit_and_buffers() -> None:
    assert " ".join(render_args(GATES, "0.30.0")) == (
        "--host 0.0.0.0 --port 8000 --served-model-name qwen big --max-model-len 32768 "
        "--max-num-seqs 6 --max-num-batched-tokens 8192 --gpu-memory-utilization 0.90 "
        "--tensor-parallel-size 2 --pipeline-parallel-size 1 --enable-prefix-caching"
    )
    with pytest.raises(ValueError, match="one flag for both"):
        render_args(replace(GATES, max_num_seqs=8), "0.30.0")


def test_the_cpu_backend_is_given_bytes_and_no_share() -> None:
    gates = replace(
        GATES,
        device="cpu",
        memory_percent=None,
        kv_cache_memory_bytes=8388608,
        block_tokens=32,
        tensor=1,
        prefix_caching=False,
        kv_cache_type=KvCacheType.BF16,
    )
    text = " ".join(render_args(gates, "0.30.0"))
    assert "--block-size 32 --kv-cache-dtype bfloat16 --kv-cache-memory-bytes 8388608" in text
    assert "--gpu-memory-utilization" not in text
    assert text.endswith("--no-enable-prefix-caching")


def test_a_limit_without_a_flag_is_no_silent_loss() -> None:
    with pytest.raises(ValueError, match=r"0\.28\.0 has no --max-num-queued-reqs"):
        render_args(replace(GATES, queue_limit=18), "0.28.0")
    with pytest.raises(ValueError, match=r"raise spec\.sequence\.maxBatchedTokens"):
        render_args(replace(GATES, max_batched_tokens=5), "0.30.0")


@pytest.mark.parametrize(
    ("percent", "text"), [(9, "0.09"), (10, "0.10"), (90, "0.90"), (98, "0.98"), (100, "1.00")]
)
def test_the_share_of_memory_is_written_without_floats(percent: int, text: str) -> None:
    rendered = render_args(replace(GATES, memory_percent=percent), "0.30.0")
    assert rendered[rendered.index("--gpu-memory-utilization") + 1] == text


def test_graph_sizes_are_those_that_vllm_captures() -> None:
    # list of vLLM 0.33: 1, 2, 4, then step 8 below 256, then step 16
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, 513, 16)]
    for sequences in range(1, 513):
        assert next_graph_size(sequences) == min(size for size in sizes if size >= sequences)


def test_the_public_image_carries_the_version() -> None:
    assert default_image("0.32.0") == "vllm/vllm-openai:v0.32.0"


@pytest.mark.parametrize(
    ("line", "reason", "advice"),
    [
        (
            "ValueError: To serve at least one request with the model's max seq len (1024), "
            "(0.03 GiB KV cache is needed ...)",
            *(Reason.ENGINE_REFUSED_TO_START, "spec.sequence.maxTokens"),
        ),
        (
            "Failed to import from vllm._C: ImportError('libnuma.so.1: cannot open shared object')",
            *(None, "libnuma1"),
        ),
        (
            "ValueError: No available memory for the cache blocks. Try increasing ...",
            *(Reason.ENGINE_REFUSED_TO_START, "spec.accelerator.memoryPercent"),
        ),
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
            *(Reason.OUT_OF_DEVICE_MEMORY, "set spec.budget.pin to None"),
        ),
        *(
            (line, Reason.OUT_OF_DEVICE_MEMORY, "set spec.budget.pin to None")
            for line in (
                "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
                "torch.AcceleratorError: CUDA error: out of memory",
                "RuntimeError: CUDA driver error: out of memory",
                "RuntimeError: HIP error: out of memory",
                "gpu-1:7:7 [0] NCCL WARN Cuda failure 2 'out of memory'",
                "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
            )
        ),
        ("vllm: error: unrecognized arguments: --no-such-flag", None, "spec.engine.args"),
        (
            "ValueError: No common block size for 16 (CPU_ATTN: [MultipleOf(32)])",
            *(Reason.ENGINE_REFUSED_TO_START, "spec.sequence.blockTokens"),
        ),
    ],
)
def test_last_words_are_known(line: str, reason: Reason | None, advice: str) -> None:
    found = next(failure for failure in START_FAILURES if re.search(failure.pattern, line))
    assert found.reason is reason
    assert advice in found.advice


def test_advice_about_memory_is_no_failure() -> None:
    line = "CUDA graphs can take additional memory. If you are running out of memory, consider ..."
    assert not any(re.search(failure.pattern, line) for failure in START_FAILURES)
