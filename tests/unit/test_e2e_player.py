"""A played trace shows the operator what the engine of the trace showed."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from ballonet.diagnosis.observation import Engine, Observation, Offload
from ballonet.telemetry.scrape import read_page
from e2e.harness.player import page

AT = datetime(2026, 1, 1, tzinfo=UTC)
ABOUT = {"ceiling": 1024, "block_tokens": 32}
LOADED = Observation(
    at=AT,
    engines=2,
    by_engine={
        "0": Engine(
            running=4,
            waiting=3,
            waiting_capacity=2,
            awake=True,
            usage_per_mille=598,
            preemptions=7,
            generation_tokens=901,
            iterations=80,
        ),
        "1": Engine(
            running=1,
            waiting=0,
            waiting_capacity=0,
            awake=True,
            usage_per_mille=591,
            preemptions=0,
            generation_tokens=100,
            iterations=10,
        ),
    },
    started_at=AT,
    running=5,
    waiting=3,
    waiting_capacity=2,
    awake=True,
    blocks=128,
    used_blocks=151,
    usage_per_mille=598,
    preemptions=7,
    generation_tokens=1001,
    iterations=90,
    rejections=4,
    http_4xx=1,
    http_5xx=4,
    finished={"stop": 3, "length": 8},
    finished_requests=11,
    prefix_queried_tokens=640,
    prefix_hit_tokens=0,
    offload=Offload(stored_bytes=4096, loaded_bytes=0),
)


@pytest.mark.parametrize("engines", [1, 2, 3])
def test_a_played_observation_is_read_again_as_it_was(engines: int) -> None:
    played = Observation(at=AT, engines=engines, running=1, blocks=64, used_blocks=17)
    read = read_page(page(played, ABOUT), AT).observation
    assert (read.engines, read.running, read.blocks, read.used_blocks) == (engines, 1, 64, 17)


def test_all_figures_come_through_and_absent_ones_stay_absent() -> None:
    assert read_page(page(LOADED, ABOUT), AT).observation == LOADED


def test_an_older_engine_does_not_tell_what_it_did_not_have() -> None:
    read = read_page(page(LOADED, ABOUT, "0.18.0"), AT).observation
    assert read.waiting == 3
    assert (read.waiting_capacity, read.rejections) == (None, None)
