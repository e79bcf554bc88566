"""The record of what was applied survives its trip through an annotation."""

from __future__ import annotations

import base64
import gzip
import json
from dataclasses import replace
from typing import Any

import pytest

from ballonet.cluster.port import Json
from ballonet.reconcile.record import AppliedRecord, decode
from e2e.harness.pools import a_pool

RECORD = AppliedRecord(
    uid="u",
    generation=1,
    spec=a_pool().spec,
    config_text="{}",
    template={"spec": {"containers": [{"name": "engine"}]}},
    strategy={"strategy": {"type": "Recreate"}},
    engine_args=(
        *("--max-model-len", "1024"),
        *("--max-num-seqs", "6"),
        *("--max-num-batched-tokens", "2048"),
    ),
    budget={"slots": 6, "ceilingTokens": 1024},
)


def test_a_record_comes_back_as_it_was_and_is_written_the_same_each_time() -> None:
    assert decode(RECORD.encode()) == RECORD
    assert decode(RECORD.encode()).encode() == RECORD.encode()  # type: ignore[union-attr]


def test_a_record_that_says_the_same_is_not_written_anew() -> None:
    # Of another version of the operator: members that are not known here, another compression.
    written = json.loads(gzip.decompress(base64.b64decode(RECORD.encode())))
    text = gzip.compress(json.dumps({**written, "fieldOfANewerOperator": 1}).encode(), 1, mtime=0)
    stored = decode(base64.b64encode(text).decode())
    assert stored == RECORD
    same = stored.served_alone().brought_up_to(pool(1))
    assert same.encode() == base64.b64encode(text).decode()
    changed = stored.brought_up_to(pool(2, replicas=7))
    assert changed.encode() == replace(RECORD, generation=2).encode()


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


@pytest.mark.parametrize(
    "change",
    [
        {"engine_args": [*RECORD.engine_args, "--kv-cache-memory-bytes"]},
        {"template": {"spec": {"containers": [{"name": "engine", "env": [{}]}]}}},
        {"template": {"spec": {"containers": [{"name": "engine", "volumeMounts": [{}]}]}}},
    ],
)
def test_a_record_with_a_part_that_says_nothing_is_no_record(change: Json) -> None:
    written = json.loads(gzip.decompress(base64.b64decode(RECORD.encode())))
    text = gzip.compress(json.dumps({**written, **change}).encode())
    assert decode(base64.b64encode(text).decode()) is None


def test_largest_inputs_stay_far_below_what_annotations_may_take() -> None:
    filler = "".join(chr(33 + (i * 7919) % 90) for i in range(65_536))
    pool = a_pool().pod_template({"metadata": {"annotations": {"x": filler[:32_768]}}})
    record = replace(RECORD, spec=pool.spec, config_text=filler)
    assert len(record.encode()) < 262_144 // 2


def pool(generation: int, **changes: Any) -> Json:
    spec = {**a_pool().spec, **changes}
    return {"metadata": {"uid": "u", "generation": generation}, "spec": spec}


def test_replicas_and_spelled_out_defaults_are_no_change() -> None:
    assert RECORD.speaks_of(pool(2, replicas=7))
    assert RECORD.speaks_of(pool(2, whenUnfit="Refuse", reservedSlots=0))
    assert RECORD.speaks_of(pool(2, fieldOfANewerCrd="default"))
    assert not RECORD.speaks_of(pool(2, reservedSlots=1))


def test_a_default_of_a_newer_crd_is_no_change_either() -> None:
    # Read with another value although nobody wrote to the pool.
    defaulted = pool(1, reservedSlots=1)
    assert RECORD.speaks_of(defaulted)
    # Later the user scales: the default that was seen meanwhile is still none of the user's.
    scaled = pool(2, reservedSlots=1, replicas=3)
    assert RECORD.brought_up_to(defaulted).speaks_of(scaled)
    assert not RECORD.brought_up_to(defaulted).speaks_of(pool(2, reservedSlots=2))
