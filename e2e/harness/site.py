"""The cluster that scenarios, demo and benchmarks run against."""

from __future__ import annotations

import os
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster import Cluster, unavailable_reason
from e2e.harness.api import Api
from e2e.harness.audit import AuditLog


class UnusableError(Exception):
    """There is no cluster to run against; the text says why and what to do."""


@dataclass(frozen=True)
class Site:
    """The cluster under test. `embedded` and `audit` are None on a cluster of another kind."""

    api: Api
    kubeconfig: Path
    embedded: Cluster | None
    audit: AuditLog | None
    context: str | None

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Run kubectl as a person would and return what it prints.

        Raises:
            AssertionError: it failed; the message holds what it said.
        """
        context = [f"--context={self.context}"] if self.context else []
        command = ["kubectl", f"--kubeconfig={self.kubeconfig}", *context, *arguments]
        path = os.environ["PATH"]
        if self.embedded is not None:
            path = self.embedded.environment()["PATH"]
        done = subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            env=os.environ | {"PATH": path},
        )
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr.strip()}"
        return done.stdout


def find_site() -> Site:
    """Return the embedded cluster, or the one whose kube context BALLONET_E2E_CONTEXT names.

    No other context is ever used, whatever a kubeconfig says is current.

    Raises:
        UnusableError: there is none, or it cannot be reached from here.
    """
    context = os.environ.get("BALLONET_E2E_CONTEXT")
    if context:
        kubeconfig = Path(os.environ.get("KUBECONFIG") or Path.home() / ".kube" / "config")
        found = Site(Api.from_kubeconfig(kubeconfig, context), kubeconfig, None, None, context)
    else:
        reason = unavailable_reason()
        if reason:
            raise UnusableError(reason)
        cluster = Cluster()
        if not cluster.status().healthy:
            raise UnusableError(
                "the embedded cluster does not run: python -m e2e.cluster start --gpus 4"
            )
        api = Api.from_kubeconfig(cluster.kubeconfig)
        found = Site(api, cluster.kubeconfig, cluster, AuditLog(cluster.audit_log), None)
    try:
        socket.create_connection((found.api.host, found.api.port), timeout=5).close()
    except OSError as error:
        raise UnusableError(
            f"{found.api.server} cannot be reached ({error}): "
            "run this through python -m e2e.cluster exec -- COMMAND"
        ) from error
    return found
