"""A real Prometheus that finds the engine pods of all pools by itself, as in a user's cluster."""

from __future__ import annotations

import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Final, Self

import yaml

from e2e.harness.api import Json
from e2e.harness.poll import eventually
from e2e.ports import free_port
from e2e.prometheus import build

READY_SECONDS: Final = 30
SCRAPE_SECONDS: Final = 5
# Prometheus writes a label or annotation `a.b/c` as `a_b_c`.
POOL_LABEL: Final = "__meta_kubernetes_pod_label_ballonet_io_pool"


def configuration(kubeconfig: Path) -> Json:
    """Scrape every pod of a pool, and name pod and namespace as most installations do."""
    relabel = [
        {"source_labels": [POOL_LABEL], "regex": ".+", "action": "keep"},
        {
            "source_labels": ["__meta_kubernetes_pod_container_port_name"],
            "regex": "http",
            "action": "keep",
        },
        {"source_labels": ["__meta_kubernetes_namespace"], "target_label": "namespace"},
        {"source_labels": ["__meta_kubernetes_pod_name"], "target_label": "pod"},
    ]
    return {
        "global": {"scrape_interval": f"{SCRAPE_SECONDS}s", "scrape_timeout": "4s"},
        "scrape_configs": [
            {
                "job_name": "engines",
                "kubernetes_sd_configs": [{"role": "pod", "kubeconfig_file": str(kubeconfig)}],
                "relabel_configs": relabel,
            }
        ],
    }


class Prometheus:
    """A server with its data in `folder`, for the length of a `with` block."""

    def __init__(self, kubeconfig: Path, folder: Path) -> None:
        self._kubeconfig = kubeconfig
        self._folder = folder
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start it, with what it has stored before, and wait until it answers."""
        config = self._folder / "prometheus.yml"
        config.write_text(yaml.safe_dump(configuration(self._kubeconfig)))
        command = [
            str(build().prometheus),
            f"--config.file={config}",
            f"--storage.tsdb.path={self._folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
        ]
        with (self._folder / "prometheus.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd="/")
        eventually(self._is_ready, "Prometheus is ready", timeout_seconds=READY_SECONDS)

    def stop(self) -> None:
        """End it; its data stays."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(READY_SECONDS)
            self._process = None

    def _is_ready(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            log = (self._folder / "prometheus.log").read_text(errors="replace")
            raise RuntimeError(f"Prometheus ended:\n{log[-2000:]}")
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=2) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False
