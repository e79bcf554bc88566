"""The probe in schedulers that it does not understand: it says so, and they work on."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

from ballonet_probe.scheduler import Probe, probed
from ballonet_probe.settings import Settings


class NoBlocks:
    """Keeps its blocks elsewhere."""

    vllm_config = SimpleNamespace(
        parallel_config=SimpleNamespace(data_parallel_rank=0),
        model_config=SimpleNamespace(served_model_name="m"),
    )

    def schedule(self) -> str:
        return "as ever"


class NoRunning(NoBlocks):
    """Has blocks, and another name for the requests that run."""

    requests: dict[str, object] = {}  # noqa: RUF012 - as it is asked for
    kv_cache_manager = SimpleNamespace(
        block_pool=SimpleNamespace(num_gpu_blocks=8, get_num_free_blocks=lambda: 7),
        coordinator=SimpleNamespace(single_type_managers=()),
    )


@pytest.mark.parametrize("base", [NoBlocks, NoRunning])
def test_an_engine_that_cannot_be_read_says_so_and_works(base: type[NoBlocks]) -> None:
    served: list[Probe] = []
    scheduler = probed(base, Settings(), served.append)()
    assert [scheduler.schedule(), scheduler.schedule()] == ["as ever", "as ever"]
    (probe,) = served
    assert re.search(r'ballonet_probe_up\{.*reason="AttributeError: .+"\} 0', probe.page())
