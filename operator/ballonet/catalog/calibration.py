"""What logged boots of vLLM took of a device's memory, by classes that behave alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from ballonet.catalog.lookup import load
from ballonet.kv.memory import Calibration, CalibrationClass, Communication, Spread
from ballonet.kv.settings import Version
from ballonet.kv.units import KIB, MIB


@cache
def calibration() -> Calibration:
    """Return the figures of calibration.json."""
    return read_calibration(load("calibration.json"))


def read_calibration(data: Mapping[str, Any]) -> Calibration:
    """Return the figures of a file of that form; sizes stand there in KiB and MiB."""
    return Calibration(
        classes=tuple(
            CalibrationClass(
                name=row["name"],
                first=_version(row["first"]),
                before=_version(row["before"]),
                runner=row["runner"],
                compiled=row["compiled"],
                logit_bytes=Spread(*row["logit_bytes"]),
                other=_spread(row["other_mib"], MIB),
                boots=row["boots"],
                covered=row["covered"],
            )
            for row in data["classes"]
        ),
        forward_percent=Spread(*data["forward_percent"]),
        graph_bytes=_spread(data["graph_kib"], KIB),
        first_graph_bytes=_spread(data["first_graph_mib"], MIB),
        encoder_token_bytes=_spread(data["encoder_token_kib"], KIB),
        drafting=_spread(data["drafting_mib"], MIB),
        unified=_spread(data["unified_mib"], MIB),
        linked=_communication(data["linked"]),
        unlinked=_communication(data["unlinked"]),
    )


def _communication(row: Mapping[str, Sequence[int]]) -> Communication:
    return Communication(_spread(row["each_mib"], MIB), _spread(row["once_mib"], MIB))


def _spread(ends: Sequence[int], unit: int) -> Spread:
    low, usual, high = (end * unit for end in ends)
    return Spread(low, usual, high)


def _version(numbers: Sequence[int]) -> Version:
    first, second, third = numbers
    return first, second, third
