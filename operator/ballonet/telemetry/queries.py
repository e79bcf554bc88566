"""The blocking client of a Prometheus: bounded answers, no redirects, nothing from the environment.

Only imported in the thread that asks.
"""

from __future__ import annotations

import json
import socket
import time
from base64 import b64encode
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http.client import HTTPResponse
from io import BufferedReader, BytesIO, RawIOBase
from typing import TYPE_CHECKING, Any, Final

import requests
from prometheus_api_client import PrometheusConnect
from requests.adapters import HTTPAdapter
from urllib3.exceptions import HTTPError
from urllib3.util import Retry

from ballonet.api.quoting import quoted
from ballonet.diagnosis.observation import Observation
from ballonet.telemetry.connections import PrometheusConnection
from ballonet.telemetry.history import Scrapes, history_queries
from ballonet.telemetry.rounds import Limits, Readings, Round, SourceError, queries

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_CHUNK_BYTES: Final = 64 * 1024


def ask(connection: PrometheusConnection, limits: Limits) -> Readings:
    """Make one round of queries.

    Raises:
        InvalidConnectionsError: a file of the connection cannot be read.
        SourceError: Prometheus does not answer in time, refuses, or answers what it cannot.
    """
    found = Round(connection)
    for name, result in _answers(connection, limits, queries(connection)):
        with _readable():
            found.take(name, result)
    return found.readings()


def ask_history(
    connection: PrometheusConnection, limits: Limits, *, namespace: str, pool: str, seconds: int
) -> dict[str, list[Observation]]:
    """Return what was scraped of a pool's pods in the last so many seconds, oldest first.

    Raises:
        InvalidConnectionsError, SourceError: as for ``ask``.
    """
    found = Scrapes(connection)
    wanted = history_queries(connection, namespace=namespace, pool=pool, seconds=seconds)
    for name, result in _answers(connection, limits, wanted):
        with _readable():
            found.take(name, result)
    with _readable():
        return found.observations()


def _answers(
    connection: PrometheusConnection, limits: Limits, wanted: Iterable[tuple[str, str]]
) -> Iterator[tuple[str, Any]]:
    """Yield each name with the answer to its query."""
    with _Session(limits) as session:
        session.verify = connection.authorities() or True
        headers, credentials = connection.all_headers(), connection.credentials()
        secret = (value for name, value in headers.items() if name not in connection.headers)
        session.hidden = _hidden(secret, credentials)
        client = PrometheusConnect(
            url=connection.base_url,
            headers={**headers, "Accept-Encoding": "identity"},
            auth=credentials,
            session=session,
            timeout=limits.query_seconds,
        )
        session.mount(connection.base_url, _Adapter(session.deadline))
        for name, query in wanted:
            with _readable():
                try:
                    answer = client.custom_query(query)
                # What is no JSON is an OSError of the client too, and no cause of its own.
                except ValueError:
                    raise
                except (OSError, HTTPError) as error:
                    raise SourceError(_cause(error, limits)) from None
            yield name, answer


@contextmanager
def _readable() -> Iterator[None]:
    """Say of an answer that is none of a Prometheus that it is none."""
    try:
        yield
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError):
        raise SourceError("what answers there is no Prometheus") from None


