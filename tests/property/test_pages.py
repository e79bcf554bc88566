"""Pages of metrics say what the format's own parser reads in them, however a line is written."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from ballonet.engines.vllm_metrics import METRICS
from ballonet.telemetry.pages import series_of
from ballonet.telemetry.reading import InvalidPageError, Page
from tests.pages import REAL_PAGE

WANTED = METRICS.series()
LINES = [line for line in REAL_PAGE.splitlines() if line.startswith(WANTED)]

# Edits: where, how many characters go, and what comes in their place.
edits = st.tuples(
    st.integers(0, 200),
    st.integers(0, 2),
    st.text('{}",= \\\t#_e+-.09aNI:é٠', max_size=2) | st.sampled_from([" 1", ',a="1"', "__name__"]),
)


def parsed(page: str) -> Page | None:
    """Read the whole page with the library; None where it does not parse, or is of another time."""
    page_series: dict[str, list[tuple[dict[str, str], float]]] = {}
    try:
        for family in text_string_to_metric_families(page):
            for one in family.samples:
                if one.timestamp is not None:
                    return None
                page_series.setdefault(one.name, []).append((one.labels, one.value))
    except ValueError:
        return None
    return page_series


def test_a_real_page_is_read_as_its_parser_reads_it() -> None:
    whole = parsed(REAL_PAGE)
    assert whole is not None
    read = series_of(REAL_PAGE, WANTED)
    assert read == {name: whole[name] for name in WANTED if name in whole}
    assert len(read) > 20


@given(st.sampled_from(LINES), st.lists(edits, max_size=3))
def test_an_odd_line_is_read_or_refused_as_its_parser_does(
    line: str, changes: list[tuple[int, int, str]]
) -> None:
    name = line.partition("{")[0].partition(" ")[0]
    for place, gone, come in changes:
        # The name stays: a line of no wanted series is not looked at.
        at = len(name) + 1 + place % max(1, len(line) - len(name))
        line = line[:at] + come + line[at + gone :]
    try:
        read: Page | None = series_of(line + "\n", [name])
    except InvalidPageError:
        read = None
    assert read == parsed(line + "\n")
