"""Bars and tables: what is drawn has the sizes that it stands for."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ballonet.cli.canvas import Bar, Canvas, Segment, Style, Table, markdown_table


def drawn(line: str) -> str:
    """Return what stands between the brackets of a bar."""
    match = re.search(r"\[(.*)\]", line)
    assert match is not None
    return match[1]


def bar(*sizes: int, free: int = 0) -> Bar:
    segments = [Segment(size, f"part {n}") for n, size in enumerate(sizes)]
    return Bar((*segments, Segment(free, "free", free=True)))


def test_cells_are_shared_by_size() -> None:
    line, *legend = Canvas(columns=24).bars([bar(50, 30, free=20)])
    assert drawn(line) == "#" * 10 + "=" * 6 + "." * 4
    assert " ".join(legend).split() == ["#", "part", "0", "=", "part", "1", ".", "free"]


def test_what_is_free_and_what_may_not_be_there_have_marks_of_their_own() -> None:
    bar = Bar((Segment(2, "a"), Segment(1, "b", free=True), Segment(1, "c", perhaps=True)))
    line, *legend = Canvas(columns=14).bars([bar])
    assert len(set(drawn(line))) == 3
    assert " ".join(legend).split() == ["#", "a", ".", "b", "?", "c"]


@given(st.lists(st.integers(0, 10**15), min_size=1, max_size=8), st.integers(20, 200))
def test_a_bar_is_as_long_as_it_may_be_and_shows_all_that_there_is(
    sizes: list[int], columns: int
) -> None:
    line = Canvas(columns).bars([bar(*sizes)])[0]
    cells = drawn(line)
    if not any(sizes):
        assert not cells.strip()
        return
    assert len(cells) == len(cells.rstrip())
    assert len(line) <= columns
    assert len(set(cells)) == sum(size > 0 for size in sizes)


def test_bars_below_each_other_have_one_scale_and_different_characters() -> None:
    need, have, *_ = Canvas(columns=52).bars(
        [Bar((Segment(40, "n"),), "need", "40"), Bar((Segment(20, "h"),), "have", "20")]
    )
    assert drawn(need).count("#") == 2 * drawn(have).count("=")
    assert need.endswith("] 40") and have.startswith("have [")


def test_without_colours_everything_is_ascii() -> None:
    lines = Canvas().bars([bar(3, 2, free=1)]) + Canvas().table(Table(("a",), (("ü",),)))
    assert "\x1b" not in "".join(lines)
    assert "".join(lines[:2]).isascii()


def test_with_colours_each_segment_has_its_own() -> None:
    line = Canvas(colour=True).bars([bar(3, 2, free=1)])[0]
    assert len(set(re.findall(r"\x1b\[(\d+)m█", line))) == 2
    assert "░" in line


def test_the_legend_stays_within_the_columns() -> None:
    lines = Canvas(columns=40).bars([bar(*range(1, 11))])
    assert all(len(line) <= 40 for line in lines)
    assert all(any(f"part {n}" in line for line in lines) for n in range(10))


def test_words_are_painted_only_where_there_are_colours() -> None:
    assert Canvas().paint("fits", Style.GOOD) == "fits"
    assert Canvas(colour=True).paint("fits", Style.GOOD) == "\x1b[1;32mfits\x1b[0m"


TABLE = Table(("name", "size"), (("a|b", "5"), ("long name", "1,000")), frozenset({"size"}))


def test_columns_are_aligned_numbers_to_the_right() -> None:
    assert Canvas().table(TABLE) == ["name        size", "a|b            5", "long name  1,000"]


def test_a_table_of_markdown_is_not_broken_by_its_cells() -> None:
    assert markdown_table(TABLE)[:3] == ["| name | size |", "| --- | ---: |", "| a\\|b | 5 |"]


@pytest.mark.parametrize("text", ["a\nb", "\x1b[2J", "\u202e"])
def test_cells_are_never_obeyed_by_a_terminal(text: str) -> None:
    table = Table(("a",), ((text,),))
    for line in (*Canvas().table(table), *markdown_table(table)):
        assert line.isprintable()
