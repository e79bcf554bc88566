"""The table of series against those that each version of vLLM declares."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ballonet.engines.metrics import Figure
from ballonet.engines.vllm_metrics import METRICS
from ballonet.engines.vllm_versions import parse_version

# From vLLM's own sources: the names of its metrics, and from which version to which each stands
# there. A counter is declared without _total, from 0.10.2 on.
DECLARED = json.loads((Path(__file__).parent / "data" / "vllm_metrics.json").read_text())
OWN = [figure for _, figure in METRICS.figures() if figure.name.startswith("vllm:")]


def is_declared(name: str, version: str) -> bool:
    return any(
        parse_version(first) <= parse_version(version) <= parse_version(last)
        for declared in {name, re.sub(r"_(total|sum|count)$", "", name)}
        for first, last in DECLARED["present"].get(declared, [])
    )


@pytest.mark.parametrize("figure", OWN, ids=lambda figure: figure.name)
def test_a_series_is_there_from_the_version_that_the_table_says(figure: Figure) -> None:
    assert {v: is_declared(figure.name, v) for v in DECLARED["versions"]} == {
        v: parse_version(v) >= parse_version(figure.since) for v in DECLARED["versions"]
    }
