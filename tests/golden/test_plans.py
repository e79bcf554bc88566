"""Whole plans of examples whose memory is given, so that every figure is exact."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ballonet.cli.main import app

GOLDEN = Path(__file__).parent / "plan"
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("name", ["demo-unfit", "planner-lets-go"])
def test_the_plan_is_the_committed_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES)
    result = CliRunner().invoke(app, ["plan", "-f", f"{name}.yaml", "-o", "json"])
    assert json.loads(result.stdout) == json.loads((GOLDEN / f"{name}.json").read_text())
