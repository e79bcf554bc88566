"""Where prompt tokens were found, and how full host memory is, as far as engines tell."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from ballonet.api.status import MAX_INTEGER
from ballonet.diagnosis.cache_use import CacheUse, Tier, cache_use
from ballonet.diagnosis.observation import Observation, Offload
from ballonet.reconcile.status import offload_status

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HOST_BYTES = 1000
# As vLLM 0.24 to 0.31 tells: what the connector's cache had, and not where that is.
OLDER = Observation(
    at=NOW,
    engines=1,
    prefix_queried_tokens=900,
    prefix_hit_tokens=300,
    external_hit_tokens=200,
    offload=Offload(stored_bytes=400, loaded_bytes=90),
)


def used(*pods: Observation, host: int | None = HOST_BYTES) -> CacheUse:
    use = cache_use(pods, host)
    assert use is not None
    return use


def test_from_032_engines_say_what_host_memory_had() -> None:
    newer = replace(OLDER, host_hit_tokens=150)
    assert used(newer).hit_tokens == {Tier.DEVICE: 300, Tier.HOST: 150, Tier.EXTERNAL: 50}
    # One counter may be a request ahead of the other.
    assert used(replace(OLDER, host_hit_tokens=201)).hit_tokens[Tier.EXTERNAL] == 0


def test_before_that_our_own_connector_has_no_other_place() -> None:
    assert used(OLDER).hit_tokens == {Tier.DEVICE: 300, Tier.HOST: 200}
    assert used(OLDER, host=None).hit_tokens == {Tier.DEVICE: 300, Tier.EXTERNAL: 200}


def test_host_memory_holds_what_was_stored_until_it_is_full() -> None:
    assert used(OLDER).host_bytes_in_use == 400
    full = replace(OLDER, offload=Offload(stored_bytes=5000))
    assert used(full).host_bytes_in_use == 1000
    assert used(replace(full, engines=3)).host_bytes_in_use == 3000


def test_what_no_engine_reports_is_absent_and_not_zero() -> None:
    bare = Observation(at=NOW, engines=1)
    assert used(bare) == CacheUse(NOW, 1, None, None, {})
    assert used(replace(OLDER, offload=None)).host_bytes_in_use is None
    assert used(OLDER, host=None).host_bytes_in_use is None
    assert used(replace(bare, prefix_hit_tokens=0)).hit_tokens == {Tier.DEVICE: 0}
    assert cache_use([], HOST_BYTES) is None


def test_pods_are_added_up_and_those_that_do_not_tell_are_left_out() -> None:
    later = replace(OLDER, at=NOW + timedelta(seconds=3), engines=2)
    assert used(OLDER, later, Observation(at=NOW, engines=1)) == CacheUse(
        NOW + timedelta(seconds=3), 4, 800, 1800, {Tier.DEVICE: 600, Tier.HOST: 400}
    )


def test_a_number_that_no_status_takes_is_left_out_of_it() -> None:
    status = offload_status(used(replace(OLDER, prefix_hit_tokens=MAX_INTEGER + 1)))
    assert status is not None
    assert (status.device_hit_tokens, status.host_hit_tokens) == (None, 200)
