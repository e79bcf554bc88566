"""`python -m e2e.prepare`: everything the end-to-end scenarios need, made once a machine.

Debian packages first (as root), then at the same time the Kubernetes binary and Prometheus, which
need the processors, and the vLLM environment and the images, which mostly wait for downloads.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from e2e import images, prometheus, vllm
from e2e.cache import cache_root, locked
from e2e.cluster import ClusterError, machine
from e2e.cluster import build as kubernetes
from e2e.steps import BuildError, run_step, say

# Executable -> Debian package, for images and the vLLM environment. None brings a system service.
PACKAGE_OF = {"buildah": "buildah", "mmdebstrap": "mmdebstrap", "/usr/bin/python3.11": "python3.11"}
VENV_PACKAGE = "python3.11-venv"


class PrepareError(RuntimeError):
    """Something the scenarios need cannot be had; the text says what and why."""


def prepare() -> None:
    """Install and build what is missing; a second call does nothing.

    Raises:
        PrepareError: with every part that failed, not only the first.
    """
    with locked("packages"):
        try:
            machine.install_packages()
        except ClusterError as error:
            raise PrepareError(str(error)) from error
        _install_packages()
    parts: dict[str, Callable[[], Any]] = {
        "Kubernetes binary": partial(kubernetes.build, cache_root(), _say),
        "vLLM environments": lambda: [vllm.build(), *map(vllm.build_overlay, vllm.overlays())],
        "Prometheus": prometheus.build,
        "images": lambda: [images.build(name) for name in images.IMAGES],
    }
    with ThreadPoolExecutor(len(parts)) as pool:
        results = {name: pool.submit(_timed, name, part) for name, part in parts.items()}
    failures = [f"{name}: {task.exception()}" for name, task in results.items() if task.exception()]
    if failures:
        raise PrepareError("\n".join(failures))


def _timed(name: str, part: Callable[[], Any]) -> None:
    start = time.monotonic()
    part()
    _say(f"{name} ready ({time.monotonic() - start:.0f} s)")


def _install_packages() -> None:
    missing = sorted({package for path, package in PACKAGE_OF.items() if not shutil.which(path)})
    if not _has_ensurepip():
        missing.append(VENV_PACKAGE)
    if not missing:
        return
    if os.geteuid() != 0:
        raise PrepareError(f"not root: ask an administrator to install {' '.join(missing)}")
    names = " ".join(missing)
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    install = ["install", "--yes", "--no-install-recommends", *missing]
    try:
        run_step("prepare: package lists", ["apt-get", "-qq", "update"], quiet)
        run_step(f"prepare: packages {names}", ["apt-get", "-qq", *install], quiet)
    except BuildError as error:
        raise PrepareError(str(error)) from error


def _has_ensurepip() -> bool:
    command = [str(vllm.INTERPRETER), "-c", "import ensurepip"]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def _say(line: str) -> None:
    say(f"prepare: {line}")


def main() -> None:
    try:
        prepare()
    except PrepareError as error:
        raise SystemExit(f"prepare: {error}") from error


if __name__ == "__main__":
    main()
