"""Predicted KV memory against what real GPUs printed at start (docs/memory.md)."""

from __future__ import annotations

import json
import re
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from ballonet.catalog import Catalog
from ballonet.catalog.calibration import calibration
from ballonet.kv.geometry import parse_config
from ballonet.kv.memory import MemoryPlan, Work, rank_memory
from ballonet.kv.units import GIB, Interval

ROOT = Path(__file__).parents[2]
BOOTS: list[dict[str, Any]] = [
    json.loads(line)
    for line in (Path(__file__).parent / "data/kv_boots.jsonl").read_text().splitlines()
]
ERAS = (
    ("0.10.2 to 0.16", (0, 10, 2), (0, 17, 0)),
    ("0.17 to 0.19", (0, 17, 0), (0, 20, 0)),
    ("0.20 to 0.26", (0, 20, 0), (0, 27, 0)),
    ("0.27 to 0.33", (0, 27, 0), (0, 34, 0)),
)
ROUNDING_BYTES = GIB * 5 // 1000  # figures are printed with two decimals


def plan(boot: dict[str, Any]) -> MemoryPlan:
    device = Catalog.builtin().accelerator(boot["device"])
    assert device is not None
    assert device.memory_bytes is not None
    per_mille = int(Decimal(boot["share"]) * 1000)
    weights = int(Decimal(boot["rank_weights_gib"]) * GIB)
    return rank_memory(
        Work.of(parse_config(json.dumps(boot["config"])), pipeline=boot["pipeline"]),
        device_bytes=Interval(
            device.memory_bytes.low * per_mille // 1000,
            device.memory_bytes.high * per_mille // 1000,
        ),
        memory_percent=100,
        weights=Interval.point(weights),
        version=version(boot),
        calibration=calibration(),
        max_model_tokens=8192,
        tensor=boot["tensor"],
        pipeline=boot["pipeline"],
        max_num_seqs=boot["max_num_seqs"],
        max_batched_tokens=boot["max_batched_tokens"],
        vendor=device.vendor,
        linked=device.linked,
        eager=boot.get("eager", False),
    )


def version(boot: dict[str, Any]) -> tuple[int, ...]:
    return tuple(int(part) for part in boot["version"].split("."))


def outcome(boot: dict[str, Any]) -> str:
    predicted = plan(boot).kv_cache_bytes
    assert predicted is not None
    printed = int(Decimal(boot["kv_cache_gib"]) * GIB)
    if predicted.low > printed + ROUNDING_BYTES:
        return "promised too much"
    return "inside" if printed <= predicted.high + ROUNDING_BYTES else "more than predicted"


def table() -> str:
    """The rows of the table in docs/memory.md."""
    rows = []
    for name, first, last in ERAS:
        boots = [boot for boot in BOOTS if first <= version(boot) < last]
        counts = Counter(outcome(boot) for boot in boots)
        widths = sorted(
            (interval.high - interval.low) * 10 // GIB
            for boot in boots
            if (interval := plan(boot).kv_cache_bytes) is not None
        )
        median = widths[len(widths) // 2]
        rows.append(
            f"| {name} | {len(boots)} | {counts['inside']} | {counts['promised too much']} | "
            f"{median // 10}.{median % 10} |"
        )
    return "\n".join(rows)


def test_at_least_nine_in_ten_boots_lie_inside() -> None:
    counts = Counter(outcome(boot) for boot in BOOTS)
    assert len(BOOTS) == 32
    assert counts["inside"] * 10 >= len(BOOTS) * 9


def test_the_low_end_promises_too_much_for_at_most_one_in_twenty() -> None:
    counts = Counter(outcome(boot) for boot in BOOTS)
    assert counts["promised too much"] * 20 <= len(BOOTS)


def test_the_documented_table_is_the_present_one() -> None:
    text = (ROOT / "docs/memory.md").read_text()
    documented = re.search(r"<!-- boots -->\n\|.*\n\|.*\n((?:\|.*\n)+)", text)
    assert documented is not None
    assert documented[1].strip() == table()


@pytest.mark.parametrize("boot", BOOTS, ids=lambda boot: boot["boot"])
def test_a_prediction_is_never_a_point(boot: dict[str, Any]) -> None:
    predicted = plan(boot).kv_cache_bytes
    assert predicted is not None
    assert predicted.high - predicted.low >= GIB // 4
