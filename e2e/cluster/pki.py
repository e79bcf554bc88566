"""Certificates: one authority for the cluster, made anew at every start."""

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.errors import ClusterError

# A cluster lives for hours; the date only has to be beyond any of them.
VALID_DAYS = 365
CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc")


@dataclass(frozen=True)
class KeyPair:
    certificate: Path
    key: Path


@dataclass(frozen=True)
class Authority:
    """The certificate authority whose files lie in `directory`."""

    directory: Path

    @property
    def certificate(self) -> Path:
        return self.directory / "ca.crt"

    @property
    def service_account_key(self) -> Path:
        return self.directory / "service-account.key"

    def create(self) -> None:
        """Make the authority and the key that signs service account tokens."""
        self.directory.mkdir(mode=0o700)
        _openssl(
            *("req", "-x509", *CURVE, "-days", str(VALID_DAYS), "-subj", "/CN=ballonet-e2e"),
            *("-addext", "keyUsage=critical,keyCertSign,digitalSignature"),
            *("-keyout", self.directory / "ca.key", "-out", self.certificate),
        )
        _openssl("genrsa", "-out", self.service_account_key, "2048")

    def client(self, name: str, user: str, group: str | None = None) -> KeyPair:
        """A certificate that authenticates `user`, a member of `group`, to the API server."""
        subject = f"/O={group}/CN={user}" if group else f"/CN={user}"
        return self._issue(name, subject, ("extendedKeyUsage=clientAuth",))

    def server(self, name: str, hosts: Sequence[str]) -> KeyPair:
        """A certificate that serves TLS at the given DNS names and IP addresses."""
        names = ",".join(
            f"IP:{host}" if host.replace(".", "").isdigit() else f"DNS:{host}" for host in hosts
        )
        extensions = ("extendedKeyUsage=serverAuth", f"subjectAltName={names}")
        return self._issue(name, f"/CN={hosts[0]}", extensions)

    def _issue(self, name: str, subject: str, extensions: Sequence[str]) -> KeyPair:
        pair = KeyPair(self.directory / f"{name}.crt", self.directory / f"{name}.key")
        additions = [part for extension in extensions for part in ("-addext", extension)]
        _openssl(
            *("req", "-x509", *CURVE, "-days", str(VALID_DAYS), "-subj", subject),
            *("-CA", self.certificate, "-CAkey", self.directory / "ca.key"),
            *("-addext", "basicConstraints=critical,CA:FALSE"),
            *("-addext", "keyUsage=critical,digitalSignature", *additions),
            *("-keyout", pair.key, "-out", pair.certificate),
        )
        return pair


def _openssl(*arguments: str | Path) -> None:
    command = ["openssl", *(str(argument) for argument in arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ClusterError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
