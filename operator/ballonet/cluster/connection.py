"""How the API server is reached: by ServiceAccount inside a pod, by kubeconfig elsewhere."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import yaml
from kubernetes.aio import config
from kubernetes.aio.client import Configuration

_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
# The client library reads a kubeconfig without a look at its shape.
_UNREADABLE: Final = (
    config.ConfigException,
    OSError,
    yaml.YAMLError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
)
# It also warns of a missing file, which the error says already, and once more for each try.
logging.getLogger(config.kube_config.__name__).setLevel(logging.ERROR)


class NoConnectionError(RuntimeError):
    """Nothing says where the API server is or who asks; the message says what to do."""


@dataclass(frozen=True)
class Connection:
    """Where the API server is and as whom it is asked; ``authorization`` is the header's value."""

    server: str
    authorization: str | None = None
    ca_path: str | None = None
    certificate_path: str | None = None
    key_path: str | None = None
    verify_tls: bool = True

    @property
    def tls(self) -> Connection:
        """Everything but the token."""
        return replace(self, authorization=None)

    def ssl_context(self) -> ssl.SSLContext:
        """Return a fresh TLS context that trusts the CA and shows the client certificate."""
        context = ssl.create_default_context(cafile=self.ca_path)
        if self.certificate_path:
            context.load_cert_chain(self.certificate_path, self.key_path)
        if not self.verify_tls:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    def __repr__(self) -> str:
        """Leave the credentials out, so that they never reach a log."""
        return f"Connection(server={self.server!r})"


async def connect(context: str | None = None) -> Connection:
    """Read how to reach the API server, afresh: tokens and certificates are rotated.

    Inside a pod the ServiceAccount is used unless a kubeconfig context is named.

    Raises:
        NoConnectionError: there is neither a ServiceAccount nor a usable kubeconfig.
    """
    if context is None and _in_cluster():
        return await asyncio.to_thread(_from_service_account)
    configuration = Configuration()
    load: Any = config.load_kube_config
    try:
        await load(context=context, client_configuration=configuration)
    except _UNREADABLE as error:
        raise NoConnectionError(
            f"cannot tell how to reach the API server: {_fault(error)}; run in a pod with a "
            "ServiceAccount or set KUBECONFIG"
        ) from error
    return _from_configuration(configuration)


def own_namespace() -> str | None:
    """Return the namespace of the pod that this runs in, or None outside of one."""
    path = _ACCOUNT / "namespace"
    return path.read_text(encoding="utf-8").strip() if path.is_file() else None


def context_namespace(context: str | None = None) -> str:
    """Return the namespace that a person means who names none, as kubectl does."""
    if context is None and _in_cluster():
        return own_namespace() or "default"
    listed: Any = config.kube_config.list_kube_config_contexts
    try:
        contexts, current = listed()
    except _UNREADABLE:
        return "default"
    named = next((c for c in contexts if c["name"] == context), current)
    return named.get("context", {}).get("namespace") or "default"


def _in_cluster() -> bool:
    return "KUBERNETES_SERVICE_HOST" in os.environ and (_ACCOUNT / "token").is_file()


def _fault(error: Exception) -> str:
    """Return what is wrong with the kubeconfig, without a token that may stand in it."""
    places = config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION
    if not any(Path(place).expanduser().is_file() for place in places.split(os.pathsep)):
        return f"there is no kubeconfig at {places}"
    if isinstance(error, config.ConfigException | OSError):
        return str(error).partition("/{")[0]  # the library names an entry by all that it holds
    return f"{places} is no kubeconfig"


def _from_service_account() -> Connection:
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    token = (_ACCOUNT / "token").read_text(encoding="utf-8").strip()
    return Connection(
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        authorization=f"Bearer {token}",
        ca_path=str(_ACCOUNT / "ca.crt"),
    )


def _from_configuration(configuration: Any) -> Connection:
    return Connection(
        server=configuration.host.rstrip("/"),
        authorization=configuration.api_key.get("BearerToken"),
        ca_path=configuration.ssl_ca_cert,
        certificate_path=configuration.cert_file,
        key_path=configuration.key_file,
        verify_tls=configuration.verify_ssl,
    )
