"""What planning needs in order to be imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = os.pathsep.join((str(ROOT / "operator"), str(ROOT / "probe")))


def test_planning_imports_no_client_no_server_and_no_data_frame() -> None:
    script = (
        "import sys, ballonet.planning.planner, ballonet.planning.measured, ballonet.catalog;"
        "heavy = {'kopf', 'kubernetes', 'aiohttp', 'asyncio', 'pandas', 'numpy', 'torch', 'yaml',"
        " 'typer', 'rich', 'prometheus_client', 'structlog', 'huggingface_hub'};"
        "print(*sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        timeout=50,
        env={**os.environ, "PYTHONPATH": SOURCES},
    )
    assert done.stdout.split() == []
