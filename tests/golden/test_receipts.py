"""What was kept once is read by every later operator, and written again as it was."""

from __future__ import annotations

import json
from pathlib import Path

import yaml
from typer.testing import CliRunner

from ballonet.cli.main import app
from ballonet.planning.receipts import receipts_in
from ballonet.reconcile.receipts import config_map

GOLDEN = Path(__file__).parent / "receipts"


def test_receipts_keep_their_meaning() -> None:
    result = CliRunner().invoke(
        app, ["receipts", "list", "-f", str(GOLDEN / "receipts.yaml"), "-o", "json"]
    )
    assert json.loads(result.stdout) == json.loads((GOLDEN / "receipts.json").read_text())


def test_receipts_are_written_as_they_were_read() -> None:
    found = yaml.safe_load((GOLDEN / "receipts.yaml").read_text())
    assert config_map("agents", receipts_in(found)) == found
