"""Who uses the cluster of a cache folder: one session at a time.

The file lock is held by the session and by the command it runs, so it ends with both of them, also
when they are killed. A cluster that was kept and that nobody uses is not locked.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from e2e.cluster.errors import ClusterError
from e2e.cluster.processes import Process

LOCK = "session.lock"
# Who only looks has the lock for a moment.
MOMENT_SECONDS = 1.0


@contextmanager
def in_use(cache: Path, advice: str) -> Iterator[int]:
    """Have the cluster of `cache` for oneself; yields a descriptor that keeps it for a child too.

    Raises:
        ClusterError: somebody else has it; the text names them and ends with `advice`.
    """
    path = cache / LOCK
    with path.open("a") as file:
        deadline = time.monotonic() + MOMENT_SECONDS
        while not _taken(file):
            if time.monotonic() > deadline:
                raise ClusterError(f"the cluster of {cache} is in use by {_holder(path)}: {advice}")
            time.sleep(0.05)
        yield file.fileno()


def user(cache: Path) -> str | None:
    """The process that uses the cluster of `cache`, as text, or None."""
    path = cache / LOCK
    try:
        with path.open() as file:
            return None if _taken(file) else _holder(path)
    except FileNotFoundError:
        return None


def _taken(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(lock: Path) -> str:
    # Looked up, not written down: what a file says outlives the process that wrote it. The session
    # began before its command, whose id may be lower: ids begin anew.
    pids = (int(path.name) for path in Path("/proc").glob("[0-9]*"))
    for pid in sorted(pids, key=lambda pid: (Process.of(pid).start_ticks, pid)):
        if pid != os.getpid() and _has_open(pid, lock):
            with suppress(FileNotFoundError):  # it has ended meanwhile
                command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
                return f"process {pid} ({' '.join(command.split(chr(0))).strip()})"
    return "another process"


def _has_open(pid: int, file: Path) -> bool:
    try:
        return any(Path(each).samefile(file) for each in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:  # it has ended, or is not ours to look at
        return False
