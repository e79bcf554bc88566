"""Builds the Kubernetes binary and the pause program from the Go module in e2e/kubernetes.

Both are kept in the cache under a key of their sources, so a machine builds them once.
"""

import fcntl
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from e2e.cache import content_key
from e2e.cluster.errors import ClusterError

MODULE = Path(__file__).parent.parent / "kubernetes"
KUBERNETES_SOURCES = ("go.mod", "go.sum", "main.go")
PAUSE_SOURCES = ("pause/main.go",)
REPORT_EVERY_SECONDS = 30


def kubernetes_version(module: Path = MODULE) -> str:
    """The version of Kubernetes that go.mod asks for, such as `v1.36.3`."""
    found = re.search(r"^\s*k8s\.io/kubernetes (v\S+)", (module / "go.mod").read_text(), re.M)
    if found is None:
        raise ClusterError(f"{module / 'go.mod'} does not require k8s.io/kubernetes: restore it")
    return found.group(1)


def required_go(module: Path = MODULE) -> tuple[int, ...]:
    """The lowest Go version that go.mod accepts, such as (1, 26, 0)."""
    found = re.search(r"^go (\d+(?:\.\d+)*)", (module / "go.mod").read_text(), re.M)
    if found is None:
        raise ClusterError(f"{module / 'go.mod'} has no go line: restore it")
    return tuple(int(part) for part in found.group(1).split("."))


def kubernetes_path(cache: Path, module: Path = MODULE) -> Path:
    """Where the Kubernetes binary lies, whether built or not."""
    return _keyed(cache, "kubernetes", module, KUBERNETES_SOURCES)


def pause_path(cache: Path, module: Path = MODULE) -> Path:
    """Where the pause program lies, whether built or not."""
    return _keyed(cache, "pause", module, PAUSE_SOURCES)


def cannot_build(cache: Path) -> str | None:
    """Why the binaries are neither cached nor buildable, or None."""
    if kubernetes_path(cache).exists() and pause_path(cache).exists():
        return None
    wanted = ".".join(str(part) for part in required_go())
    if shutil.which("go") is None:
        return (
            f"the Kubernetes binary is not in {cache} and Go is not installed: install Go {wanted}"
        )
    # Without the local toolchain setting an old Go would try to download a newer one.
    said = subprocess.run(
        ["go", "env", "GOVERSION"],
        capture_output=True,
        text=True,
        check=False,
        env=_go_environment(),
    ).stdout.strip()
    found = tuple(int(part) for part in re.findall(r"\d+", said)[:3])
    if found < required_go():
        return f"{said or 'this Go'} is too old to build Kubernetes: install Go {wanted} or newer"
    return None


@dataclass(frozen=True)
class Binaries:
    """What the module builds: all Kubernetes components in one program, and the pause program."""

    kubernetes: Path
    pause: Path


def build(cache: Path, report: Callable[[str], None]) -> Binaries:
    """Build what is not in the cache.

    `report` gets a line about every 30 seconds of building. Raises ClusterError when Go is missing,
    too old, or fails.
    """
    kubernetes, pause = kubernetes_path(cache), pause_path(cache)
    if kubernetes.exists() and pause.exists():
        return Binaries(kubernetes, pause)
    reason = cannot_build(cache)
    if reason:
        raise ClusterError(reason)
    version = kubernetes_version()
    # The component packages report their version from these variables; without them every component
    # calls itself v0.0.0-master.
    flags = (
        f"-s -w -X k8s.io/component-base/version.gitVersion={version}"
        f" -X k8s.io/client-go/pkg/version.gitVersion={version}"
    )
    with locked(
        cache / "kubernetes.lock", lambda: report("waiting for another build of Kubernetes")
    ):
        if not kubernetes.exists():
            _go_build(".", flags, kubernetes, f"Kubernetes {version}", report)
        if not pause.exists():
            _go_build("./pause", "-s -w", pause, "the pause program", report)
    return Binaries(kubernetes, pause)


@contextmanager
def locked(path: Path, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold an exclusive lock on a file; `on_wait` is called once when somebody else holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _keyed(cache: Path, name: str, module: Path, sources: tuple[str, ...]) -> Path:
    key = content_key((module / source).read_bytes() for source in sources)
    return cache / f"{name}-{key}" / name


def _go_environment() -> dict[str, str]:
    return os.environ | {"GOTOOLCHAIN": "local", "CGO_ENABLED": "0"}


def _go_build(
    package: str, flags: str, target: Path, title: str, report: Callable[[str], None]
) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(dir=target.parent) as directory:
        made, log = Path(directory) / target.name, Path(directory) / "log"
        command = ["go", "build", "-v", "-trimpath", "-ldflags", flags, "-o", str(made), package]
        with log.open("w") as output:
            running = subprocess.Popen(
                command, cwd=MODULE, env=_go_environment(), stdout=output, stderr=output
            )
            try:
                while True:
                    try:
                        code = running.wait(REPORT_EVERY_SECONDS)
                        break
                    except subprocess.TimeoutExpired:
                        report(f"building {title}: {_progress(log, begun)}")
            except BaseException:
                running.kill()
                running.wait()
                raise
        if code:
            tail = "\n".join(log.read_text().splitlines()[-20:])
            raise ClusterError(f"building {title} failed (`{' '.join(command)}`):\n{tail}")
        # A reader of the cache sees the whole binary or none.
        made.rename(target)
    report(f"built {title} in {time.monotonic() - begun:.0f} s")


def _progress(log: Path, begun: float) -> str:
    lines = log.read_text().splitlines()
    downloads = sum(line.startswith("go: downloading") for line in lines)
    minutes, seconds = divmod(int(time.monotonic() - begun), 60)
    return (
        f"{minutes} min {seconds:02d} s, {downloads} modules downloaded, "
        f"{len(lines) - downloads} packages compiled"
    )
