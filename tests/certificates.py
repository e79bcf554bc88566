"""Certificates of 127.0.0.1 for servers of tests."""

from __future__ import annotations

import subprocess
from pathlib import Path


def certificate(folder: Path, name: str = "tls") -> tuple[Path, Path]:
    """Make a certificate that signs itself, and return it and its key."""
    made, key = folder / f"{name}.crt", folder / f"{name}.key"
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 "
        f"-subj /CN={name} -addext subjectAltName=IP:127.0.0.1"
    )
    subprocess.run(
        [*command.split(), "-keyout", key, "-out", made], check=True, capture_output=True
    )
    return made, key
