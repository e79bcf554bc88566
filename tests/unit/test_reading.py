"""What the series of an engine say: real pages, several engines, values that cannot be."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from fractions import Fraction

import pytest

from ballonet.api.conditions import Reason
from ballonet.diagnosis.observation import Engine, Observation, Offload
from ballonet.engines import sglang
from ballonet.planning.measured import EngineReport
from ballonet.telemetry.reading import InvalidPageError, Reading, read_engine
from ballonet.telemetry.scrape import read_page
from tests.pages import REAL_PAGE

NOW = datetime(2026, 11, 30, tzinfo=UTC)


def read(page: str) -> Reading:
    return read_page(page, NOW)


def info(**labels: str) -> str:
    text = ",".join(f'{name}="{value}"' for name, value in labels.items())
    return f"vllm:cache_config_info{{{text}}} 1.0\n"


def one(name: str, value: object, engine: object = 0, **labels: object) -> str:
    more = "".join(f',{label}="{text}"' for label, text in labels.items())
    return f'vllm:{name}{{engine="{engine}",model_name="m"{more}}} {value}\n'


RUNNING = one("num_requests_running", 1)


def test_a_real_page_is_read() -> None:
    seen = read(REAL_PAGE)
    assert seen.report == EngineReport(
        blocks=128, block_tokens=32, max_concurrency=Fraction(4), kv_cache_bytes=None
    )
    assert seen.observation == Observation(
        at=NOW,
        engines=1,
        started_at=datetime(2026, 11, 29, 12, 18, 8, 80_000, tzinfo=UTC),
        running=0,
        waiting=0,
        waiting_capacity=0,
        awake=True,
        blocks=128,
        used_blocks=0,
        usage_per_mille=0,
        preemptions=2,
        prompt_tokens=5260,
        generation_tokens=3744,
        iterations=910,
        rejections=0,
        http_4xx=0,
        http_5xx=0,
        finished={"stop": 0, "length": 13, "abort": 0, "error": 0, "repetition": 0},
        finished_prompt_tokens=5260,
        finished_generation_tokens=3744,
        finished_requests=13,
        computed_prompt_tokens=2060,
        prefix_queried_tokens=5260,
        prefix_hit_tokens=3200,
        external_queried_tokens=0,
        external_hit_tokens=0,
        host_hit_tokens=0,
    )


def test_memory_is_reported_unless_an_override_of_the_blocks_makes_it_meaningless() -> None:
    page = info(num_gpu_blocks="128", block_size="32", kv_cache_memory_bytes="8388608")
    assert read(page).report == EngineReport(128, 32, None, 8388608)
    page = info(
        num_gpu_blocks="128",
        block_size="32",
        kv_cache_memory_bytes="8388608",
        num_gpu_blocks_override="128",
    )
    assert read(page).report == EngineReport(128, 32, None, None)


def test_the_blocks_of_several_engines_behind_one_server_are_divided() -> None:
    page = info(engine="0", num_gpu_blocks="300", block_size="16") + info(
        engine="1", num_gpu_blocks="300", block_size="16"
    )
    page += one("num_requests_running", 3, 0) + one("num_requests_running", 4, 1)
    page += one("kv_cache_usage_perc", 30 / 149, 0) + one("kv_cache_usage_perc", 0.75, 1)
    page += one("engine_sleep_state", 1, 0, sleep_state="awake")
    page += one("engine_sleep_state", 0, 1, sleep_state="awake")
    seen = read(page)
    assert seen.report is not None
    assert seen.report.blocks == 150
    assert (seen.observation.engines, seen.observation.blocks) == (2, 150)
    assert seen.observation.running == 7
    assert seen.observation.usage_per_mille == 750
    assert seen.observation.used_blocks == 30 + 112
    # The blocks of one that sleeps are of no use to anybody.
    assert seen.observation.awake is False
    assert seen.observation.by_engine == {
        "0": Engine(running=3, usage_per_mille=201, awake=True),
        "1": Engine(running=4, usage_per_mille=750, awake=False),
    }
    assert seen.observation.of("1") == Observation(
        at=NOW, engines=1, blocks=150, running=4, usage_per_mille=750, awake=False
    )


def test_a_block_that_spans_more_tokens_than_the_flag_says_counts_by_its_span() -> None:
    page = info(num_gpu_blocks="9", block_size="16", effective_attention_block_size="528")
    report = read(page).report
    assert report is not None
    assert report.block_tokens == 528


def test_what_is_absent_is_unknown_and_not_zero() -> None:
    seen = read(info(num_gpu_blocks="None", block_size="16"))
    assert seen.report is None
    assert seen.observation == Observation(at=NOW, engines=1)
    assert read(RUNNING) == Reading(None, Observation(at=NOW, engines=1, running=1))


def test_waiting_is_told_apart_by_what_it_is_for() -> None:
    page = RUNNING + one("num_requests_waiting", 9)
    page += one("num_requests_waiting_by_reason", 7, reason="capacity")
    page += one("num_requests_waiting_by_reason", 2, reason="deferred")
    page += one("num_requests_kv_fetch_by_stage", 1, stage="waiting_to_start")
    page += one("num_requests_kv_fetch_by_stage", 1, stage="in_progress")
    page += one("num_requests_kv_fetch_by_stage", 5, stage="completed_waiting")
    seen = read(page).observation
    assert (seen.waiting, seen.waiting_capacity) == (9, 7)
    assert seen.fetching == 2


def test_only_answers_of_endpoints_that_generate_are_counted() -> None:
    page = RUNNING
    for handler, status, count in (
        ("/v1/completions", "2xx", 50),
        ("/v1/completions", "5xx", 2),
        ("/v1/chat/completions", "5xx", 3),
        ("/v1/models", "4xx", 40),
        ("none", "4xx", 30),
    ):
        page += (
            f'http_requests_total{{handler="{handler}",method="POST",status="{status}"}} {count}\n'
        )
    seen = read(page).observation
    assert (seen.http_4xx, seen.http_5xx) == (0, 5)


def test_what_offloading_moved_is_read_under_its_older_name_too() -> None:
    older = one("kv_offload_total_bytes_total", 10, transfer_type="GPU_to_CPU")
    older += one("kv_offload_total_bytes_total", 4, transfer_type="CPU_to_GPU")
    assert read(RUNNING + older).observation.offload == Offload(stored_bytes=10, loaded_bytes=4)
    # From 0.24 the same bytes stand there twice.
    newer = one("kv_offload_store_bytes_total", 10) + one("kv_offload_load_bytes_total", 4)
    newer += one("kv_offload_allocation_failure_total", 1)
    assert read(RUNNING + older + newer).observation.offload == Offload(
        stored_bytes=10, loaded_bytes=4, allocation_failures=1
    )


def test_a_page_of_sglang_is_read_with_its_own_table() -> None:
    rank = {"tp_rank": "0", "dp_rank": "0"}
    other = {**rank, "dp_rank": "1"}
    seen = read_engine(
        {
            "sglang:num_running_reqs": [
                ({**rank, "priority": ""}, 3.0),
                ({**rank, "priority": "1"}, 2.0),
                (other, 1.0),
            ],
            "sglang:token_usage": [(rank, 0.25), (other, 0.5)],
            "sglang:prompt_tokens_histogram_sum": [(rank, 900.0)],
        },
        NOW,
        sglang.METRICS,
    )
    assert seen.observation == Observation(
        at=NOW,
        engines=2,
        by_engine={
            "0": Engine(running=3, usage_per_mille=250),
            "1": Engine(running=1, usage_per_mille=500),
        },
        running=4,
        usage_per_mille=500,
        finished_prompt_tokens=900,
    )


def test_two_engines_that_claim_to_be_the_same_are_not_added_up() -> None:
    page = one("num_requests_running", 3, job="a") + one("num_requests_running", 3, job="b")
    with pytest.raises(InvalidPageError, match="differ in job 'a' and 'b'") as caught:
        read(page)
    assert caught.value.reason is Reason.AMBIGUOUS_METRICS


@pytest.mark.parametrize(
    ("page", "words"),
    [
        (one("num_requests_running", "NaN"), "vllm:num_requests_running is not between 0 and"),
        (one("num_requests_running", -1), "vllm:num_requests_running is not between 0 and"),
        (one("num_requests_running", "1e300"), "vllm:num_requests_running is not between 0 and"),
        (
            RUNNING + one("num_requests_waiting", "+Inf"),
            "vllm:num_requests_waiting is not between 0 and",
        ),
        (
            RUNNING + one("num_preemptions_total", -2),
            "vllm:num_preemptions_total is not between 0 and",
        ),
        (RUNNING + one("kv_cache_usage_perc", 1.01), "not between 0 and 1"),
        (RUNNING + one("kv_cache_usage_perc", -0.1), "not between 0 and 1"),
        (RUNNING + one("kv_cache_usage_perc", "NaN"), "not between 0 and 1"),
        (RUNNING + "process_start_time_seconds NaN\n", "process_start_time_seconds is no time"),
        (RUNNING + "process_start_time_seconds 1e18\n", "process_start_time_seconds is no time"),
        (info(num_gpu_blocks="0"), "num_gpu_blocks of the cache configuration is no number"),
        (info(num_gpu_blocks="-5"), "num_gpu_blocks"),
        (info(num_gpu_blocks="12.5"), "num_gpu_blocks"),
        (info(num_gpu_blocks="many"), "num_gpu_blocks"),
        (info(num_gpu_blocks="1" + "0" * 15), "num_gpu_blocks"),
        (info(num_gpu_blocks="9" * 5000), "num_gpu_blocks"),
        (info(num_gpu_blocks=str(2**31)), "num_gpu_blocks"),
        (info(num_gpu_blocks="9", block_size=str(2**31)), "block_size"),
        (info(num_gpu_blocks="9", kv_cache_max_concurrency="0.000000004"), "max_concurrency"),
        (info(num_gpu_blocks="9", kv_cache_max_concurrency="1e999999999"), "max_concurrency"),
        (info(num_gpu_blocks="9", kv_cache_max_concurrency="nan"), "kv_cache_max_concurrency"),
        (info(num_gpu_blocks="9", kv_cache_max_concurrency="-1"), "kv_cache_max_concurrency"),
        ("vllm:num_requests_running{engine= 3\n", "does not parse"),
        # Numbers of another time, told as those of now.
        ("vllm:num_requests_running 3 1000000000000\n", "times of their own"),
        ("vllm:num_requests_running 3 9000000000000\n", "times of their own"),
        (RUNNING + one("num_requests_waiting", 3) * 2, "two values for the same labels"),
        (RUNNING + one("num_preemptions_total", 3) * 2, "two values for the same labels"),
        (info(num_gpu_blocks="9") + one("kv_cache_usage_perc", 0.5) * 2, "two values for the same"),
        ("".join(one("num_requests_running", 1, engine=n) for n in range(65)), "64 engines"),
        ("", "is it the engine's port?"),
        ("<html>welcome</html>", "is it the engine's port?"),
        ("process_start_time_seconds 3\n", "is it the engine's port?"),
    ],
)
def test_a_page_that_says_what_cannot_be_is_refused_by_name(page: str, words: str) -> None:
    with pytest.raises(InvalidPageError, match=re.escape(words)):
        read(page)


@pytest.mark.parametrize(
    "page",
    [
        # Each is kept for 20 minutes and shown.
        RUNNING + one("request_success_total", 1, finished_reason="x" * 65),
        RUNNING
        + "".join(one("request_success_total", 1, finished_reason=str(n)) for n in range(65)),
        'vllm:num_requests_running{engine="' + "9" * 65 + '"} 1\n',
        one("num_requests_running", 1, "\x1b[31m") + one("num_requests_running", 1, 1),
        RUNNING + one("request_success_total", 1, finished_reason="\x1b[31m"),
        # The parser would take seconds for it.
        RUNNING + one("num_requests_waiting", 1, **{f"a{n}": "" for n in range(2000)}),
        "".join(one("num_requests_waiting", 1, a="x" * 8000, engine=n) for n in range(140)),
        # Two engines of no block.
        info(num_gpu_blocks="1") + info(num_gpu_blocks="1", engine="1"),
    ],
)
def test_a_page_that_says_more_than_any_engine_is_refused(page: str) -> None:
    with pytest.raises(InvalidPageError):
        read(page)


def test_names_that_somebody_else_wrote_are_shown_short_and_as_text() -> None:
    for name in ('"\x1b[31m"', "a" * 4000):
        lines = [f'vllm:num_requests_running{{engine="0",{name}="{n}"}} 3' for n in range(9)]
        with pytest.raises(InvalidPageError) as caught:
            read("\n".join(lines) + "\n")
        assert len(str(caught.value)) < 200
        assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("once", "again"),
    [
        (one("num_requests_running", -1), one("num_requests_running", -2)),
        (RUNNING + one("kv_cache_usage_perc", 1.5), RUNNING + one("kv_cache_usage_perc", 1.6)),
        ("vllm:num_requests_running{engine= 3\n", "vllm:num_requests_running{engine= 4\n"),
        ("vllm:num_requests_running 3x\n", "vllm:num_requests_running 4x\n"),
        (RUNNING + "process_start_time_seconds -1\n", RUNNING + "process_start_time_seconds -2\n"),
    ],
)
def test_the_same_lie_is_told_in_the_same_words(once: str, again: str) -> None:
    """A condition holds them: with live numbers in it, status would be written at each look."""
    with pytest.raises(InvalidPageError) as first:
        read(once)
    with pytest.raises(InvalidPageError) as second:
        read(again)
    assert str(first.value) == str(second.value)


def test_a_name_that_only_begins_alike_is_another_series() -> None:
    page = RUNNING + 'vllm:num_requests_waiting_by_reason{reason="capacity"} 7\n'
    seen = read(page).observation
    assert replace(seen, waiting_capacity=None) == Observation(at=NOW, engines=1, running=1)
