"""What the page says about a given engine, without an engine."""

from __future__ import annotations

import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ballonet_probe.lifecycle import MAX_ROLES, Histogram, Lifecycle
from ballonet_probe.page import live_page, off_page
from ballonet_probe.settings import RoleLimits, Settings, read_settings
from ballonet_probe.snapshot import Sequence, Snapshot

COMMON = {"model": "tiny", "engine": 0}


def a_sequence(name: str, blocks: int, tokens: int, role: str = "worker") -> Sequence:
    return Sequence(name, "run1", role, "decode", blocks, blocks + 2, tokens)


def page(*sequences: Sequence, settings: Settings | None = None, shared: int = 2) -> str:
    settings = settings or Settings()
    used = shared + sum(one.exclusive_blocks for one in sequences)
    snapshot = Snapshot(127, 127 - used, shared, sequences)
    lifecycle = Lifecycle(settings)
    return live_page(COMMON, settings, snapshot, lifecycle, scan_seconds=0.0001)


def samples(text: str, name: str) -> list[tuple[dict[str, str], float]]:
    return [
        (sample.labels, sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name
    ]


def test_blocks_in_use_add_up_to_all_used_blocks() -> None:
    text = page(*(a_sequence(f"r{n}", n, 100 * n) for n in range(1, 9)), settings=Settings(top=3))
    in_use = samples(text, "ballonet_kv_blocks_in_use")
    assert len(in_use) == 3 + 2
    total = samples(text, "ballonet_kv_blocks_total")[0][1]
    free = samples(text, "ballonet_kv_blocks_free")[0][1]
    assert sum(value for _, value in in_use) == total - free == 2 + 36
    by_id = {labels["sequence_id"]: value for labels, value in in_use}
    assert by_id["_shared"] == 2
    assert by_id["_other"] == 1 + 2 + 3 + 4 + 5


def test_tokens_by_phase_count_every_sequence_and_not_only_those_shown() -> None:
    sequences = [a_sequence(f"r{n}", n, 100 * n) for n in range(1, 5)]
    waiting = Sequence("w", "", "", "waiting", 0, 0, 7)
    text = page(*sequences, waiting, settings=Settings(top=1))

    def by_phase(name: str) -> dict[str, float]:
        return {labels["phase"]: value for labels, value in samples(text, name)}

    nothing = {"prefill": 0, "preempted": 0}
    assert by_phase("ballonet_kv_sequences") == {**nothing, "decode": 4, "waiting": 1}
    assert by_phase("ballonet_kv_sequence_tokens") == {**nothing, "decode": 1000, "waiting": 7}
    assert by_phase("ballonet_kv_sequence_longest_tokens") == {
        **nothing,
        "decode": 400,
        "waiting": 7,
    }


def test_ids_are_hashed_unless_asked_for() -> None:
    assert "secret-customer" not in page(a_sequence("secret-customer", 3, 100))
    plain = Settings(plain_ids=True)
    assert 'sequence_id="secret-customer"' in page(
        a_sequence("secret-customer", 3, 100), settings=plain
    )


def test_long_ids_that_begin_alike_have_series_of_their_own() -> None:
    long = "x" * 3000
    text = page(
        a_sequence(f"{long}1", 3, 100),
        a_sequence(f"{long}2", 3, 100),
        settings=Settings(plain_ids=True),
    )
    ids = [labels["sequence_id"] for labels, _ in samples(text, "ballonet_seq_tokens")]
    assert len(set(ids)) == 2
    assert all(one.startswith("x" * 128) and len(one) < 150 for one in ids)


def test_text_of_clients_cannot_break_the_page() -> None:
    evil = 'x"} 1\nfake_metric{a="\\'
    sequence = Sequence(evil, evil, evil, "decode", 3, 3, 100)
    text = page(sequence, settings=Settings(plain_ids=True))
    assert not samples(text, "fake_metric")
    assert samples(text, "ballonet_kv_blocks_in_use")[0][0]["run"] == evil


def test_half_of_a_character_in_a_role_does_not_break_the_page() -> None:
    text = page(a_sequence("r", 3, 100, role="\ud800")).encode().decode()
    assert samples(text, "ballonet_kv_blocks_in_use")[0][0]["role"] == "?"


def test_roles_beyond_the_cap_are_one() -> None:
    many = [a_sequence(f"r{n}", 1, 100, role=f"role{n}") for n in range(3 * MAX_ROLES)]
    counts = samples(page(*many, settings=Settings(top=0)), "ballonet_seq_live_tokens_count")
    by_role = {labels["role"]: value for labels, value in counts}
    assert len(by_role) == MAX_ROLES + 1
    assert by_role["_other"] == 2 * MAX_ROLES
    assert sum(by_role.values()) == 3 * MAX_ROLES


def test_live_sequences_past_what_their_role_promised() -> None:
    settings = Settings(roles={"worker": RoleLimits(ceiling_tokens=400, compact_at_tokens=300)})
    text = page(
        *(a_sequence(str(tokens), 1, tokens) for tokens in (300, 301, 400, 401)),
        a_sequence("p", 1, 900, role="planner"),
        settings=settings,
    )
    assert samples(text, "ballonet_seq_past_ceiling") == [({**_common(), "role": "worker"}, 1)]
    assert samples(text, "ballonet_seq_past_compaction") == [({**_common(), "role": "worker"}, 3)]


def test_a_probe_that_is_off_claims_no_number() -> None:
    text = off_page(COMMON, 'AttributeError: no "block_pool"')
    assert re.findall(r"^(\w+)", text, re.M) == ["ballonet_probe_up"]
    labels, value = samples(text, "ballonet_probe_up")[0]
    assert value == 0
    assert "block_pool" in labels["reason"]


@pytest.mark.parametrize(("tokens", "bucket"), [(1, "128"), (128, "128"), (129, "256")])
def test_a_bucket_holds_its_bound(tokens: int, bucket: str) -> None:
    histogram = Histogram([tokens])
    text = page(a_sequence("r", 1, tokens))
    first = next(
        labels["le"]
        for labels, value in samples(text, "ballonet_seq_live_tokens_bucket")
        if value == 1
    )
    assert float(first) == float(bucket)
    assert sum(histogram.counts) == 1


def test_more_tokens_than_the_last_bucket_are_counted() -> None:
    counts = samples(page(a_sequence("r", 1, 10**9)), "ballonet_seq_live_tokens_bucket")
    assert [value for _, value in counts[-2:]] == [0, 1]
    assert counts[-1][0]["le"] == "+Inf"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("BALLONET_PROBE_PORT", "0"),
        ("BALLONET_PROBE_PORT", "70000"),
        ("BALLONET_PROBE_PORT", "x"),
        ("BALLONET_PROBE_PORT", "9" * 5000),
        ("BALLONET_PROBE_TOP", "-1"),
        ("BALLONET_PROBE_ROLES", "["),
        ("BALLONET_PROBE_ROLES", "[1]"),
        ("BALLONET_PROBE_ROLES", '{"worker": 3}'),
    ],
)
def test_a_bad_setting_falls_back(name: str, text: str) -> None:
    assert read_settings({name: text}) == Settings()


def test_settings_of_a_pod() -> None:
    settings = read_settings(
        {
            "BALLONET_PROBE": "off",
            "BALLONET_PROBE_HOST": "127.0.0.1",
            "BALLONET_PROBE_PORT": "9200",
            "BALLONET_PROBE_TOP": "8",
            "BALLONET_PROBE_IDS": "plain",
            "BALLONET_PROBE_ROLES": '{"worker": {"ceilingTokens": 400, "compactAtTokens": 300}}',
        }
    )
    assert settings == Settings(
        enabled=False,
        host="127.0.0.1",
        port=9200,
        top=8,
        plain_ids=True,
        roles={"worker": RoleLimits(400, 300)},
    )


def _common() -> dict[str, str]:
    return {"model": "tiny", "engine": "0"}