class _Deadline:
    """Until when the answer to a query has to be there, all of it."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._round_at = time.monotonic() + limits.round_seconds
        self._query_at = self._round_at

    def begin_query(self) -> None:
        """Count the seconds of a query from now on."""
        self._query_at = time.monotonic() + self._limits.query_seconds

    def left_seconds(self) -> float:
        """Return how long may be waited from now on.

        Raises:
            SourceError: no longer.
        """
        now = time.monotonic()
        if now >= self._round_at:
            raise SourceError(f"not all answers within {self._limits.round_seconds:g} s")
        if now >= self._query_at:
            raise SourceError(f"no answer within {self._limits.query_seconds:g} s")
        return min(self._round_at, self._query_at) - now


class _Timely(RawIOBase):
    """What comes over a connection, until the deadline.

    The client's own limit is for each part of an answer: one that drips would never meet it.
    """

    def __init__(self, connection: socket.socket, parts: RawIOBase, deadline: _Deadline) -> None:
        super().__init__()
        self._connection = connection
        self._parts = parts
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int | None:
        self._connection.settimeout(self._deadline.left_seconds())
        try:
            return self._parts.readinto(buffer)
        except TimeoutError:
            self._deadline.left_seconds()
            raise

    def close(self) -> None:
        super().close()
        self._parts.close()


class _Adapter(HTTPAdapter):
    """Makes connections whose answers, from the status line on, are read until the deadline."""

    def __init__(self, deadline: _Deadline) -> None:
        super().__init__(max_retries=Retry(0, read=False))
        self._deadline = deadline

    def get_connection_with_tls_context(self, *arguments: Any, **options: Any) -> Any:
        """Return the pool out of which a request gets its connection."""
        pool = super().get_connection_with_tls_context(*arguments, **options)
        made: Any = type(pool).ConnectionCls

        def connection(**settings: Any) -> Any:
            new = made(**settings)
            new.response_class = self._answer
            return new

        pool.ConnectionCls = connection  # type: ignore[assignment]
        return pool

    def _answer(self, connection: socket.socket, **options: Any) -> HTTPResponse:
        answer = HTTPResponse(connection, **options)
        # Nothing has been read yet, so nothing is left behind in the buffer.
        parts = answer.fp.detach()
        answer.fp = BufferedReader(_Timely(connection, parts, self._deadline))
        return answer


class _Session(requests.Session):
    """A session whose answers are bounded in bytes, and each and all together in time."""

    def __init__(self, limits: Limits) -> None:
        super().__init__()
        self.trust_env = False
        self.hidden: frozenset[str] = frozenset()
        self.deadline = _Deadline(limits)
        self._limits = limits

    def get_redirect_target(self, resp: requests.Response) -> None:
        """Return nothing: also to a redirect that is not followed the body would be read whole."""

    def request(self, *arguments: Any, **options: Any) -> requests.Response:
        """Make a request and read its answer; what is not status 200 is an error."""
        options |= {"stream": True, "allow_redirects": False}
        content = bytearray()
        self.deadline.begin_query()
        with super().request(*arguments, **options) as response:
            while part := response.raw.read1(_CHUNK_BYTES):
                content += part
                if len(content) > self._limits.answer_bytes:
                    raise SourceError(
                        f"an answer is longer than {self._limits.answer_bytes} bytes; give the "
                        "connection labels that narrow it down"
                    )
        if response.status_code != 200:
            raise SourceError(f"status {response.status_code}{_told(content, self.hidden)}")
        answer = requests.Response()
        answer.status_code, answer.raw = response.status_code, BytesIO(content)
        return answer


def _hidden(headers: Iterable[str], credentials: tuple[str, str] | None) -> frozenset[str]:
    """Return what of secret headers and credentials must not be repeated."""
    values = {value.rpartition(" ")[2] for value in headers}
    if credentials is not None:
        values |= {credentials[1], b64encode(":".join(credentials).encode("latin-1")).decode()}
    return frozenset(filter(None, values))


def _told(content: bytearray, hidden: Iterable[str]) -> str:
    """Return the error that Prometheus tells, if it is one that tells.

    A proxy may repeat there what it was sent.
    """
    try:
        error = json.loads(content)["error"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    if not isinstance(error, str) or any(value in error for value in hidden):
        return ""
    return f", {quoted(error)}"


def _cause(error: BaseException, limits: Limits) -> str:
    """Return what went wrong in words; the client's own hold the query and could hold headers."""
    innermost = error
    while (deeper := innermost.__cause__ or innermost.__context__) is not None:
        innermost = deeper
    if isinstance(error, requests.Timeout) or isinstance(innermost, TimeoutError):
        return f"no answer within {limits.query_seconds:g} s"
    if isinstance(innermost, OSError) and innermost.strerror:
        return f"cannot be reached: {innermost.strerror}"
    return f"cannot be reached: {type(innermost).__name__}"
