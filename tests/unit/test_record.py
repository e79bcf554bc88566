"""The record of what was applied survives its trip through an annotation."""

from __future__ import annotations

import base64
import gzip
from dataclasses import replace

import pytest

from ballonet.reconcile.record import AppliedRecord, decode
from e2e.harness.pools import a_pool

RECORD = AppliedRecord(
    spec=a_pool().spec,
    config_text="{}",
    template={"spec": {"containers": []}},
    strategy={"strategy": {"type": "Recreate"}},
    engine_args=("--max-num-seqs=6",),
    budget={"slots": 6},
)


def test_a_record_comes_back_as_it_was_and_is_written_the_same_each_time() -> None:
    assert decode(RECORD.encode()) == RECORD
    assert decode(RECORD.encode()).encode() == RECORD.encode()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "not base64!",
        base64.b64encode(b"not gzip").decode(),
        base64.b64encode(gzip.compress(b"not json")).decode(),
        base64.b64encode(gzip.compress(b"{}")).decode(),
        base64.b64encode(gzip.compress(b"[]")).decode(),
        base64.b64encode(gzip.compress(b'{"engine_args": 1}')).decode(),
        # A bomb: 64 MiB of zeros in 64 KiB.
        base64.b64encode(gzip.compress(bytes(64 * 1024 * 1024))).decode(),
    ],
)
def test_a_record_that_was_tampered_with_is_no_record(text: str | None) -> None:
    assert decode(text) is None


def test_largest_inputs_stay_far_below_what_annotations_may_take() -> None:
    filler = "".join(chr(33 + (i * 7919) % 90) for i in range(65_536))
    pool = a_pool().pod_template({"metadata": {"annotations": {"x": filler[:32_768]}}})
    record = replace(RECORD, spec=pool.spec, config_text=filler)
    assert len(record.encode()) < 262_144 // 2


def test_replicas_and_spelled_out_defaults_are_no_change() -> None:
    spec = a_pool().spec
    assert RECORD.same_spec({**spec, "replicas": 7})
    assert RECORD.same_spec({**spec, "whenUnfit": "Refuse", "reservedSlots": 0})
    assert RECORD.same_spec({**spec, "fieldOfANewerCrd": "default"})
    assert not RECORD.same_spec({**spec, "reservedSlots": 1})
