"""One real vLLM as a process of this machine, to record what its metrics say."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from e2e import vllm
from e2e.cache import cache_root
from e2e.harness.real_engine import ARGS
from e2e.model import make_model
from e2e.ports import free_port

START_SECONDS: Final = 240
STOP_SECONDS: Final = 30


class Engine:
    """`vllm serve` on a free port of loopback, for the length of a `with` block.

    `variables` are set in its environment beside those that it needs, or instead of them.
    """

    def __init__(
        self,
        args: Sequence[str],
        log: Path,
        version: str = vllm.DEFAULT_VERSION,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.port = free_port()
        self.version = version
        self._args = args
        self._log = log
        self._variables = dict(variables or {})
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        programs = vllm.build() / "bin"
        overlay = vllm.build_overlay(self.version) if self.version in vllm.overlays() else ""
        model = make_model(cache_root() / "model")
        command = [str(programs / "python"), str(programs / "vllm"), "serve", str(model)]
        listen = ["--host", "127.0.0.1", "--port", str(self.port), "--served-model-name", "tiny"]
        environment = {
            "PATH": f"{programs}:/usr/bin:/bin",
            "PYTHONPATH": str(overlay),
            "HOME": "/tmp",
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            **self._variables,
        }
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, *listen, *ARGS, *self._args],
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            self._await_health()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _stop(self) -> None:
        assert self._process is not None
        # Its engine cores are of the same session, and one of them may be stopped.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGCONT)
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_SECONDS)
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def signal_core(self, number: signal.Signals) -> None:
        """Send a signal to the engine core alone; the API server goes on."""
        assert self._process is not None
        for pid in _children(self._process.pid):
            if "EngineCore" in Path(f"/proc/{pid}/cmdline").read_text():
                os.kill(pid, number)
                return
        raise LookupError("the server has no engine core")

    def page(self) -> str:
        """Return the metrics page.

        Raises:
            OSError: no answer within some seconds.
        """
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=10) as answer:
            text: bytes = answer.read()
        return text.decode()

    def _await_health(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            try:
                urllib.request.urlopen(f"{self.url}/health", timeout=5).close()
                return
            except (urllib.error.URLError, OSError):
                time.sleep(0.5)
        raise RuntimeError(f"the engine did not start: see {self._log}")


def _children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]
