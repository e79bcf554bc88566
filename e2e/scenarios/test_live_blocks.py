"""Sequences that take more blocks than their roles promise: slots are left, blocks run out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

from e2e.conftest import make_namespace
from e2e.harness.live import THRESHOLDS, of_both_sources
from e2e.harness.operators import LocalOperator
from e2e.harness.pool_client import PoolClient
from e2e.harness.real_engine import a_vllm_pool, prepare_claims, remove_volumes
from e2e.harness.site import Site
from e2e.load.background import Background
from e2e.load.prompts import unrelated

pytestmark = pytest.mark.timeout(600)
START_SECONDS: Final = 240
# As large as a CPU takes them: a prompt is computed in no time, and the answer makes the blocks
# stay taken. Where prompts take most of the time, requests wait for steps and not for blocks.
BLOCK_TOKENS: Final = 128
SLOTS: Final = 12


@pytest.fixture(scope="module")
def promised(site: Site, live_operator: LocalOperator) -> Iterator[PoolClient]:
    """A pool of 15 usable blocks that lets twelve sequences in, because each promised one block."""
    roles = [{"name": "worker", "count": SLOTS, "maxTokens": BLOCK_TOKENS}]
    for namespace in make_namespace(site.api, "blocks"):
        prepare_claims(site.api, namespace)
        pools = PoolClient(site.api, namespace)
        pools.create(
            a_vllm_pool("pool")
            .ceiling(4 * BLOCK_TOKENS)
            .set("sequence.blockTokens", BLOCK_TOKENS)
            .set("budget", {"kvCacheMemoryPerRank": "4Mi"})
            .set("topologies", [{"name": "research", "concurrentRuns": 1, "roles": roles}])
            .set("diagnosis", THRESHOLDS)
        )
        pools.wait_ready(timeout_seconds=START_SECONDS)
        yield pools
        remove_volumes(site.api, namespace)


def load(pools: PoolClient, prompt_tokens: int, output_tokens: int) -> Background:
    """As many clients as slots."""
    (pod,) = pools.pods()
    url = f"http://{pod['status']['podIP']}:8000"
    return Background(url, unrelated(prompt_tokens), output_tokens, SLOTS)


def test_sequences_that_hold_two_blocks_from_the_start_wait_for_blocks(
    promised: PoolClient,
) -> None:
    # Seven of them fit, and none grows into a third block: nobody is preempted.
    prompt, output = BLOCK_TOKENS + 1, BLOCK_TOKENS - 8
    for verdict in of_both_sources(promised, lambda: load(promised, prompt, output), "BlockBound"):
        assert verdict.lever is not None
        found = dict(verdict.evidence)
        assert "of 15 blocks free, a sequence at the ceiling takes 4" in found["BlockBound"]
        assert "Preempting" not in found


def test_sequences_that_outgrow_the_blocks_are_preempted(promised: PoolClient) -> None:
    # All twelve are let in with a block each and need a second one soon. The counter moves when a
    # victim runs again: short answers make that soon, too.
    prompt, output = BLOCK_TOKENS - 8, 40
    for verdict in of_both_sources(promised, lambda: load(promised, prompt, output), "Preempting"):
        assert verdict.lever is not None
