"""The embedded cluster: a real Kubernetes of one node in namespaces of its own.

The network, mount, host name and control group namespaces live as long as one process that sleeps
in them (the holder). Nothing is pinned to a file, so when the cluster's processes end, its network,
its mounts and its links are gone whatever ended them; what `stop` has to remove is processes,
control groups and the state folder.
"""

import contextlib
import hashlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.cache import cache_root
from e2e.cluster import build, cgroups, components, machine
from e2e.cluster.archive import read_archive, write_archive
from e2e.cluster.errors import ClusterError
from e2e.cluster.pki import Authority, KeyPair
from e2e.cluster.processes import Process, boot_id, spawn

HOLDER = "holder"
GROUP_PREFIX = "ballonet-"
GPU_RESOURCE = "nvidia.com/gpu"
START_TIMEOUT_SECONDS = 120
STOP_TIMEOUT_SECONDS = 90


@dataclass(frozen=True)
class Status:
    """What runs. `components` maps each name to `running`, `paused` or `dead`."""

    holder: str
    components: dict[str, str]
    ready: bool
    leftovers: tuple[str, ...]

    @property
    def stopped(self) -> bool:
        return self.holder == "dead" and not self.leftovers

    @property
    def healthy(self) -> bool:
        return self.ready and all(state == "running" for state in self.components.values())


def unavailable_reason(cache: Path | None = None) -> str | None:
    """Why this machine cannot run the embedded cluster, or None when it can."""
    return machine.cannot_isolate() or build.cannot_build(cache or cache_root())


def ignore(_: str) -> None:
    """A report to nobody."""


