"""Control groups of the cluster: one group in each hierarchy holds every process it ever starts.

Membership is inherited, so the group names the shims and the container processes too, and a process
that is in it was started by this cluster whatever its id. That is what `stop` goes by.
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.errors import ClusterError

ROOT = Path("/sys/fs/cgroup")
# On the unified hierarchy a group with controllers for its children holds no process itself.
LEAF = "node"
# A group competes with each process beside it as one: without a weight of several processes, a
# compiler on the same machine would slow the whole cluster down to a third.
CPU_WEIGHT = 10


@dataclass(frozen=True)
class Hierarchy:
    """One mounted hierarchy: `options` are its version 1 mount options, empty for version 2."""

    mount: Path
    parent: Path
    options: str

    @property
    def unified(self) -> bool:
        return not self.options


def hierarchies(
    mountinfo: str | None = None, membership: str | None = None, root: Path = ROOT
) -> list[Hierarchy]:
    """The hierarchies to make a group in, from the text of /proc/self/mountinfo and .../cgroup.

    Version 1: below the caller's own group, so that limits set on the caller hold for the cluster.
    Version 2: below the mount point, because a group that holds processes (the caller's) cannot
    hand controllers to its children. A hybrid machine counts as version 1.
    """
    mounts = (
        Path("/proc/self/mountinfo").read_text() if mountinfo is None else mountinfo
    ).splitlines()
    own = {
        controllers: path
        for _, controllers, path in (
            line.split(":", 2)
            for line in (
                Path("/proc/self/cgroup").read_text() if membership is None else membership
            ).splitlines()
        )
    }
    found = []
    for line in mounts:
        fields, _, rest = line.partition(" - ")
        kind, _, super_options = rest.split(" ", 2)
        _, _, _, mount_root, mount = fields.split(" ")[:5]
        if kind == "cgroup2" and Path(mount) == root:
            return [Hierarchy(root, root, "")]
        if kind != "cgroup":
            continue
        for controllers, path in own.items():
            if controllers and set(controllers.split(",")) <= set(super_options.split(",")):
                below = Path(mount) / os.path.relpath(path, mount_root)
                found.append(Hierarchy(Path(mount), below, controllers))
    if not any("memory" in each.options.split(",") for each in found):
        raise ClusterError(f"no memory controller below {root}: mount the control groups first")
    return found


@dataclass(frozen=True)
class Groups:
    """The cluster's groups, one in each hierarchy, as paths that every process here sees."""

    paths: tuple[Path, ...]
    unified: bool

    @classmethod
    def create(cls, name: str, within: list[Hierarchy]) -> "Groups":
        """Make the groups. They must not exist."""
        paths = []
        for hierarchy in within:
            path = hierarchy.parent / name
            path.mkdir()
            paths.append(path)
            if "cpuset" in hierarchy.options.split(","):
                # A version 1 cpuset starts without processors and takes no process until it has.
                for setting in ("cpuset.cpus", "cpuset.mems"):
                    (path / setting).write_text((hierarchy.parent / setting).read_text())
            if "cpu" in hierarchy.options.split(","):
                (path / "cpu.shares").write_text(str(CPU_WEIGHT * 1024))
        return cls(tuple(paths), within[0].unified)

    @property
    def entrance(self) -> tuple[Path, ...]:
        """Files that take the id of the first process, which becomes the namespace's root."""
        return tuple(path / "cgroup.procs" for path in self.paths)

    @property
    def join(self) -> tuple[Path, ...]:
        """Files that take the id of every later process."""
        return tuple(
            path / LEAF / "cgroup.procs" if self.unified else path / "cgroup.procs"
            for path in self.paths
        )

    def delegate(self, first_pid: int) -> None:
        """Version 2: hand the controllers to the pods once the first process is in the leaf."""
        if not self.unified:
            return
        for path in self.paths:
            (path / LEAF).mkdir()
            (path / LEAF / "cgroup.procs").write_text(str(first_pid))
            for group in (path.parent, path):
                for controller in (group / "cgroup.controllers").read_text().split():
                    with contextlib.suppress(OSError):  # some controllers cannot be delegated
                        (group / "cgroup.subtree_control").write_text(f"+{controller}")
            given = (path / "cgroup.controllers").read_text().split()
            if not {"cpu", "memory", "pids"} <= set(given):
                raise ClusterError(
                    f"control group {path.parent} hands down {given} only: a container that holds "
                    "processes in it cannot run the cluster; run it on the machine itself"
                )
            (path / "cpu.weight").write_text(str(CPU_WEIGHT * 100))

    def pids(self) -> set[int]:
        """Processes in the groups and in all groups below them."""
        return {
            int(pid)
            for directory in self._directories()
            for pid in _read(directory / "cgroup.procs").split()
        }

    def kill(self, timeout_seconds: float = 10) -> None:
        """End every process of the cluster. Raises ClusterError with those that do not end."""
        deadline = time.monotonic() + timeout_seconds
        while pids := self.pids():
            if time.monotonic() > deadline:
                raise ClusterError(f"processes {sorted(pids)} do not end; run `stop` again")
            for pid in pids:
                self._kill(pid)
            time.sleep(0.02)

    def remove(self, timeout_seconds: float = 5) -> None:
        """Remove the groups, which must be without processes."""
        deadline = time.monotonic() + timeout_seconds
        while directories := list(self._directories()):
            for directory in reversed(directories):
                # Busy for a moment after its last process has ended.
                with contextlib.suppress(OSError):
                    directory.rmdir()
            if time.monotonic() > deadline:
                left = [str(path) for path in self.paths if path.exists()]
                if left:
                    raise ClusterError(f"control groups stay busy: {', '.join(left)}")
            time.sleep(0.01)

    def _kill(self, pid: int) -> None:
        try:
            handle = os.pidfd_open(pid)
        except (ProcessLookupError, OSError):
            return
        try:
            # Looked up again behind the handle: the id may have passed to a stranger in between.
            if self.paths[0].name in _read(Path(f"/proc/{pid}/cgroup")):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        except ProcessLookupError:
            pass
        finally:
            os.close(handle)

    def _directories(self) -> Iterator[Path]:
        for path in self.paths:
            for directory, _, _ in os.walk(path):
                yield Path(directory)


def find(prefix: str, root: Path = ROOT) -> list[Path]:
    """Every group below `root` whose name begins so, however it came there."""
    return sorted(
        Path(directory, child)
        for directory, children, _ in os.walk(root)
        for child in children
        if child.startswith(prefix) and not Path(directory, child).is_symlink()
    )


def existing(name: str) -> Groups | None:
    """The groups of this name that are on the machine, or None."""
    found = find(name)
    unified = (ROOT / "cgroup.controllers").exists()
    return Groups(tuple(found), unified) if found else None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # the group went away, or is of a threaded kind
        return ""
