"""The parts of the embedded cluster that need neither root nor a cluster."""

import contextlib
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster import ClusterError, build, components, guard
from e2e.cluster.archive import read_archive, write_archive
from e2e.cluster.cgroups import Hierarchy, hierarchies
from e2e.cluster.processes import Process, spawn
from e2e.harness.poll import eventually

V1_MOUNTS = """\
23 27 0:22 / /sys rw,relatime - sysfs sysfs rw
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
V1_MEMBERSHIP = """\
4:memory:/jobs/one
2:cpu,cpuacct:/
1:name=systemd:/
0::/
"""


def test_version_1_groups_lie_below_the_callers_own() -> None:
    found = hierarchies(V1_MOUNTS, V1_MEMBERSHIP)
    root = Path("/sys/fs/cgroup")
    assert found == [
        Hierarchy(root / "cpu,cpuacct", root / "cpu,cpuacct", "cpu,cpuacct"),
        Hierarchy(root / "memory", root / "memory/jobs/one", "memory"),
        Hierarchy(root / "systemd", root / "systemd", "name=systemd"),
    ]


def test_a_container_that_sees_only_its_own_subtree_uses_the_mount_point() -> None:
    mounts = "35 31 0:32 /docker/7 /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    (found,) = hierarchies(mounts, "4:memory:/docker/7\n0::/docker/7\n")
    assert found.parent == Path("/sys/fs/cgroup/memory")


def test_version_2_has_one_hierarchy_and_uses_its_root() -> None:
    mounts = "31 23 0:28 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
    root = Path("/sys/fs/cgroup")
    assert hierarchies(mounts, "0::/user.slice/session-1.scope\n") == [Hierarchy(root, root, "")]


def test_a_machine_without_a_memory_controller_is_named() -> None:
    with pytest.raises(ClusterError, match="no memory controller"):
        hierarchies("31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n", "0::/\n")


def test_an_image_archive_names_its_tag_and_changes_with_its_program(tmp_path: Path) -> None:
    program = tmp_path / "program"
    digests = []
    for content in (b"one", b"two", b"one"):
        program.write_bytes(content)
        write_archive(tmp_path / "image.tar", "localhost/ballonet/x:dev", program)
        image = read_archive(tmp_path / "image.tar")
        assert image.tags == ("localhost/ballonet/x:dev",)
        digests.append(image.digest)
    assert digests[0] == digests[2] != digests[1]


def test_a_file_that_is_no_image_archive_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(b"not a tar")
    with pytest.raises(ClusterError, match=r"x\.tar is not a docker archive.*buildah push"):
        read_archive(tmp_path / "x.tar")


def _module(directory: Path, main: str) -> Path:
    directory.mkdir()
    (directory / "go.mod").write_text("go 1.26.0\nrequire (\n\tk8s.io/kubernetes v1.36.3\n)\n")
    (directory / "go.sum").write_text("sum")
    (directory / "main.go").write_text(main)
    return directory


def test_the_binary_is_keyed_by_the_content_of_its_module(tmp_path: Path) -> None:
    one = build.kubernetes_path(tmp_path, _module(tmp_path / "a", "main"))
    same = build.kubernetes_path(tmp_path, _module(tmp_path / "b", "main"))
    other = build.kubernetes_path(tmp_path, _module(tmp_path / "c", "changed"))
    assert one == same != other


def test_versions_come_from_the_module(tmp_path: Path) -> None:
    module = _module(tmp_path / "a", "main")
    assert build.kubernetes_version(module) == "v1.36.3"
    assert build.required_go(module) == (1, 26, 0)


def _fake_go(directory: Path, version: str) -> None:
    directory.mkdir()
    go = directory / "go"
    go.write_text(f"#!/bin/sh\necho {version}\n")
    go.chmod(go.stat().st_mode | stat.S_IXUSR)


def test_an_old_go_is_named_with_the_version_that_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fake_go(tmp_path / "bin", "go1.19.8")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    assert "go1.19.8 is too old" in (build.cannot_build(tmp_path) or "")
    assert "install Go 1.26" in (build.cannot_build(tmp_path) or "")


def test_a_new_enough_go_can_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _fake_go(tmp_path / "bin", "go1.27rc1")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    assert build.cannot_build(tmp_path) is None


def test_a_machine_without_go_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "Go is not installed" in (build.cannot_build(tmp_path) or "")


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[Process]:
    process = spawn(["sleep", "60"], tmp_path / "log", [], os.environ["PATH"])
    yield process
    process.send(signal.SIGKILL)


def test_a_process_is_followed_through_pause_and_end(sleeper: Process) -> None:
    assert sleeper.state == "running"
    sleeper.send(signal.SIGSTOP)
    assert sleeper.wait("paused", 10)
    sleeper.send(signal.SIGKILL)
    assert sleeper.wait("dead", 10)
    assert sleeper.state == "dead"


def test_a_process_that_has_a_recorded_id_but_started_later_is_left_alone(sleeper: Process) -> None:
    earlier = Process(sleeper.pid, sleeper.start_ticks - 1)
    assert earlier.state == "dead"
    earlier.send(signal.SIGKILL)
    assert not sleeper.wait("dead", 0.2)


def test_a_spawned_process_gets_no_environment_but_its_path(tmp_path: Path) -> None:
    process = spawn(["env"], tmp_path / "log", [], "/usr/bin:/bin")
    assert process.wait("dead", 10)
    names = {line.split("=")[0] for line in (tmp_path / "log").read_text().splitlines()}
    assert names <= {"PATH", "HOME", "PWD", "OLDPWD", "SHLVL", "_"}


def test_an_unknown_component_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'kube-dns': use one of etcd, containerd"):
        components.command("kube-dns", components.Layout(tmp_path), Path("k"), {})


HOLD = """
import subprocess, sys
from pathlib import Path
from e2e.cluster import guard
with guard.in_use(Path(sys.argv[1]), "") as lock:
    child = subprocess.Popen(["sleep", "60"], pass_fds=[lock], stdout=subprocess.DEVNULL)
    print(child.pid, flush=True)
    child.wait()