class Cluster:
    """The cluster whose state lies in `cache` (default: `e2e.cache.cache_root()`).

    An object holds no state: any number of them, in any number of processes, name the same cluster.
    `report` gets a line for each step that takes time.
    """

    def __init__(self, cache: Path | None = None, report: Callable[[str], None] = ignore) -> None:
        self.cache = cache or cache_root()
        self._report = report
        self._layout = components.Layout(self.cache / "cluster")
        # Clusters of different caches can run side by side.
        digest = hashlib.sha256(str(self.cache.resolve()).encode()).hexdigest()
        self._group_name = f"{GROUP_PREFIX}{digest[:8]}"

    # ---- what it is -----------------------------------------------------------------------------

    @property
    def kubeconfig(self) -> Path:
        """Credentials of the cluster's administrator. The address is valid inside the network
        namespace only."""
        return self._layout.kubeconfig("admin")

    @property
    def kubectl_program(self) -> Path:
        """A kubectl that speaks to this cluster from any folder; there while the cluster is."""
        return self._layout.state / "bin" / "kubectl"

    @property
    def audit_log(self) -> Path:
        """One JSON object a line: every write, and every read by the operator's namespace."""
        return self._layout.audit_log

    @property
    def certificate_authority(self) -> Path:
        """The certificate that signs the API server's, for clients and for proxies before it."""
        return Authority(self._layout.pki).certificate

    @property
    def node_pid(self) -> int:
        """Id of the process that holds the namespaces. Raises ClusterError when nothing runs."""
        return self._holder().pid

    def log(self, component: str) -> Path:
        """The output of a component."""
        return self._layout.log(component)

    def processes(self) -> set[int]:
        """Ids of every process of the cluster, those of its containers included."""
        groups = cgroups.existing(self._group_name)
        return groups.pids() if groups else set()

    def status(self) -> Status:
        holder = self._process(HOLDER)
        if holder is None or not holder.alive:
            return Status("dead", {}, False, tuple(self.leftovers()))
        states = {name: self._state(name) for name in components.COMPONENTS}
        ready = False
        if all(state == "running" for state in states.values()):
            with contextlib.suppress(ClusterError):  # no answer
                ready = self._node_ready()
        return Status(holder.state, states, ready, ())

    def leftovers(self) -> list[str]:
        """What a cluster that no longer runs has left on the machine; empty after `stop`."""
        left = [f"control group {path}" for path in cgroups.find(self._group_name)]
        if self._layout.state.exists():
            left.append(f"state {self._layout.state}")
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        left += [f"mount {line}" for line in mounts if str(self._layout.state) in line]
        return left

    # ---- start and stop -------------------------------------------------------------------------

    def start(self, gpus: int | None = None) -> None:
        """Start the cluster, or use the one that runs when it is healthy.

        `gpus` fake GPUs are given to the node; None leaves a running cluster as it is. A cluster
        that is not healthy, or was left behind by a crash, is removed first. Raises ClusterError.
        """
        reason = unavailable_reason(self.cache)
        if reason:
            raise ClusterError(reason)
        binaries = build.build(self.cache, self._report)
        with self._locked():
            if not self._reusable(binaries.kubernetes):
                self._remove()
                try:
                    self._start(binaries)
                except BaseException:
                    self._remove()
                    raise
            if gpus is not None:
                self.set_fake_gpus(gpus)

    def stop(self) -> None:
        """End every process of the cluster and remove its groups and state. Nothing is left."""
        with self._locked():
            self._remove()

    # ---- use ------------------------------------------------------------------------------------

    def namespace_command(self, argv: Sequence[str]) -> list[str]:
        """A command line that runs `argv` in the cluster's network, on the machine's files."""
        return ["nsenter", f"--net=/proc/{self.node_pid}/ns/net", "--", *argv]

    def environment(self) -> dict[str, str]:
        """This process's environment, with KUBECONFIG set and `kubectl` in PATH."""
        path = f"{self.kubectl_program.parent}:{machine.SEARCH_PATH}"
        return os.environ | {"KUBECONFIG": str(self.kubeconfig), "PATH": path}

    def namespace_exec(
        self, argv: Sequence[str], *, stdin: str | None = None, timeout_seconds: float = 60
    ) -> str:
        """Run `argv` in the cluster's network and return what it prints.

        Raises ClusterError with what it wrote when it fails or does not end in time.
        """
        return _run(self.namespace_command(argv), self.environment(), stdin, timeout_seconds)

    def kubectl(
        self, *arguments: str, stdin: str | None = None, timeout_seconds: float = 60
    ) -> str:
        """Run kubectl as the administrator and return what it prints. Raises ClusterError."""
        return self.namespace_exec(
            ["kubectl", *arguments], stdin=stdin, timeout_seconds=timeout_seconds
        )

    def load_image(self, archive: Path) -> tuple[str, ...]:
        """Make the image of a docker archive known to the node and return its tags.

        An image that is already there under the same tags is not loaded again. Pods name it with
        `imagePullPolicy: Never` or `IfNotPresent`.
        """
        image = read_archive(archive)
        record = (
            self._layout.state
            / "images"
            / hashlib.sha256(" ".join(image.tags).encode()).hexdigest()
        )
        listed = self._node_exec(["ctr", "--namespace", "k8s.io", "images", "list", "--quiet"])
        known = record.exists() and record.read_text() == image.digest
        if not (known and set(image.tags) <= set(listed.split())):
            self._node_exec(
                ["ctr", "--namespace", "k8s.io", "images", "import", str(archive.resolve())]
            )
            record.parent.mkdir(exist_ok=True)
            record.write_text(image.digest)
        return image.tags

    def set_fake_gpus(self, count: int) -> None:
        """Give the node `count` GPUs that exist in its status only. The scheduler honours them."""
        if count < 0:
            raise ClusterError(f"fake GPUs {count}: use zero or more")
        pointer = GPU_RESOURCE.replace("/", "~1")
        patch = [
            {"op": "add", "path": f"/status/{field}/{pointer}", "value": str(count)}
            for field in ("capacity", "allocatable")
        ]
        self.kubectl(
            *("patch", "node", components.NODE, "--subresource=status", "--type=json"),
            *("--patch", json.dumps(patch)),
        )
        self._write("gpus", str(count))

    def issue_server_certificate(self, name: str, hosts: Sequence[str]) -> KeyPair:
        """A certificate of the cluster's authority for a TLS server, such as a proxy under test."""
        return Authority(self._layout.pki).server(name, hosts)

    # ---- faults ---------------------------------------------------------------------------------

    def stop_component(self, name: str, signal_number: signal.Signals = signal.SIGKILL) -> None:
        """End one component as a crash does, and wait for its end.

        With SIGTERM it ends in order; the API server then takes up to a minute for its watches.
        """
        process = self._running(name)
        process.send(signal_number)
        if not process.wait("dead", STOP_TIMEOUT_SECONDS):
            raise ClusterError(f"{name} (process {process.pid}) does not end: use SIGKILL")

    def start_component(self, name: str, timeout_seconds: float = 60) -> None:
        """Start a component that was stopped, and wait until it does its work again."""
        if self._state(name) != "dead":
            raise ClusterError(f"{name} runs already: use restart_component")
        self._spawn(name)
        self._await_component(name, timeout_seconds)
        if name == "kubelet" and (gpus := self._read("gpus")):
            self.set_fake_gpus(int(gpus))

    def restart_component(self, name: str, timeout_seconds: float = 60) -> None:
        """Stop and start one component, and wait until it does its work again."""
        self.stop_component(name)
        self.start_component(name, timeout_seconds)

    def pause_component(self, name: str) -> None:
        """Freeze one component: its connections stay open and nobody answers."""
        process = self._running(name)
        process.send(signal.SIGSTOP)
        # Its threads stop one after the other.
        if not process.wait("paused", STOP_TIMEOUT_SECONDS):
            raise ClusterError(
                f"{name} (process {process.pid}) does not pause: it is {process.state}"
            )

    def resume_component(self, name: str) -> None:
        """Let a frozen component go on."""
        self._running(name).send(signal.SIGCONT)

    # ---- inside ---------------------------------------------------------------------------------

    def _start(self, binaries: build.Binaries) -> None:
        begun = time.monotonic()
        layout = self._layout
        for folder in ("log", "pid", "config/cni", "kubeconfig", "bin", "etcd", "generated"):
            (layout.state / folder).mkdir(parents=True, mode=0o700)
        for folder in components.PRIVATE_DIRECTORIES.values():
            (layout.state / folder).mkdir()
        self._write("boot-id", boot_id())
        self._write("kubernetes", str(binaries.kubernetes))
        self._write_kubectl(binaries.kubernetes)
        for path, content in components.configuration(layout).items():
            path.write_text(content)
        self._make_certificates()
        self._make_node()
        for name in components.BEFORE_API:
            self._spawn(name)
        self._await_component("containerd", START_TIMEOUT_SECONDS)
        archive = layout.state / "pause.tar"
        write_archive(archive, components.PAUSE_IMAGE, binaries.pause)
        self.load_image(archive)
        self._await_component("kube-apiserver", START_TIMEOUT_SECONDS)
        self._report(f"the API server answers after {time.monotonic() - begun:.1f} s")
        for name in components.AFTER_API:
            self._spawn(name)
        # Pods cannot be created before this object exists.
        self._await(
            "kube-controller-manager",
            "the default service account",
            lambda: bool(self._get("serviceaccount", "default")),
            START_TIMEOUT_SECONDS,
        )
        for name in components.AFTER_API:
            self._await_component(name, START_TIMEOUT_SECONDS)
        self._report(f"the node is ready after {time.monotonic() - begun:.1f} s")

    def _write_kubectl(self, kubernetes: Path) -> None:
        """A kubectl of this cluster that works from anywhere on the machine, for root."""
        holder = shlex.quote(str(self._layout.pid(HOLDER)))
        # kubectl keeps what it learns by address, and every cluster of ours has the same.
        known = shlex.quote(str(self._layout.state / "kubectl-cache"))
        self.kubectl_program.write_text(
            "#!/bin/sh\n"
            f"read -r holder _ < {holder} || exit 1\n"
            f"export KUBECACHEDIR={known} KUBECONFIG={shlex.quote(str(self.kubeconfig))}\n"
            'exec nsenter "--net=/proc/$holder/ns/net" -- '
            f'{shlex.quote(str(kubernetes))} kubectl "$@"\n'
        )
        self.kubectl_program.chmod(0o755)

    def _make_certificates(self) -> None:
        authority = Authority(self._layout.pki)
        authority.create()
        for name, (user, group) in components.CLIENTS.items():
            authority.client(name, user, group)
        for name, hosts in components.SERVERS.items():
            authority.server(name, hosts)

    def _make_node(self) -> None:
        hierarchies = cgroups.hierarchies()
        # Another cluster of ours that runs has made the empty ones: the last to stop removes them.
        shared = bool(cgroups.find(GROUP_PREFIX))
        made = [
            path
            for path in map(Path, components.PRIVATE_DIRECTORIES)
            if not path.exists() or (shared and not any(path.iterdir()))
        ]
        self._write("made-directories", "\n".join(str(path) for path in made))
        for path in made:
            path.mkdir(parents=True, exist_ok=True)
        groups = cgroups.Groups.create(self._group_name, hierarchies)
        holder = spawn(
            ["unshare", "--net", "--mount", "--uts", "--cgroup", "sleep", "infinity"],
            self.log(HOLDER),
            groups.entrance,
            machine.SEARCH_PATH,
        )
        self._record(HOLDER, holder)
        self._await(
            HOLDER,
            "the namespaces",
            lambda: Path(f"/proc/{holder.pid}/comm").read_text() == "sleep\n",
            10,
        )
        groups.delegate(holder.pid)
        self._node_exec(["sh", "-ec", _node_script(hierarchies, self._layout.state)])

    def _remove(self) -> None:
        groups = cgroups.existing(self._group_name)
        if groups:
            groups.kill()
            groups.remove()
        state = self._layout.state
        # To remove a folder that another cluster of ours has a mount on would undo the mount.
        if not cgroups.find(GROUP_PREFIX):
            for made in (self._read("made-directories") or "").splitlines():
                with contextlib.suppress(OSError):  # somebody else uses it by now
                    Path(made).rmdir()
        if state.exists():
            shutil.rmtree(state)

    def _reusable(self, kubernetes: Path) -> bool:
        return self._read("kubernetes") == str(kubernetes) and self.status().healthy

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with build.locked(
            self.cache / "cluster.lock",
            lambda: self._report("waiting for another start or stop of the cluster"),
        ):
            yield

    def _spawn(self, name: str) -> None:
        executables = {each: machine.find_executable(each) for each in ("etcd", "containerd")}
        kubernetes = Path(self._read("kubernetes") or "")
        argv = components.command(name, self._layout, kubernetes, executables)
        groups = cgroups.existing(self._group_name)
        process = spawn(
            [*self._node_command(), *argv],
            self.log(name),
            groups.join if groups else (),
            machine.SEARCH_PATH,
        )
        self._record(name, process)

    def _await_component(self, name: str, timeout_seconds: float) -> None:
        checks: dict[str, Callable[[], object]] = {
            "etcd": lambda: self.kubectl("get", "--raw", "/readyz"),
            "containerd": lambda: self._node_exec(["ctr", "version"]),
            "kube-apiserver": lambda: self.kubectl("get", "--raw", "/readyz"),
            "kube-controller-manager": lambda: self._healthz(components.CONTROLLER_MANAGER_PORT),
            "kube-scheduler": lambda: self._healthz(components.SCHEDULER_PORT),
            "kubelet": lambda: (
                # The status may be of before a restart; the answer cannot.
                self.kubectl("get", "--raw", f"/api/v1/nodes/{components.NODE}/proxy/healthz")
                and self._node_ready()
            ),
            "kube-proxy": lambda: self.kubectl(
                *(
                    "--server",
                    f"https://{components.API_SERVICE_ADDRESS}",
                    "get",
                    "--raw",
                    "/readyz",
                )
            ),
        }
        self._await(name, f"{name} to work", checks[name], timeout_seconds)

    def _await(
        self, name: str, what: str, check: Callable[[], object], timeout_seconds: float
    ) -> None:
        """Wait until `check` is true; a component that ends meanwhile is an error at once."""
        deadline = time.monotonic() + timeout_seconds
        last = ""
        while True:
            try:
                if check():
                    return
            except (ClusterError, OSError) as error:
                last = f" ({error})"
            if self._state(name) == "dead":
                raise ClusterError(f"{name} ended; its last lines:\n{self._tail(name)}")
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"waited {timeout_seconds:.0f} s for {what}{last}; the last lines of {name}:\n"
                    f"{self._tail(name)}"
                )
            time.sleep(0.1)

    def _tail(self, name: str) -> str:
        log = self.log(name)
        return "\n".join(log.read_text(errors="replace").splitlines()[-15:]) if log.exists() else ""

    def _healthz(self, port: int) -> str:
        return self.kubectl("get", "--raw", "/healthz", f"--server=https://127.0.0.1:{port}")

    def _node_ready(self) -> bool:
        conditions = self._get("node", components.NODE).get("status", {}).get("conditions", [])
        return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

    def _get(self, kind: str, name: str) -> Any:
        answer = self.kubectl(
            *("get", kind, name, "--ignore-not-found", "--request-timeout=5s", "-o", "json"),
            timeout_seconds=10,
        )
        return json.loads(answer) if answer else {}

    def _node_command(self) -> list[str]:
        return [
            *("nsenter", f"--target={self.node_pid}", "--net", "--mount", "--uts", "--cgroup"),
            "--",
        ]

    def _node_exec(self, argv: Sequence[str], timeout_seconds: float = 300) -> str:
        """Run `argv` where containerd and the kubelet are: their network and their mounts."""
        environment = os.environ | {"PATH": machine.SEARCH_PATH}
        return _run([*self._node_command(), *argv], environment, None, timeout_seconds)

    def _holder(self) -> Process:
        holder = self._process(HOLDER)
        if holder is None or not holder.alive:
            raise ClusterError("the cluster does not run: `make demo KEEP=1` leaves one up")
        return holder

    def _running(self, name: str) -> Process:
        process = self._process(name)
        if process is None or not process.alive:
            raise ClusterError(f"{name} does not run: use start_component")
        return process

    def _state(self, name: str) -> str:
        process = self._process(name)
        return process.state if process else "dead"

    def _process(self, name: str) -> Process | None:
        if name not in {HOLDER, *components.COMPONENTS}:
            known = ", ".join(components.COMPONENTS)
            raise ClusterError(f"component {name!r}: use one of {known}")
        # A process id of another boot, or of a folder copied from elsewhere, means nothing.
        if self._read("boot-id") != boot_id():
            return None
        try:
            pid, start_ticks = self._layout.pid(name).read_text().split()
        except FileNotFoundError:
            return None
        return Process(int(pid), int(start_ticks))

    def _record(self, name: str, process: Process) -> None:
        self._layout.pid(name).write_text(f"{process.pid} {process.start_ticks}\n")

    def _read(self, name: str) -> str | None:
        try:
            return (self._layout.state / name).read_text()
        except FileNotFoundError:
            return None

    def _write(self, name: str, content: str) -> None:
        (self._layout.state / name).write_text(content)


