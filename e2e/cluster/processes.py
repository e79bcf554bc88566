"""Processes that outlive the program that started them, and are never mistaken for another."""

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


def boot_id() -> str:
    """Differs after every boot of the machine: process ids of another boot mean nothing."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@dataclass(frozen=True)
class Process:
    """A process named by its id and its start time, so that a reused id is another process."""

    pid: int
    start_ticks: int

    @classmethod
    def of(cls, pid: int) -> "Process":
        """The process that has this id now, or one that is dead when none has."""
        stat = _stat(pid)
        return cls(pid, int(stat[19]) if stat else -1)

    @property
    def state(self) -> str:
        """`running`, `paused` (stopped by a signal) or `dead`."""
        stat = _stat(self.pid)
        if stat is None or int(stat[19]) != self.start_ticks:
            return "dead"
        # While other threads still end, the process holds its ports.
        if stat[0] in "ZX" and int(stat[17]) <= 1:
            return "dead"
        return "paused" if stat[0] in "Tt" else "running"

    @property
    def alive(self) -> bool:
        return self.state != "dead"

    def send(self, signal_number: signal.Signals) -> None:
        """Send a signal; nothing happens when the process has ended."""
        try:
            # The handle is taken first and the identity is checked after: it cannot be reused then.
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return
        try:
            if self.alive:
                signal.pidfd_send_signal(handle, signal_number)
        except ProcessLookupError:
            return
        finally:
            os.close(handle)

    def wait(self, state: str, timeout_seconds: float) -> bool:
        """True as soon as the process is in `state`, False when it is not after the time."""
        deadline = time.monotonic() + timeout_seconds
        while self.state != state:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True


def spawn(command: Sequence[str], log: Path, join: Sequence[Path], path: str) -> Process:
    """Start a process in a session of its own, as nobody's child, with its output in `log`.

    `join` are files (`cgroup.procs`) that take the process id before the command begins; `path` is
    its PATH. The rest of its environment is empty, so it does not differ with the caller's shell.
    """
    joining = "".join(f"echo $$ > {shlex.quote(str(file))} && " for file in join)
    inner = f"{joining}exec {shlex.join(command)}"
    # The shell ends at once: the command belongs to init, which reaps it.
    outer = (
        f"setsid sh -c {shlex.quote(inner)} >> {shlex.quote(str(log))} 2>&1 < /dev/null & echo $!"
    )
    started = subprocess.run(
        ["sh", "-c", outer],
        cwd="/",
        env={"PATH": path, "HOME": "/"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return Process.of(int(started.stdout))


def _stat(pid: int) -> list[str] | None:
    # proc(5): the name in parentheses may hold spaces. Field 3 (state) follows it at index 0, field
    # 20 is the number of threads, field 22 the start time in clock ticks since boot.
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text.rpartition(")")[2].split()
