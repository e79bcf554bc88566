"""Prometheus connections: named settings of the operator, read from mounted files.

A pool only names one. What opens it (tokens, passwords) stands in files of its own, is read when it
is used, so that a renewed Secret needs no restart, and never gets into a message or a log.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from ipaddress import IPv6Address
from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    field_validator,
    model_validator,
)
from pydantic import ValidationError as PydanticError
from pydantic.alias_generators import to_camel

from ballonet.api.quoting import quoted
from ballonet.api.v1alpha1 import NAME_PATTERN
from ballonet.api.yaml_input import MAX_INPUT_BYTES, InvalidInput, decode, read_documents

MAX_CONNECTIONS: Final = 64
MAX_SECRET_BYTES: Final = 64 * 1024

_HEADER: Final = r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$"
_LABEL: Final = r"^[a-zA-Z_][a-zA-Z0-9_]*$"
_HOST: Final = r"[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?|\[(?P<v6>[0-9A-Fa-f:.]+)\]"
# No user, no query and no fragment: credentials have files, and the path is ours to end.
_URL: Final = rf"^https?://({_HOST})(:(?P<port>[0-9]{{1,5}}))?/?$"
# What a message may repeat of a field's name: who puts a header as one text makes it a name.
_SHOWN: Final = re.compile(r"[A-Za-z0-9_-]{1,40}")
_PREFIX: Final = r"^(/[A-Za-z0-9._~-]+)*/?$"

File = Annotated[str, StringConstraints(pattern=r"^/[^\x00]*$", max_length=4096)]
Label = Annotated[str, StringConstraints(pattern=_LABEL, max_length=128)]
Header = Annotated[str, StringConstraints(pattern=_HEADER, max_length=128)]
Value = Annotated[str, StringConstraints(pattern=r"^[\x20-\x7e]*$", max_length=1024)]
# HTTP takes a space in front for no part of it.
HeaderValue = Annotated[
    str, StringConstraints(pattern=r"^([\x21-\x7e][\x20-\x7e]*)?$", max_length=1024)
]


class InvalidConnectionsError(ValueError):
    """The file of connections, or a file that one of them names, cannot be used."""


class _Part(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, hide_input_in_errors=True
    )


class BasicAuth(_Part):
    """Files that hold a user's name and password."""

    username_file: File
    password_file: File


class PrometheusConnection(_Part):
    """One Prometheus, or what speaks its query API: Thanos, Mimir, VictoriaMetrics.

    Attributes:
        url: scheme, host and port.
        path_prefix: what goes before ``/api/v1``, for example ``/prometheus`` with Mimir.
        ca_file: certificate authorities that are trusted instead of the system's.
        headers: plain headers, for example ``X-Scope-OrgID``; ``header_files`` has secret ones.
        labels: values that series must have, where one Prometheus knows several clusters.
        namespace_label, pod_label: labels that tell where a series was scraped.
    """

    name: Annotated[str, StringConstraints(pattern=NAME_PATTERN, max_length=63)]
    url: Annotated[str, StringConstraints(pattern=_URL, max_length=512)]
    path_prefix: Annotated[str, StringConstraints(pattern=_PREFIX, max_length=512)] = ""
    ca_file: File | None = None
    bearer_token_file: File | None = None
    basic_auth: BasicAuth | None = None
    headers: Annotated[dict[Header, HeaderValue], Field(max_length=16)] = {}
    header_files: Annotated[dict[Header, File], Field(max_length=16)] = {}
    labels: Annotated[dict[Label, Value], Field(max_length=16)] = {}
    namespace_label: Label = "namespace"
    pod_label: Label = "pod"

    @field_validator("url")
    @classmethod
    def _an_address(cls, url: str) -> str:
        match = re.fullmatch(_URL, url)
        assert match is not None, "the pattern was checked before"
        if match["port"] is not None and not 0 < int(match["port"]) < 2**16:
            raise ValueError("the port is not between 1 and 65535")
        if match["v6"] is not None:
            try:
                IPv6Address(match["v6"])
            except ValueError:
                raise ValueError("what stands in brackets is no IPv6 address") from None
        return url

    @model_validator(mode="after")
    def _one_way_in(self) -> Self:
        if self.bearer_token_file is not None and self.basic_auth is not None:
            raise ValueError("give one of bearerTokenFile and basicAuth")
        return self

    @property
    def base_url(self) -> str:
        """What ``/api/v1/query`` is appended to."""
        return self.url.rstrip("/") + self.path_prefix.rstrip("/")

    def all_headers(self) -> dict[str, str]:
        """Return the headers of a request, with those that files hold now.

        Raises:
            InvalidConnectionsError: a file cannot be read or holds no header value.
        """
        headers = {**self.headers}
        headers |= {header: _secret(file) for header, file in self.header_files.items()}
        if self.bearer_token_file is not None:
            headers["Authorization"] = f"Bearer {_secret(self.bearer_token_file)}"
        return headers

    def authorities(self) -> str | None:
        """Return the file of the authorities that are trusted; None for those of the system.

        Raises:
            InvalidConnectionsError: it cannot be read.
        """
        if self.ca_file is not None:
            try:
                _bytes(self.ca_file, 1)
            except OSError as error:
                raise InvalidConnectionsError(f"{self.ca_file}: {error.strerror}") from None
        return self.ca_file

    def credentials(self) -> tuple[str, str] | None:
        """Return user and password as files hold them now; None without basic authentication.

        Raises:
            InvalidConnectionsError: a file cannot be read.
        """
        if self.basic_auth is None:
            return None
        return _secret(self.basic_auth.username_file), _secret(self.basic_auth.password_file)


