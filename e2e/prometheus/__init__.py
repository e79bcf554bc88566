"""Prometheus and promtool, built from the Go module in this folder and kept in the cache.

Debian's package knows no discovery in Kubernetes. The tags leave out the discovery of all clouds,
which is most of the build.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from e2e.cache import cache_root, content_key, locked
from e2e.steps import BuildError, run_step

MODULE: Final = Path(__file__).parent
TAGS: Final = "remove_all_sd,enable_kubernetes_sd"
COMMANDS: Final = "github.com/prometheus/prometheus/cmd"


@dataclass(frozen=True)
class Programs:
    """The server and its tool."""

    prometheus: Path
    promtool: Path


def build() -> Programs:
    """Build both unless the cache has them.

    Raises:
        BuildError: Go is missing, too old, or failed.
    """
    lock = [(MODULE / name).read_bytes() for name in ("go.mod", "go.sum")]
    folder = cache_root() / f"prometheus-{content_key([TAGS, *lock])}"
    programs = Programs(folder / "prometheus", folder / "promtool")
    with locked("prometheus"):
        if not folder.exists():
            if shutil.which("go") is None:
                raise BuildError("go is missing: install Go, or copy the cache of another machine")
            _build_into(folder)
    return programs


def _build_into(folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent) as made:
        command = ["go", "-C", str(MODULE), "build", "-trimpath", "-tags", TAGS, "-ldflags=-s -w"]
        packages = [f"{COMMANDS}/prometheus", f"{COMMANDS}/promtool"]
        # An old Go would try to download a newer one.
        environment = {"GOTOOLCHAIN": "local", "CGO_ENABLED": "0"}
        run_step("prometheus: build", [*command, "-o", f"{made}/", *packages], environment)
        # A reader of the cache sees both programs or none.
        complete = Path(made) / "complete"
        complete.mkdir()
        for name in ("prometheus", "promtool"):
            (Path(made) / name).rename(complete / name)
        complete.rename(folder)
