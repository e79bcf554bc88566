"""The stub engine of a pod: its state, and what a test tells it while it runs."""

from __future__ import annotations

import json
import urllib.request
from dataclasses import dataclass
from typing import Any

from e2e.harness.api import Json


@dataclass(frozen=True)
class Stub:
    """The stub engine that answers at `address`."""

    address: str
    port: int = 8000

    @classmethod
    def of(cls, pod: Json) -> Stub:
        return cls(pod["status"]["podIP"])

    @property
    def url(self) -> str:
        return f"http://{self.address}:{self.port}"

    def state(self) -> Json:
        return self._call("/stub", None)

    def change(self, **settings: Any) -> Json:
        """Change settings live; e2e/images/stub_engine/vllm.py lists them."""
        return self._call("/stub", settings)

    def _call(self, path: str, body: Json | None) -> Json:
        request = urllib.request.Request(
            self.url + path,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            state: Json = json.load(answer)
            return state