class Connections:
    """The connections of a file, which is read anew whenever it is asked: it may change.

    Args:
        file: path of the file; None where the operator has no connection.
    """

    def __init__(self, file: str | None) -> None:
        self._file = file
        self._text: str | None = None
        self._known: Mapping[str, PrometheusConnection] = {}

    def named(self, name: str) -> PrometheusConnection:
        """Return the connection of a name, as its file has it now.

        Raises:
            InvalidConnectionsError: there is none, or the file cannot be used; says which there
                are.
        """
        known = self._read()
        if name not in known:
            there = ", ".join(sorted(known)) or f"none, as {self._file or 'no file'} gives none"
            raise InvalidConnectionsError(
                f"the operator has no Prometheus connection {quoted(name)}; it has: {there}"
            )
        return known[name]

    def _read(self) -> Mapping[str, PrometheusConnection]:
        if self._file is None:
            return {}
        try:
            text = decode(_bytes(self._file, MAX_INPUT_BYTES), advice="give only connections")
            if text != self._text:
                self._known, self._text = parse_connections(text), text
        except (InvalidInput, InvalidConnectionsError) as error:
            self._text = None
            raise InvalidConnectionsError(f"{self._file}: {error}") from None
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise InvalidConnectionsError(f"{self._file}: {error.strerror or error}") from None
        return self._known


class _File(_Part):
    connections: Annotated[list[PrometheusConnection], Field(max_length=MAX_CONNECTIONS)] = []


def parse_connections(text: str) -> dict[str, PrometheusConnection]:
    """Return the connections of a file's text (YAML or JSON) by their names.

    Raises:
        InvalidConnectionsError: names the field and what is wrong, never its value.
        InvalidInput: the text is no YAML.
    """
    documents = read_documents(text)
    if len(documents) > 1:
        raise InvalidConnectionsError("has several documents: put all connections into one list")
    try:
        found = _File.model_validate(documents[0] if documents else {})
    except PydanticError as error:
        raise InvalidConnectionsError(
            "; ".join(
                f"{_where(one['loc'])}: {one['msg']}"
                for one in error.errors(include_input=False)[:4]
            )
        ) from None
    by_name = {connection.name: connection for connection in found.connections}
    if len(by_name) < len(found.connections):
        raise InvalidConnectionsError("has two connections of one name")
    return by_name


def _where(place: Iterable[str | int]) -> str:
    return ".".join(str(one) if _SHOWN.fullmatch(str(one)) else "…" for one in place)


def _bytes(file: str, limit_bytes: int) -> bytes:
    with Path(file).open("rb") as opened:
        return opened.read(limit_bytes + 1)


def _secret(file: str) -> str:
    """Return the text of a file as a header can carry it; messages name the file alone."""
    try:
        text = _bytes(file, MAX_SECRET_BYTES).decode("latin-1").strip()
    except OSError as error:
        raise InvalidConnectionsError(f"{file}: {error.strerror or error}") from None
    if not text or not text.isprintable() or len(text) > MAX_SECRET_BYTES:
        raise InvalidConnectionsError(f"{file} holds no single line of text")
    return text
