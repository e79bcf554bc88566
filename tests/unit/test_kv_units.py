from __future__ import annotations

import pytest

from ballonet.kv.units import (
    GIB,
    MIB,
    Interval,
    ceil_div,
    counted,
    format_bytes,
    gib,
    largest,
    least,
)


def test_an_interval_upside_down_is_refused() -> None:
    with pytest.raises(ValueError, match=r"5\.\.4"):
        Interval(5, 4)


def test_intervals_add_and_subtract_to_their_extremes() -> None:
    assert Interval(10, 20) + Interval(1, 2) == Interval(11, 22)
    assert Interval(10, 20) - Interval(1, 2) == Interval(8, 19)


@pytest.mark.parametrize("turn", range(-1, 12))
def test_a_search_finds_where_a_predicate_turns(turn: int) -> None:
    assert largest(0, 9, lambda n: n <= turn) == (None if turn < 0 else min(turn, 9))
    assert least(0, 9, lambda n: n >= turn) == (None if turn > 9 else max(turn, 0))
    assert largest(1, 0, lambda _: True) is least(1, 0, lambda _: True) is None


def test_exact_means_one_number() -> None:
    assert Interval.point(7).exact
    assert not Interval(7, 8).exact


@pytest.mark.parametrize(("dividend", "divisor", "result"), [(0, 4, 0), (1, 4, 1), (8, 4, 2)])
def test_ceil_div(dividend: int, divisor: int, result: int) -> None:
    assert ceil_div(dividend, divisor) == result


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 MiB"),
        (8 * MIB, "8 MiB"),
        (MIB + MIB // 2, "1.50 MiB"),
        (GIB, "1.00 GiB"),
        (61 * GIB + GIB // 4, "61.25 GiB"),
        (GIB - 1, "1,024 MiB"),
        (-3 * GIB, "-3.00 GiB"),
        (79 * GIB + 1024**3 * 11 // 100, "79.11 GiB"),
    ],
)
def test_bytes_are_written_for_people(value: int, text: str) -> None:
    assert format_bytes(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0 blocks"), (1, "1 block"), (1_234_567, "1,234,567 blocks")]
)
def test_numbers_are_written_with_separators_and_their_noun(value: int, text: str) -> None:
    assert counted(value, "block") == text


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (GIB, GIB, "1.00"),
        (-GIB, 0, "0.00"),
        (-GIB, 1536 * GIB, "0.00 to 1,536.00"),
        (9856 * MIB, 9984 * MIB, "9.63 to 9.75"),
    ],
)
def test_columns_of_gib_have_no_unit_and_nothing_below_nothing(
    low: int, high: int, text: str
) -> None:
    assert gib(Interval(low, high)) == text
