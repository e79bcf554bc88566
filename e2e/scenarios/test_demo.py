"""The demo's story on the real vLLM."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e.conftest import make_namespace
from e2e.demo.progress import Progress
from e2e.demo.story import Outcome, Refused, Serving, Story
from e2e.harness.operators import PodOperator
from e2e.harness.site import Site

# Four starts of an engine of half a minute each, three fan-outs.
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def story(site: Site, installed: PodOperator) -> Iterator[Story]:
    for namespace in make_namespace(site.api, "demo"):
        story = Story(site, namespace, Progress(print))
        story.prepare()
        yield story
        story.clean_up()


@pytest.fixture(scope="module")
def refused(story: Story, installed: PodOperator, operator_image: None) -> Refused:
    if not installed.pods() or not installed.is_ready():
        installed.start()
    return story.refuse()


@pytest.fixture(scope="module")
def serving(story: Story, refused: Refused) -> Serving:
    return story.remedy(refused)


@pytest.fixture(scope="module")
def outcome(story: Story, refused: Refused, serving: Serving) -> Outcome:
    return story.compare(refused, serving)


def test_a_topology_that_does_not_fit_starts_no_pod_and_shows_the_arithmetic(
    refused: Refused,
) -> None:
    assert refused.pods == 0
    assert (refused.required_slots, refused.need_blocks) == (6, 192)
    assert (refused.budget_blocks, refused.available_slots) == (114, 3)
    for part in ("6 sequences x 32 blocks = 192", "budget 114", "3 fit", "608"):
        assert part in refused.message
    assert "LowerCeiling" in [remedy["name"] for remedy in refused.remedies]


def test_the_ceiling_remedy_from_status_starts_the_engine_with_the_computed_flags(
    serving: Serving,
) -> None:
    assert serving.ceiling_tokens == 608
    flags = " ".join(serving.args)
    for part in ("--max-model-len 608", "--block-size 32", "--kv-cache-memory-bytes 8388608"):
        assert part in flags
    # From 0.31 the slots have a flag of their own.
    assert "--max-num-active-seqs 6" in flags
    assert serving.slots == 6


def test_the_engines_own_figures_stand_beside_the_planned_ones(serving: Serving) -> None:
    for figures in (serving.predicted, serving.measured):
        assert figures["blockTokens"] == 32
        assert figures["blocksPerSequence"] == 19
        assert figures["maxConcurrent"] == 6
    assert serving.predicted["lowBlocks"] == serving.measured["blocks"] == 128
    assert serving.verified["status"] == "True"


def test_a_plain_engine_without_limits_preempts(outcome: Outcome) -> None:
    assert outcome.plain.load.finished == 6
    assert outcome.plain.load.preemptions >= 1
    peak = outcome.plain.load.peak_running
    assert peak is not None and peak > 3


def test_the_unfit_pool_under_warn_queues_and_does_not_preempt(outcome: Outcome) -> None:
    assert outcome.warned.slots == 3
    assert outcome.warned.load.finished == 6
    assert outcome.warned.load.preemptions == 0
    assert outcome.warned.load.peak_running == 3
    waiting = outcome.warned.load.peak_waiting
    assert waiting is not None and waiting >= 1


def test_the_remedied_pool_runs_all_six_at_once_without_preemption(outcome: Outcome) -> None:
    assert outcome.remedied.load.finished == 6
    assert outcome.remedied.load.preemptions == 0
    assert outcome.remedied.load.peak_running == 6
    blocks = outcome.remedied.load.peak_blocks
    assert blocks is not None and blocks <= 114
