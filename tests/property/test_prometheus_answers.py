"""Whatever a Prometheus answers, a round ends with a reading of each pod, or with a reason."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ballonet.engines.vllm_metrics import METRICS
from ballonet.telemetry.connections import PrometheusConnection
from ballonet.telemetry.reading import InvalidPageError, Reading
from ballonet.telemetry.rounds import Round

CONNECTION = PrometheusConnection(name="main", url="http://prometheus:9090")
NAMES = METRICS.series()

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
figures = st.sampled_from(["0", "1", "0.5", "NaN", "-1", "+Inf", "1e300", "x", ""])
times = st.sampled_from([0, 10**400, 1796040000, 1796040000.5, 1796040015, -1, 1e300, "x", None])
labels = st.fixed_dictionaries(
    {"namespace": st.just("ns"), "pod": st.sampled_from(["a", "b"])},
    optional={
        "engine": st.sampled_from(["0", "1", 1]),
        "job": st.sampled_from(["a", "b"]),
        "num_gpu_blocks": st.sampled_from(["9", "None", "-1", "x"]),
    },
)
series = st.fixed_dictionaries(
    {"metric": labels, "values": st.lists(st.tuples(times, figures), max_size=3)}
)
answers = st.lists(series, max_size=4) | anything


@given(st.lists(st.tuples(st.sampled_from(NAMES), answers), min_size=1, max_size=6))
def test_a_round_of_odd_answers(found: list[tuple[str, Any]]) -> None:
    made = Round(CONNECTION)
    for name, answer in found:
        try:
            made.take(name, json.loads(json.dumps(answer)))
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError):
            return
    for reading in made.readings().values():
        assert isinstance(reading, Reading | InvalidPageError)
