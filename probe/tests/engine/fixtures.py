"""The vLLM versions that the probe is tried with."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ballonet_probe.archive import archive
from e2e.cache import cache_root
from e2e.model import make_model
from e2e.vllm import build, build_overlay

VERSIONS = ("0.32.0", "0.28.0")


class Engine:
    """One vLLM version: its interpreter, and the paths that make it that version."""

    def __init__(self, version: str, folder: Path) -> None:
        self.version = version
        self.bin = build() / "bin"
        self.model = make_model(cache_root() / "model")
        self.probe = folder / "ballonet_probe.zip"
        self.probe.write_bytes(archive())
        self._overlay = [] if version == VERSIONS[0] else [str(build_overlay(version))]

    def environment(self, *first: Path, **more: str) -> dict[str, str]:
        return {
            "PATH": f"{self.bin}:/usr/bin:/bin",
            "HOME": "/tmp",
            "PYTHONPATH": ":".join([*map(str, first), *self._overlay]),
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_LOGGING_LEVEL": "INFO",
            **more,
        }

    def step(self, *arguments: str) -> dict[str, Any]:
        """Run the real scheduler without a model; return what it printed."""
        script = Path(__file__).with_name("step_scheduler.py")
        done = subprocess.run(
            [str(self.bin / "python"), str(script), str(self.model), *arguments],
            env=self.environment(self.probe),
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return result


@pytest.fixture(scope="session", params=VERSIONS)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    folder = tmp_path_factory.mktemp("probe")
    folder.chmod(0o755)
    return Engine(request.param, folder)
