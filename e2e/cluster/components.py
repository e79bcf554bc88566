"""The settings of every component: which files it reads and how it is called. Pure.

Where a setting differs from the component's default, the comment says why. Everything here runs in
one network namespace, so addresses and ports are fixed and cannot collide with the machine's.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NODE = "node1"
NODE_ADDRESS = "10.90.0.1"
API_URL = f"https://{NODE_ADDRESS}:6443"
POD_CIDR = "10.91.0.0/24"
SERVICE_CIDR = "10.96.0.0/16"
API_SERVICE_ADDRESS = "10.96.0.1"
# Without one the kubelet writes a MissingClusterDNS event for every pod. Nothing listens there, so
# a look-up fails at once; at an unused Service address, which kube-proxy drops, it takes 20 s.
DNS_ADDRESS = NODE_ADDRESS
ETCD_URL = "http://127.0.0.1:2379"
CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
CONTROLLER_MANAGER_PORT = 10257
SCHEDULER_PORT = 10259
PAUSE_IMAGE = "localhost/ballonet/pause:dev"
# The operator's namespace; its service accounts have their reads recorded, not only their writes.
OPERATOR_NAMESPACE = "ballonet-system"

# Client certificates, each with a kubeconfig of the same name: name -> (user, group).
CLIENTS: dict[str, tuple[str, str | None]] = {
    "admin": ("ballonet-admin", "system:masters"),
    "kube-controller-manager": ("system:kube-controller-manager", None),
    "kube-scheduler": ("system:kube-scheduler", None),
    "kube-proxy": ("system:kube-proxy", None),
    "kubelet": (f"system:node:{NODE}", "system:nodes"),
    # The API server as the kubelet's client: logs, exec, port-forward.
    "kubelet-client": ("kube-apiserver-kubelet-client", "system:masters"),
    # The API server as the client of extension API servers.
    "front-proxy": ("front-proxy", None),
}
# Serving certificates: name -> the names and addresses they are valid for.
SERVERS: dict[str, tuple[str, ...]] = {
    "kube-apiserver-tls": (
        *("kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost"),
        *(NODE_ADDRESS, API_SERVICE_ADDRESS, "127.0.0.1"),
    ),
    # The controller manager and the scheduler.
    "loopback-tls": ("localhost", "127.0.0.1"),
    "kubelet-tls": (NODE, NODE_ADDRESS, "127.0.0.1"),
}

# Folders that containerd, the kubelet and the CNI library use whatever their settings say; in the
# cluster's mount namespace a folder of the state lies over each.
PRIVATE_DIRECTORIES: dict[str, str] = {
    "/run/containerd": "run-containerd",
    "/var/lib/cni": "cni-results",
    "/var/lib/kubelet": "kubelet",
    "/var/log/containers": "container-logs",
}

# In the order of start. Those before AFTER_API may start before the API server answers.
BEFORE_API = ("etcd", "containerd", "kube-apiserver")
# The controller manager ends when it starts before the API server is ready.
AFTER_API = ("kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy")
COMPONENTS = BEFORE_API + AFTER_API


@dataclass(frozen=True)
class Layout:
    """Paths of the cluster's state: everything lies below `state` and goes with it."""

    state: Path

    @property
    def pki(self) -> Path:
        return self.state / "pki"

    @property
    def audit_log(self) -> Path:
        return self.state / "log" / "audit.jsonl"

    def log(self, component: str) -> Path:
        return self.state / "log" / f"{component}.log"

    def pid(self, name: str) -> Path:
        return self.state / "pid" / name

    def kubeconfig(self, user: str) -> Path:
        return self.state / "kubeconfig" / user

    def config(self, name: str) -> Path:
        return self.state / "config" / name


