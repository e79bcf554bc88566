"""Traces of engines as files: a line says what they are, the others are observations.

Each file NAME.jsonl begins with ``{"trace": {...}}``: where the trace is from and what the pool was
(``limit`` sequences at once, ``ceiling`` tokens, ``block_tokens``). Each further line is one
observation of a pod: ``{"pod": NAME, ...}`` with the fields of
``ballonet.diagnosis.observation.Observation`` that the engine reported.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from ballonet.diagnosis.observation import Observation

FOLDER = Path(__file__).parent
_OBSERVATION = TypeAdapter(Observation)

Sample = tuple[str, Observation]


def read_trace(name: str) -> tuple[dict[str, Any], list[Sample]]:
    """Return what a trace says of itself, and its samples as (pod, observation) by time."""
    lines = [json.loads(line) for line in (FOLDER / f"{name}.jsonl").read_text().splitlines()]
    about = lines[0]["trace"]
    samples = [(line.pop("pod"), _OBSERVATION.validate_python(line)) for line in lines[1:]]
    return about, sorted(samples, key=lambda sample: sample[1].at)


def write_trace(name: str, about: dict[str, Any], samples: Iterable[Sample]) -> None:
    """Write a trace so that ``read_trace`` returns it again."""
    lines = [json.dumps({"trace": about})]
    for pod, observation in samples:
        fields = _OBSERVATION.dump_python(observation, mode="json", exclude_none=True)
        # What every engine reports as empty maps says nothing.
        said = {key: value for key, value in fields.items() if value != {}}
        lines.append(json.dumps({"pod": pod, **said}))
    (FOLDER / f"{name}.jsonl").write_text("\n".join(lines) + "\n")


def names() -> list[str]:
    """Return the names of all traces."""
    return sorted(path.stem for path in FOLDER.glob("*.jsonl"))
