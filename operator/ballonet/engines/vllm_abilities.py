"""What versions of vLLM can do that plans or levers ask for, most of it told by a flag."""

from __future__ import annotations

from typing import Final, NamedTuple

from ballonet.engines.vllm_versions import flags, parse_version


class Ability(NamedTuple):
    """Something that an engine can be told.

    Attributes:
        name: what it is, in words of the field.
        flag: the flag that says it; a version that takes the flag has the ability.
    """

    name: str
    flag: str


ABILITIES: Final = (
    Ability("exact KV memory", "--kv-cache-memory-bytes"),
    Ability("hybrid KV cache manager off", "--disable-hybrid-kv-cache-manager"),
    Ability("decode context parallel", "--decode-context-parallel-size"),
    Ability("state number format", "--mamba-ssm-cache-dtype"),
    Ability("state block size", "--mamba-block-size"),
    Ability("KV offload to host memory", "--kv-offloading-size"),
    Ability("KV residency metrics", "--kv-cache-metrics"),
    Ability("state cache mode", "--mamba-cache-mode"),
    Ability("layers without quantized KV", "--kv-cache-dtype-skip-layers"),
    Ability("free-block headroom", "--watermark"),
    Ability("prefix match unit", "--prefix-match-unit"),
    Ability("bounded queue", "--max-num-queued-reqs"),
    Ability("prefix retention interval", "--prefix-cache-retention-interval"),
    Ability("running sequences below the graph size", "--max-num-active-seqs"),
)


def abilities(version: str) -> tuple[Ability, ...]:
    """Return what a version surely can do, in the order of ABILITIES."""
    return tuple(one for one in ABILITIES if one.flag in flags(version))


# Least CUDA compute capability by how weights are stored, where GPUs of the catalog have less, from
# which minor version on (get_min_capability, model_executor/layers/quantization, read in 24
# versions from 0.10.2 to 0.32.0).
_ALWAYS: Final = (0, 0)
_LEAST_COMPUTE: Final = {
    **dict.fromkeys(("mxfp4", "gpt_oss_mxfp4", "fbgemm_fp8", "experts_int8"), ((_ALWAYS, (8, 0)),)),
    **dict.fromkeys(("awq", "torchao"), ((_ALWAYS, (7, 5)),)),
    **dict.fromkeys(("fp8", "awq_marlin", "modelopt_fp4"), (((0, 14), (7, 5)), (_ALWAYS, (8, 0)))),
    "modelopt": (((0, 27), (8, 0)), (_ALWAYS, (8, 9))),
    "modelopt_mixed": (((0, 24), (7, 5)), (_ALWAYS, (8, 9))),
    "modelopt_mxfp8": (((0, 20), (8, 0)), (_ALWAYS, (10, 0))),
}
_FIRST_WITH_BF16_CACHE: Final = (0, 11)
_FIRST_WITHOUT_V0: Final = (0, 11)
_FIRST_THAT_TRIES_ALL_BACKENDS: Final = (0, 11, 1)
_COUNTS_YARN_POSITIONS_AS_GIVEN: Final = (0, 30)


def least_compute(quantization: str | None, version: str) -> tuple[int, int] | None:
    """Return the CUDA compute capability that weights stored so need; None for any."""
    minor = parse_version(version)[:2]
    steps = _LEAST_COMPUTE.get(quantization or "", ())
    return next((compute for since, compute in steps if since <= minor), None)


def falls_back(version: str) -> bool:
    """Return whether a version runs its older engine where the current one lacks something.

    _raise_or_fallback, engine/arg_utils.py.
    """
    return parse_version(version)[:2] < _FIRST_WITHOUT_V0


def tries_all_backends(version: str) -> bool:
    """Return whether a version takes the first attention backend that can run a model.

    get_valid_backends, platforms/cuda.py. Before, the device chose one, and others had to be asked
    for.
    """
    return parse_version(version)[:3] >= _FIRST_THAT_TRIES_ALL_BACKENDS


def takes_bf16_cache(version: str) -> bool:
    """Return whether the KV cache can be told to be BF16 (config/cache.py)."""
    return parse_version(version)[:2] >= _FIRST_WITH_BF16_CACHE


def counts_yarn_positions_as_given(version: str) -> bool:
    """Return whether the longest sequence of a model scaled by YaRN is what its config gives.

    _get_and_verify_max_len, config/model.py.
    """
    return parse_version(version)[:2] >= _COUNTS_YARN_POSITIONS_AS_GIVEN
