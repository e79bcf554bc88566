"""The operator under test: as a pod from its image, or as a process that a test can kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from e2e.harness.api import DEPLOYMENT, LEASE, POD, SECRET, Api, ApiError, Json
from e2e.harness.installation import (
    ACCOUNT,
    REPOSITORY,
    SYSTEM_NAMESPACE,
    operator_deployment,
)
from e2e.harness.poll import eventually
from e2e.ports import free_port

DEPLOYMENT_NAME: Final = "ballonet-operator"
READY_SECONDS: Final = 60
# The operator promises to be gone 15 s after SIGTERM.
STOP_SECONDS: Final = 15
_IN_ACCOUNT: Final = (
    "mount -t tmpfs none /run && mkdir -p /run/secrets/kubernetes.io/serviceaccount && "
    'mount --bind "$0" /run/secrets/kubernetes.io/serviceaccount && exec "$@"'
)


@dataclass
class PodOperator:
    """The operator as it is shipped: a Deployment in its own namespace."""

    api: Api

    def start(self, env: Mapping[str, str] | None = None) -> None:
        """Apply the Deployment and wait until one fresh pod is ready."""
        # The image may be another one under the same tag.
        self.stop()
        self.api.apply(operator_deployment(dict(env or {})))
        self.api.patch(DEPLOYMENT, SYSTEM_NAMESPACE, DEPLOYMENT_NAME, {"spec": {"replicas": 1}})
        try:
            eventually(self.is_ready, "the operator's pod is ready", timeout_seconds=READY_SECONDS)
        except AssertionError as error:
            raise AssertionError(f"{error}; its log ends:\n{self.tail()}") from error

    def is_ready(self) -> bool:
        deployment = self.api.get(DEPLOYMENT, SYSTEM_NAMESPACE, DEPLOYMENT_NAME)
        status = deployment.get("status", {})
        return bool(
            status.get("observedGeneration") == deployment["metadata"]["generation"]
            and status.get("updatedReplicas") == 1
            and status.get("readyReplicas") == 1
            and status.get("replicas") == 1
        )

    def restart(self) -> None:
        """Delete the pod and wait for the next one to be ready."""
        (pod,) = self.pods()
        self.api.delete(POD, SYSTEM_NAMESPACE, pod["metadata"]["name"])
        eventually(
            lambda: all(p["metadata"]["uid"] != pod["metadata"]["uid"] for p in self.pods()),
            "the operator's pod is gone",
        )
        eventually(self.is_ready, "the operator's next pod is ready", timeout_seconds=READY_SECONDS)

    def stop(self) -> None:
        """Scale to zero and wait until the pod is gone."""
        if self.api.find(DEPLOYMENT, SYSTEM_NAMESPACE, DEPLOYMENT_NAME) is None:
            return
        self.api.patch(DEPLOYMENT, SYSTEM_NAMESPACE, DEPLOYMENT_NAME, {"spec": {"replicas": 0}})
        eventually(lambda: not self.pods(), "the operator's pod is gone")

    def pods(self) -> list[Json]:
        pods = self.api.list(POD, SYSTEM_NAMESPACE)
        return [p for p in pods if p["metadata"]["name"].startswith(f"{DEPLOYMENT_NAME}-")]

    def restarts(self) -> int:
        """Return how often a container of the running pod was started again."""
        return sum(
            status["restartCount"]
            for pod in self.pods()
            for status in pod["status"].get("containerStatuses", [])
        )

    def tail(self, lines: int = 40) -> str:
        """Return the end of the log; what cannot be read is said instead."""
        parts = []
        for pod in self.pods():
            name = pod["metadata"]["name"]
            try:
                parts.append(self.api.logs(SYSTEM_NAMESPACE, name, tailLines=str(lines)))
            except ApiError as error:
                parts.append(f"{name}: {error}")
        return "\n".join(parts)


@dataclass
class LocalOperator:
    """The operator as a process with the account's token, speaking to `server` (host, port).

    It finds token and authority where a pod would: a private mount namespace has them there.
    """

    api: Api
    server: tuple[str, int]
    folder: Path
    env: dict[str, str] = field(default_factory=dict)
    source: Path = REPOSITORY / "operator"
    account: str = ACCOUNT
    namespace: str = SYSTEM_NAMESPACE
    port: int = 0
    _process: subprocess.Popen[bytes] | None = None
    _secret: Json | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        if self._secret is not None:
            self.api.delete(SECRET, self.namespace, self._secret["metadata"]["name"])

    @property
    def log_file(self) -> Path:
        return self.folder / "operator.log"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the operator was not started"
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def rotate_token(self) -> None:
        """Write a new token; the one before is no longer valid (the server forgets it in 10 s)."""
        previous = self._secret
        self._secret = self.api.create(
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"generateName": "token-", "namespace": self.namespace},
            }
        )
        account = self.folder / "account"
        account.mkdir(parents=True, exist_ok=True)
        token = self.api.token_for(self.namespace, self.account, bound_to=self._secret)
        # Renamed over the old one, as the kubelet does: no reader sees half a token.
        (account / "token.new").write_text(token)
        (account / "token.new").rename(account / "token")
        (account / "ca.crt").write_bytes(self.api.ca_file.read_bytes())
        (account / "namespace").write_text(self.namespace)
        if previous is not None:
            self.api.delete(SECRET, self.namespace, previous["metadata"]["name"])

    def start(self, *, wait: bool = True) -> None:
        """Start the process; by default wait until it says that it is ready."""
        assert not self.is_alive, "the operator runs already"
        if self._secret is None:
            self.rotate_token()
        self.port = self.port or free_port()
        host, port = self.server
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": f"{self.source}:{REPOSITORY / 'probe'}",
            "PYTHONUNBUFFERED": "1",
            "HOME": str(self.folder),
            "KUBERNETES_SERVICE_HOST": host,
            "KUBERNETES_SERVICE_PORT": str(port),
            "BALLONET_LISTEN": f"127.0.0.1:{self.port}",
            # As a restarted container would: it takes up its own Lease at once.
            "BALLONET_IDENTITY": self.folder.name,
            **self.env,
        }
        command = ["unshare", "--mount", "sh", "-c", _IN_ACCOUNT, str(self.folder / "account")]
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, sys.executable, "-m", "ballonet", "operator"],
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd="/",
            )
        if wait:
            self.wait_ready()

    def wait_ready(self) -> None:
        def ready() -> bool:
            if not self.is_alive:
                raise RuntimeError(f"the operator ended with {self.exit_code}:\n{self.tail()}")
            return self.answers("/readyz")

        eventually(ready, "the operator process is ready", timeout_seconds=READY_SECONDS)

    def answers(self, path: str) -> bool:
        """Return whether the health endpoint answers 200."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def metrics(self) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=5) as answer:
            page: bytes = answer.read()
            return page.decode()

    def kill(self) -> None:
        """SIGKILL, as the kernel would: nothing is cleaned up."""
        # Another thread may start the next one as soon as this one has ended.
        process = self._process
        if process is not None:
            process.kill()
            process.wait(STOP_SECONDS)

    def stop(self) -> int | None:
        """SIGTERM; return the exit code.

        Raises:
            subprocess.TimeoutExpired: it did not end in time (it is killed then).
        """
        if self._process is None or not self.is_alive:
            return self.exit_code
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def tail(self, lines: int = 40) -> str:
        if not self.log_file.exists():
            return ""
        return "\n".join(self.log_file.read_text(errors="replace").splitlines()[-lines:])


def release_lease(api: Api) -> None:
    """Delete the Lease, so that the next operator need not wait for a killed one's to run out."""
    for lease in api.list(LEASE, SYSTEM_NAMESPACE):
        api.delete(LEASE, SYSTEM_NAMESPACE, lease["metadata"]["name"])