"""


@pytest.fixture
def session(tmp_path: Path) -> Iterator[tuple[int, int]]:
    """A process that uses the cluster of `tmp_path`, and the command it runs."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        command = int(process.stdout.readline())
        yield process.pid, command
        process.kill()
        with contextlib.suppress(ProcessLookupError):
            os.kill(command, signal.SIGKILL)


def test_a_cluster_in_use_is_refused_with_process_and_command(
    session: tuple[int, int], tmp_path: Path
) -> None:
    expected = rf"in use by process {session[0]} \({sys.executable} -c .*: try later"
    with (
        pytest.raises(ClusterError, match=f"(?s){expected}"),
        guard.in_use(tmp_path, "try later"),
    ):
        pass


def test_the_session_is_named_also_where_its_command_has_the_lower_id(
    session: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = max(session)
    monkeypatch.setattr(Process, "of", lambda pid: Process(pid, -1 if pid == last else pid))
    assert (guard.user(tmp_path) or "").startswith(f"process {last} (")


def test_the_command_of_a_killed_session_still_uses_the_cluster(
    session: tuple[int, int], tmp_path: Path
) -> None:
    process, command = session
    os.kill(process, signal.SIGKILL)
    eventually(
        lambda: guard.user(tmp_path) == f"process {command} (sleep 60)", "the command to be named"
    )
    os.kill(command, signal.SIGKILL)
    eventually(lambda: guard.user(tmp_path) is None, "the lock to be gone")
    with guard.in_use(tmp_path, ""):
        pass


def test_a_folder_that_nobody_used_yet_is_free(tmp_path: Path) -> None:
    assert guard.user(tmp_path) is None
    with guard.in_use(tmp_path, ""):
        pass
    assert guard.user(tmp_path) is None