def _node_script(hierarchies: Sequence[cgroups.Hierarchy], state: Path) -> str:
    """Shell commands that make the inside of the namespaces: mounts, host name, network."""
    lines = [
        "mount --make-rprivate /",
        # The machine's /sys shows the machine's network and the groups outside.
        "mount -t sysfs sysfs /sys",
    ]
    if hierarchies[0].unified:
        lines.append("mount -t cgroup2 cgroup2 /sys/fs/cgroup")
    else:
        lines.append("mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup")
        for each in hierarchies:
            # The option names a hierarchy without a controller ("name=systemd") needs "none" too.
            options = f"none,{each.options}" if "=" in each.options else each.options
            mount = shlex.quote(str(each.mount))
            lines.append(f"mkdir {mount} && mount -t cgroup -o {options} cgroup {mount}")
    for target, source in components.PRIVATE_DIRECTORIES.items():
        lines.append(f"mount --bind {shlex.quote(str(state / source))} {target}")
    return "\n".join(
        [
            *lines,
            # A pod's volumes may ask for mount propagation.
            "mount --make-rshared /",
            f"hostname {components.NODE}",
            "echo 1 > /proc/sys/net/ipv4/ip_forward",
            "ip link set lo up",
            # Both ends stay here: an interface with a carrier that leads nowhere.
            "ip link add node0 type veth peer name node1",
            "ip link set node1 up",
            "ip link set node0 up",
            f"ip address add {components.NODE_ADDRESS}/24 dev node0",
            # Without a route the kernel refuses a Service's address before it is translated. There
            # is no default route: whatever is outside fails at once.
            f"ip route add {components.SERVICE_CIDR} dev node0",
        ]
    )


def _run(
    command: Sequence[str], environment: dict[str, str], stdin: str | None, timeout_seconds: float
) -> str:
    shown = shlex.join(command)
    try:
        done = subprocess.run(
            command,
            env=environment,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ClusterError(f"`{shown}` did not end in {timeout_seconds:.0f} s") from error
    if done.returncode:
        raise ClusterError(f"`{shown}` failed: {(done.stderr or done.stdout).strip()}")
    return done.stdout
