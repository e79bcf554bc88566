from __future__ import annotations

import pytest

from ballonet.engines.vllm_defaults import batch_defaults, default_memory_percent
from ballonet.kv.units import GIB


@pytest.mark.parametrize(
    ("version", "gib", "name", "tokens", "sequences"),
    [
        ((0, 10, 2), 24, "L4-24GB", 2048, 256),
        ((0, 10, 2), 80, "H100-80GB", 8192, 1024),
        ((0, 31, 0), 80, "A100-80GB", 2048, 256),
        ((0, 27, 1), 120, "GB10-128GB", 2048, 256),
        ((0, 27, 1), 180, "B200-180GB", 8192, 1024),
        ((0, 28, 0), 180, "B200-180GB", 16384, 1024),
    ],
)
def test_a_large_device_takes_a_large_step(
    version: tuple[int, ...], gib: int, name: str, tokens: int, sequences: int
) -> None:
    found = batch_defaults(version, device_bytes=gib * GIB, device_name=name)
    assert (found.max_batched_tokens, found.max_num_seqs) == (tokens, sequences)


def test_the_share_of_the_device_was_widened_once() -> None:
    assert default_memory_percent((0, 19, 1)) == 90
    assert default_memory_percent((0, 20, 0)) == 92
