"""What versions of vLLM can do that plans or levers ask for, told by the flag that brings it."""

from __future__ import annotations

from typing import Final, NamedTuple

from ballonet.engines.vllm_versions import flags


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