def configuration(layout: Layout) -> dict[Path, str]:
    """Every settings file with its content. JSON wherever YAML is asked for: it is YAML too."""
    files: dict[Path, Any] = {
        layout.config("audit-policy"): _audit_policy(),
        layout.config("kube-scheduler"): {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False},
            # The default of 50 requests a second sets the pace when hundreds of pods arrive.
            "clientConnection": {
                "kubeconfig": str(layout.kubeconfig("kube-scheduler")),
                "qps": 500,
                "burst": 1000,
            },
        },
        layout.config("kubelet"): _kubelet(layout),
        layout.config("kube-proxy"): {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "nftables",
            "hostnameOverride": NODE,
            "clientConnection": {"kubeconfig": str(layout.kubeconfig("kube-proxy"))},
            "clusterCIDR": POD_CIDR,
            # These are settings of the machine, not of the namespace: leave them as they are.
            "conntrack": {
                "maxPerCore": 0,
                "min": 0,
                "tcpEstablishedTimeout": "0s",
                "tcpCloseWaitTimeout": "0s",
            },
            "oomScoreAdj": 0,
        },
        layout.config("cni/10-pods.conflist"): {
            "cniVersion": "1.0.0",
            "name": "pods",
            # Point to point and routed: a bridge would carry a Service's answers past the address
            # translation unless the machine has br_netfilter.
            "plugins": [
                {
                    "type": "ptp",
                    "ipam": {
                        "type": "host-local",
                        "dataDir": str(layout.state / "cni-addresses"),
                        "ranges": [[{"subnet": POD_CIDR}]],
                        "routes": [{"dst": "0.0.0.0/0"}],
                    },
                }
            ],
        },
    }
    for user in CLIENTS:
        files[layout.kubeconfig(user)] = _kubeconfig(layout, user)
    texts = {path: json.dumps(content, indent=1) + "\n" for path, content in files.items()}
    texts[layout.config("containerd.toml")] = _containerd(layout)
    return texts


def command(
    component: str, layout: Layout, kubernetes: Path, executables: dict[str, str]
) -> list[str]:
    """How a component is called. `executables` maps the names of Debian's programs to paths."""
    pki = layout.pki
    kubeconfig = layout.kubeconfig(component)
    authenticated = [
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        "--bind-address=127.0.0.1",
        f"--tls-cert-file={pki / 'loopback-tls.crt'}",
        f"--tls-private-key-file={pki / 'loopback-tls.key'}",
    ]
    match component:
        case "etcd":
            return [
                executables["etcd"],
                f"--data-dir={layout.state / 'etcd'}",
                f"--listen-client-urls={ETCD_URL}",
                f"--advertise-client-urls={ETCD_URL}",
                "--listen-peer-urls=http://127.0.0.1:2380",
                "--log-level=warn",
                # The data dies with the cluster; waiting for the disk would only slow it down.
                "--unsafe-no-fsync",
            ]
        case "containerd":
            return [executables["containerd"], f"--config={layout.config('containerd.toml')}"]
        case "kube-apiserver":
            arguments = [
                f"--etcd-servers={ETCD_URL}",
                f"--advertise-address={NODE_ADDRESS}",
                "--secure-port=6443",
                f"--tls-cert-file={pki / 'kube-apiserver-tls.crt'}",
                f"--tls-private-key-file={pki / 'kube-apiserver-tls.key'}",
                f"--client-ca-file={pki / 'ca.crt'}",
                f"--service-account-key-file={pki / 'service-account.key'}",
                f"--service-account-signing-key-file={pki / 'service-account.key'}",
                "--service-account-issuer=https://kubernetes.default.svc",
                "--authorization-mode=Node,RBAC",
                "--enable-admission-plugins=NodeRestriction",
                f"--service-cluster-ip-range={SERVICE_CIDR}",
                f"--kubelet-client-certificate={pki / 'kubelet-client.crt'}",
                f"--kubelet-client-key={pki / 'kubelet-client.key'}",
                f"--kubelet-certificate-authority={pki / 'ca.crt'}",
                "--kubelet-preferred-address-types=InternalIP",
                # The other components ask for this authority, and extension API servers trust it.
                f"--requestheader-client-ca-file={pki / 'ca.crt'}",
                "--requestheader-allowed-names=front-proxy",
                "--requestheader-username-headers=X-Remote-User",
                "--requestheader-group-headers=X-Remote-Group",
                "--requestheader-extra-headers-prefix=X-Remote-Extra-",
                f"--proxy-client-cert-file={pki / 'front-proxy.crt'}",
                f"--proxy-client-key-file={pki / 'front-proxy.key'}",
                "--allow-privileged=true",
                f"--audit-policy-file={layout.config('audit-policy')}",
                f"--audit-log-path={layout.audit_log}",
                # Megabytes; a rotation would hide writes from whoever counts them.
                "--audit-log-maxsize=2000",
                f"--cert-dir={layout.state / 'generated'}",
            ]
        case "kube-controller-manager":
            arguments = [
                *authenticated,
                f"--secure-port={CONTROLLER_MANAGER_PORT}",
                f"--root-ca-file={pki / 'ca.crt'}",
                f"--service-account-private-key-file={pki / 'service-account.key'}",
                "--use-service-account-credentials=true",
                "--leader-elect=false",
                # With the default of 20 requests a second the first start takes four seconds more.
                "--kube-api-qps=300",
                "--kube-api-burst=500",
                # Two busy cores can starve the kubelet for longer than the default of 50 s, and its
                # pods would count as not ready.
                "--node-monitor-grace-period=120s",
            ]
        case "kube-scheduler":
            arguments = [
                *authenticated[1:],
                f"--secure-port={SCHEDULER_PORT}",
                f"--config={layout.config('kube-scheduler')}",
            ]
        case "kubelet":
            arguments = [
                f"--config={layout.config('kubelet')}",
                f"--kubeconfig={kubeconfig}",
                f"--hostname-override={NODE}",
                f"--node-ip={NODE_ADDRESS}",
            ]
        case "kube-proxy":
            arguments = [f"--config={layout.config('kube-proxy')}"]
        case _:
            raise ValueError(f"component {component!r}: use one of {', '.join(COMPONENTS)}")
    return [str(kubernetes), component, *arguments]


