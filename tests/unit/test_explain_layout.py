"""The arithmetic that a plan tells of its layout works out to what the layout says."""

from __future__ import annotations

import re
from fractions import Fraction
from math import ceil
from typing import Any

import pytest

from ballonet.catalog import Catalog
from ballonet.kv.config import LayoutNotUnderstood
from ballonet.kv.layout import CacheLayout, cache_layout
from ballonet.kv.settings import CUDA, EngineRefuses, EngineSettings
from ballonet.planning.explain import Step
from ballonet.planning.explain_layout import layout_steps

NOUNS = r" (in flight|ranks|encoder tokens|layers?|KV heads?|(packed )?bytes?|tokens)\b"


def layout(name: str, **changes: Any) -> CacheLayout:
    model = Catalog.builtin().model(name)
    assert model is not None
    settings = EngineSettings(
        **{
            "version": (0, 32, 0),
            "platform": CUDA,
            "max_model_tokens": 32_768,
            "max_batched_tokens": 8192,
            **changes,
        }
    )
    return cache_layout(model.geometry, settings)


def told(cache: CacheLayout, ceiling: int = 32_768) -> dict[str, Step]:
    return {step.title: step for step in layout_steps(cache, ceiling, "catalog", "vLLM")}


def worked_out(formula: str) -> int:
    """Return the value of a formula as a person would work it out."""
    bare = re.sub(NOUNS, "", re.sub(r"(?<=\d),(?=\d{3})", "", formula)).replace(" x ", " * ")
    names = {"ceil": ceil, "min": min, "Fraction": Fraction}
    return int(eval(re.sub(r"\d+", r"Fraction(\g<0>)", bare), names))  # our own text


@pytest.mark.parametrize("version", [(0, 10, 2), (0, 21, 0), (0, 28, 0), (0, 33, 0)])
@pytest.mark.parametrize("ceiling", [1, 1000, 32_768])
def test_formulas_work_out_for_every_model_of_the_catalog(
    version: tuple[int, int, int], ceiling: int
) -> None:
    tried = 0
    for name in (model.name for model in Catalog.builtin().models):
        try:
            cache = layout(name, version=version)
        except (LayoutNotUnderstood, EngineRefuses):
            continue
        steps = told(cache, ceiling)
        blocks = steps["Blocks of a sequence"]
        assert worked_out(blocks.formula) == cache.blocks(ceiling), name
        assert blocks.value.split()[0] == f"{cache.blocks(ceiling):,}"
        assert steps["Bytes of a block"].value == f"{cache.bytes_per_block:,} bytes"
        for step in steps.values():
            if " layers x " in step.formula and not re.search("padded|state|cells", step.formula):
                assert f"{worked_out(step.formula):,} bytes" in step.value, name
                tried += 1
    assert tried > 50


def test_one_group_is_told_in_two_steps() -> None:
    first, last = layout_steps(layout("Qwen/Qwen3-32B", tensor=2), 32_768, "catalog", "vLLM 0.32.0")
    assert first == Step(
        "Bytes of a block",
        "64 layers x 4 KV heads x (128 + 128) x 2 bytes x 16 tokens",
        "2,097,152 bytes",
        "catalog",
    )
    assert last == Step("Blocks of a sequence", "ceil(32,768 / 16)", "2,048 blocks", "vLLM 0.32.0")


def test_groups_that_are_alike_are_told_once() -> None:
    steps = told(layout("google/gemma-3-27b-it"))
    assert list(steps) == [
        "4 groups of sliding window",
        "2 groups of sliding window",
        "1 group of full attention",
        "Bytes of a block",
        "Blocks of a sequence",
    ]
    assert steps["Blocks of a sequence"].formula == (
        "6 x (ceil(min(1,023 + 16,384 in flight, 32,768) / 16) + 1) + ceil(32,768 / 16)"
    )


def test_a_state_and_what_it_is_padded_to_are_told() -> None:
    steps = told(layout("Qwen/Qwen3-Next-80B-A3B-Instruct"))
    assert re.search(r"bytes a state padded to [\d,]+", steps["3 groups of states"].formula)


def test_the_stage_that_decides_is_told() -> None:
    steps = told(layout("Qwen/Qwen3-32B", pipeline=3))
    assert steps["Bytes of a block"].formula == "the largest of 3 pipeline ranks"
