"""What every document for programs has in common, whichever command prints it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from ballonet.cli.main import app

DEMO = "examples/demo-unfit.yaml"
MODEL = ["Qwen/Qwen3-32B", "--context", "8192"]


def names(document: Any) -> Iterator[str]:
    """Yield the names of all fields; those of a model's config.json are the model's own."""
    if isinstance(document, list):
        for one in document:
            yield from names(one)
    if isinstance(document, dict):
        for name, value in document.items():
            yield name
            if name != "config":
                yield from names(value)


@pytest.mark.parametrize(
    "command",
    [
        ["plan", DEMO],
        ["plan", DEMO, DEMO, "--compare"],
        ["fit", *MODEL, "--gpu", "H100-80GB"],
        ["gpus", *MODEL],
        ["catalog", "gpus"],
        ["catalog", "models"],
        ["catalog", "engines"],
        ["receipts", "list", "-f", "tests/golden/receipts/receipts.yaml"],
    ],
)
def test_names_of_fields_are_in_camel_case(command: list[str]) -> None:
    result = CliRunner().invoke(app, [*command, "-o", "json"])
    found = set(names(json.loads(result.stdout)))
    assert found
    assert not {name for name in found if not re.fullmatch(r"[a-z][A-Za-z0-9]*", name)}