def _kubeconfig(layout: Layout, user: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": "ballonet",
                "cluster": {"server": API_URL, "certificate-authority": str(layout.pki / "ca.crt")},
            }
        ],
        "users": [
            {
                "name": user,
                "user": {
                    "client-certificate": str(layout.pki / f"{user}.crt"),
                    "client-key": str(layout.pki / f"{user}.key"),
                },
            }
        ],
        "contexts": [{"name": "ballonet", "context": {"cluster": "ballonet", "user": user}}],
        "current-context": "ballonet",
    }


def _audit_policy() -> dict[str, Any]:
    return {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        # One line a request, two for a watch (it begins, it ends).
        "omitStages": ["RequestReceived"],
        "rules": [
            {
                "level": "Metadata",
                "verbs": ["create", "update", "patch", "delete", "deletecollection"],
            },
            {"level": "Metadata", "userGroups": [f"system:serviceaccounts:{OPERATOR_NAMESPACE}"]},
            {"level": "None"},
        ],
    }


def _kubelet(layout: Layout) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(layout.pki / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(layout.pki / "kubelet-tls.crt"),
        "tlsPrivateKeyFile": str(layout.pki / "kubelet-tls.key"),
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "podLogsDir": str(layout.state / "pod-logs"),
        # Both generations of control groups, without systemd.
        "failCgroupV1": False,
        "cgroupDriver": "cgroupfs",
        "failSwapOn": False,
        # Lowering the score takes a right that root in a container may not have.
        "oomScoreAdj": 0,
        "clusterDNS": [DNS_ADDRESS],
        "clusterDomain": "cluster.local",
        "resolvConf": "",
        # kube-proxy uses nftables, so nobody reads the chains that the kubelet would make.
        "makeIPTablesUtilChains": False,
        "nodeStatusUpdateFrequency": "5s",
        # Images are loaded by hand and cannot be pulled again: never collect them.
        "imageGCHighThresholdPercent": 100,
        # Once the kubelet has pulled an image, it refuses the same image under another name that
        # was loaded by hand (ErrImageNeverPull) unless it is told not to verify.
        "imagePullCredentialsVerificationPolicy": "NeverVerify",
        "evictionHard": {
            "memory.available": "200Mi",
            "nodefs.available": "2%",
            "nodefs.inodesFree": "1%",
            "imagefs.available": "2%",
        },
    }


def _containerd(layout: Layout) -> str:
    # Strings of TOML and of JSON are written alike.
    quoted = json.dumps
    return f"""\
version = 2
root = {quoted(str(layout.state / "containerd"))}
state = "/run/containerd"
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs",
]
[grpc]
  address = "{CONTAINERD_SOCKET}"
[plugins."io.containerd.internal.v1.opt"]
  path = {quoted(str(layout.state / "containerd-opt"))}
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  # Root without CAP_SYS_RESOURCE cannot lower a score; every sandbox would fail.
  restrict_oom_score_adj = true
  # The pods' network namespaces then end with the cluster's mount namespace.
  netns_mounts_under_state_dir = true
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "/usr/lib/cni"
  conf_dir = {quoted(str(layout.config("cni")))}
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
"""
