"""Layouts of random layer mixes against the planner of every vLLM version (see data/README.md)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ballonet.kv.rules import layout_rules
from benchmarks.sizing_layout import answer_layout

LINES = [
    json.loads(line)
    for line in (Path(__file__).parent / "data" / "vllm_layouts.jsonl").read_text().splitlines()
]
# What a line leaves out.
USUAL: dict[str, Any] = {
    **{"dcp": 1, "disable_hybrid": False, "auto_fit": False, "override": None},
    **{"max_num_encoder_input_tokens": None, "worker_layer_cuts": None, "strided_pages": False},
    "supported_layouts": ["LBNHC"],
}


@pytest.mark.parametrize(
    "line", LINES, ids=[f"{line['engine_version']}-{i}" for i, line in enumerate(LINES)]
)
def test_layers_are_planned_as_by_this_version(line: dict[str, Any]) -> None:
    answer = answer_layout({**line, "settings": {**USUAL, **line["settings"]}})
    if "error" in line:  # vLLM does not start
        assert answer == {"refused": True}
        return
    num_blocks, blocks_per_request, concurrency = line["plan"]
    assert answer["num_blocks"] == num_blocks
    assert answer["blocks_per_request"] == blocks_per_request
    assert answer["max_concurrency"] == pytest.approx(concurrency, abs=1e-6)


def test_every_version_that_was_read_is_in_the_sample() -> None:
    versions = {line["engine_version"] for line in LINES}
    assert len(versions) == 26
    for version in versions:
        major, minor, patch = map(int, version.split("."))
        assert len(layout_rules((major, minor, patch))) == 1
