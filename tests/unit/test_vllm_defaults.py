from __future__ import annotations

from ballonet.engines.vllm_defaults import default_memory_percent


def test_the_share_of_the_device_was_widened_once() -> None:
    assert default_memory_percent((0, 19, 1)) == 90
    assert default_memory_percent((0, 20, 0)) == 92
