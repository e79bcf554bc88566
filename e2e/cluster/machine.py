"""What the embedded cluster needs from the machine, and how to get it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from e2e.cluster.errors import ClusterError

# Executable -> Debian package that holds it.
PACKAGE_OF = {
    "etcd": "etcd-server",
    "containerd": "containerd",
    "ctr": "containerd",
    "containerd-shim-runc-v2": "containerd",
    "runc": "runc",
    "nft": "nftables",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "ip": "iproute2",
    "mount": "mount",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "setsid": "util-linux",
    "openssl": "openssl",
}
CNI_DIRECTORY = Path("/usr/lib/cni")
CNI_PLUGINS = ("host-local", "loopback", "ptp")
CNI_PACKAGE = "containernetworking-plugins"

# Packages whose system service must not run: the cluster starts its own process from their files.
SERVICES_OF_PACKAGE = {"etcd-server": "etcd", "containerd": "containerd"}

# Debian keeps the administrator's tools outside the PATH of an ordinary shell.
SEARCH_PATH = ":".join(
    (os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin")
)


def find_executable(name: str) -> str:
    """Absolute path of an executable that `missing_packages` has found to be there."""
    found = shutil.which(name, path=SEARCH_PATH)
    if found is None:
        package = PACKAGE_OF.get(name, name)
        raise ClusterError(f"{name} is not installed: run `apt-get install {package}`")
    return found


def missing_packages() -> list[str]:
    """Debian packages without which the cluster cannot start, sorted."""
    missing = {
        package
        for executable, package in PACKAGE_OF.items()
        if shutil.which(executable, path=SEARCH_PATH) is None
    }
    if not all((CNI_DIRECTORY / plugin).exists() for plugin in CNI_PLUGINS):
        missing.add(CNI_PACKAGE)
    return sorted(missing)


def cannot_isolate() -> str | None:
    """Why this process may not make the namespaces that the cluster lives in, or None."""
    if not sys.platform.startswith("linux"):
        return f"the embedded cluster needs Linux, this is {sys.platform}"
    if os.geteuid() != 0:
        return "the embedded cluster needs root (network and mount namespaces, containers)"
    missing = missing_packages()
    if missing:
        names = " ".join(missing)
        return f"missing Debian packages: {names} (run `python -m e2e.cluster deps` as root)"
    attempt = subprocess.run(
        ["unshare", "--net", "--mount", "--uts", "--cgroup", "true"],
        capture_output=True,
        text=True,
        check=False,
    )
    if attempt.returncode:
        return f"cannot make namespaces here: {attempt.stderr.strip()}"
    return None


def install_packages() -> list[str]:
    """Install the missing Debian packages with apt and return their names. Silent unless it fails.

    Raises ClusterError when apt is not there, this is not root, or apt fails.
    """
    missing = missing_packages()
    if not missing:
        return []
    if os.geteuid() != 0:
        raise ClusterError(f"not root: ask an administrator to install {' '.join(missing)}")
    if shutil.which("apt-get") is None:
        raise ClusterError(f"no apt-get on this machine: install {' '.join(missing)} another way")
    # The packages would start system services of the same names; the customary way to say no is
    # this file, and whoever has one already has said so.
    policy = Path("/usr/sbin/policy-rc.d")
    ours = not policy.exists()
    if ours:
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    try:
        _apt_get("update")
        _apt_get("install", "--yes", "--no-install-recommends", *missing)
    finally:
        if ours:
            policy.unlink()
    for package in missing:
        service = SERVICES_OF_PACKAGE.get(package)
        if service and shutil.which("systemctl"):
            # Without this the service would come with the next boot.
            subprocess.run(["systemctl", "disable", service], capture_output=True, check=False)
    return missing


def _apt_get(*arguments: str) -> None:
    done = subprocess.run(
        ["apt-get", "-qq", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
    )
    if done.returncode:
        raise ClusterError(f"apt-get {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")
