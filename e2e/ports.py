"""Ports of loopback for whatever listens."""

from __future__ import annotations

import socket


def free_port() -> int:
    """Return one that nothing listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
