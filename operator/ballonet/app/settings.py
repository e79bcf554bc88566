"""Settings of the operator process: flags win over BALLONET_* variables, these over defaults."""

from __future__ import annotations

import argparse
import socket
import uuid
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints
from pydantic import ValidationError as PydanticError
from pydantic.fields import FieldInfo

from ballonet.cluster.connection import own_namespace

PREFIX: Final = "BALLONET_"
_LABEL: Final = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
# A port above 65535 would be taken for another one.
_LISTEN: Final = (
    r"^(\[[0-9a-fA-F:]+\]|[^:\[\]]*):"
    r"([0-9]{1,4}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])$"
)
_ABSOLUTE: Final = r"^/"
_FORMS: Final = {
    _LABEL: "use a-z, 0-9 and -, at most 63 characters",
    _LISTEN: "use HOST:PORT, or :PORT for all addresses; a port is at most 65535",
    _ABSOLUTE: "use an absolute path",
}

Namespace = Annotated[str, StringConstraints(pattern=_LABEL)]


class SettingsError(ValueError):
    """A setting that cannot be used; the message names it, its value and what to give instead."""


class LogLevel(StrEnum):
    """How much is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """How log lines look."""

    JSON = "json"
    CONSOLE = "console"


class Switch(StrEnum):
    """A setting that is on or off."""

    ON = "on"
    OFF = "off"


def _split(value: Any) -> Any:
    if isinstance(value, str):
        return tuple(part for part in (part.strip() for part in value.split(",")) if part)
    return value


def _set(value: Any) -> Any:
    return tuple(sorted(set(_split(value)))) if isinstance(value, str) else value


def _own_identity() -> str:
    # Two processes of one host must never take each other for themselves.
    return f"{socket.gethostname()}_{uuid.uuid4().hex[:8]}"


class Settings(BaseModel):
    """Everything that can be set. ``namespaces`` empty means all of the cluster."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    namespaces: Annotated[tuple[Namespace, ...], BeforeValidator(_set)] = Field(
        (), description="Namespaces to serve, comma-separated; empty means the whole cluster."
    )
    namespace: Namespace = Field(
        default_factory=lambda: own_namespace() or "default",
        description="The operator's own namespace, where its Lease lives.",
    )
    lease_name: Annotated[str, StringConstraints(pattern=_LABEL)] = Field(
        "ballonet", description="Name of the Lease that lets one operator reconcile at a time."
    )
    identity: Annotated[str, StringConstraints(min_length=1, max_length=128)] = Field(
        default_factory=_own_identity,
        description="Name in the Lease; unique among all processes. In a pod its name: a restarted "
        "container then takes its Lease up again at once.",
    )
    workers: Annotated[int, Field(ge=1, le=64)] = Field(
        4, description="Pools that are worked on at the same time."
    )
    listen: Annotated[str, StringConstraints(pattern=_LISTEN)] = Field(
        "127.0.0.1:8080",
        description="Where /livez, /readyz and /metrics are served; :8080 means on all addresses.",
    )
    log_level: LogLevel = Field(LogLevel.INFO, description="Least level that is logged.")
    log_format: LogFormat = Field(LogFormat.JSON, description="JSON lines or a console's lines.")
    kube_context: str | None = Field(
        None,
        description="Context of the kubeconfig; absent means the pod's own ServiceAccount, else "
        "the current context.",
    )
    api_timeout_seconds: Annotated[int, Field(ge=1, le=300)] = Field(
        30, description="Longest time of one call to the API server."
    )
    resync_seconds: Annotated[int, Field(ge=10, le=86_400)] = Field(
        600, description="How often all pools are looked at without an event."
    )
    streaming_lists: Switch = Field(
        Switch.OFF, description="First lists as streams, which Kubernetes 1.34 and later serve."
    )

    catalog: Annotated[tuple[str, ...], BeforeValidator(_split)] = Field(
        (),
        description="Files of own devices and models, comma-separated, each over those before it; "
        "of a folder all that end in .yaml, .yml or .json. Read at the start.",
    )
    prometheus_connections: Annotated[str, StringConstraints(pattern=_ABSOLUTE)] | None = Field(
        None,
        description="File of the Prometheus connections that pools may name, as an absolute path. "
        "Read whenever it is used, as are the files that it names.",
    )

    @property
    def installation(self) -> str:
        """What marks the objects of this installation: its Lease."""
        return f"{self.namespace}/{self.lease_name}"

    @property
    def address(self) -> tuple[str | None, int]:
        """Host (None: all addresses) and port to listen on."""
        host, _, port = self.listen.rpartition(":")
        return host.strip("[]") or None, int(port)


def variable(field: str) -> str:
    """Return the environment variable of a setting."""
    return PREFIX + field.upper()


def flag(field: str) -> str:
    """Return the command-line flag of a setting."""
    return "--" + field.replace("_", "-")


def load(environ: Mapping[str, str], arguments: Sequence[str] = ()) -> Settings:
    """Return the settings of an environment and of command-line arguments.

    Raises:
        SettingsError: a value cannot be used, or a flag is unknown.
    """
    given = _given_variables(environ) | _given_flags(arguments)
    try:
        return Settings.model_validate({name: value for name, (value, _) in given.items()})
    except PydanticError as error:
        problems = []
        for problem in error.errors():
            name = str(problem["loc"][0])
            value, where = given.get(name, ("", variable(name)))
            form = _FORMS.get(problem.get("ctx", {}).get("pattern", ""))
            problems.append(f"{where}={value!r}: {form or problem['msg']}")
        raise SettingsError("; ".join(problems)) from error


def _given_variables(environ: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Return the settings that variables give; an empty variable counts as absent."""
    by_variable = {variable(name): name for name in Settings.model_fields}
    return {
        by_variable[key]: (value, key)
        for key, value in environ.items()
        if key in by_variable and value != ""
    }


def _given_flags(arguments: Sequence[str]) -> dict[str, tuple[str, str]]:
    parser = argument_parser()
    parsed, unknown = parser.parse_known_args(list(arguments))
    if unknown:
        raise SettingsError(f"unknown argument {unknown[0]!r}: see --help")
    return {name: (value, flag(name)) for name, value in vars(parsed).items() if value is not None}


def argument_parser() -> argparse.ArgumentParser:
    """Return the parser of the operator's flags."""
    parser = argparse.ArgumentParser(
        prog="ballonet operator",
        description="Run the operator. Each flag has a variable, for example BALLONET_LOG_LEVEL.",
        allow_abbrev=False,
    )
    for name, field in Settings.model_fields.items():
        parser.add_argument(flag(name), dest=name, metavar="VALUE", help=_help(field))
    return parser


def _help(field: FieldInfo) -> str:
    """Return what a setting means, the words that it takes, and its default if that is a value."""
    kind = field.annotation
    words = list(kind) if isinstance(kind, type) and issubclass(kind, StrEnum) else []
    parts = [field.description or ""]
    if words:
        parts.append(f"One of {', '.join(words)}.")
    if field.default_factory is None and field.default not in (None, ()):
        parts.append(f"Default: {field.default}.")
    return " ".join(parts)
