"""The Kubernetes client against answers that a healthy API server seldom gives."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from ballonet.cluster.client import KubernetesCluster
from ballonet.cluster.connection import Connection, NoConnectionError
from ballonet.cluster.port import ApiError, Json, Kind
from tests.certificates import certificate

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Api:
    """An HTTP server whose one handler a test chooses; it remembers what it was asked."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, dict[str, str], Any]] = []
        self.tokens: list[str] = []
        self.handler: Handler = self.answer({})
        self.token = "first"
        self.server = ""

    @staticmethod
    def answer(body: Any, status: int = 200, **headers: str) -> Handler:
        async def handler(_: web.Request) -> web.Response:
            text = body if isinstance(body, str) else json.dumps(body)
            return web.Response(text=text, status=status, headers=headers)

        return handler

    @staticmethod
    def refusal(status: int, reason: str, **details: Any) -> Handler:
        body = {"kind": "Status", "reason": reason, "message": "no", "details": details}
        return Api.answer(body, status)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        text = await request.text()
        # As the API server does: only the body of an apply is YAML.
        load = yaml.safe_load if "yaml" in request.content_type else json.loads
        body = load(text) if text else None
        self.requests.append((request.method, request.path, dict(request.query), body))
        self.tokens.append(request.headers.get("Authorization", ""))
        return await self.handler(request)

    async def connect(self) -> Connection:
        return Connection(self.server, authorization=f"Bearer {self.token}")


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    api = Api()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", api.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    api.server = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield api
    await runner.cleanup()


@pytest.fixture
async def cluster(api: Api) -> AsyncIterator[KubernetesCluster]:
    # With the limit of every day: a shorter one is passed where the machine is busy.
    cluster = KubernetesCluster(api.connect)
    yield cluster
    await cluster.close()


def a_pool(**meta: str) -> Json:
    return {
        "apiVersion": "ballonet.io/v1alpha1",
        "kind": "InferencePool",
        "metadata": {"namespace": "ns", "name": "p", **meta},
        "status": {},
    }


async def failing(call: Awaitable[Any]) -> ApiError:
    with pytest.raises(ApiError) as raised:
        await call
    return raised.value


async def test_status_is_replaced_in_the_version_that_was_read(
    api: Api, cluster: KubernetesCluster
) -> None:
    await cluster.write_status(a_pool(resourceVersion="7"))
    method, path, query, body = api.requests[0]
    assert method == "PATCH"
    assert path == "/apis/ballonet.io/v1alpha1/namespaces/ns/inferencepools/p/status"
    assert query == {"fieldManager": "ballonet", "fieldValidation": "Strict"}
    assert body == [
        {"op": "add", "path": "/metadata/resourceVersion", "value": "7"},
        {"op": "add", "path": "/status", "value": {}},
    ]


async def test_an_object_that_is_not_there_is_none_but_a_kind_that_is_not_served_is_an_error(
    api: Api, cluster: KubernetesCluster
) -> None:
    api.handler = Api.refusal(404, "NotFound", name="p")
    assert await cluster.get(Kind.POOL, "ns", "p") is None
    api.handler = Api.answer("404 page not found", 404)
    assert (await failing(cluster.get(Kind.POOL, "ns", "p"))).not_found
    assert not await cluster.serves(Kind.POOL)


async def test_a_kind_counts_as_served_only_when_it_is_listed(
    api: Api, cluster: KubernetesCluster
) -> None:
    api.handler = Api.answer({"resources": [{"name": "others"}]})
    assert not await cluster.serves(Kind.POOL)
    api.handler = Api.answer({"resources": [{"name": "inferencepools"}]})
    assert await cluster.serves(Kind.POOL)
    assert api.requests[-1][1] == "/apis/ballonet.io/v1alpha1"


async def test_a_long_list_is_read_page_by_page_and_its_items_know_their_kind(
    api: Api, cluster: KubernetesCluster
) -> None:
    async def pages(request: web.Request) -> web.Response:
        first = "continue" not in request.query
        items = [{"metadata": {"name": "a" if first else "b"}}]
        return web.json_response({"items": items, "metadata": {"continue": "t"} if first else {}})

    api.handler = pages
    found = await cluster.list(Kind.POD, "ns", labels="ballonet.io/pool=p")
    assert [obj["metadata"]["name"] for obj in found] == ["a", "b"]
    assert {(obj["apiVersion"], obj["kind"]) for obj in found} == {("v1", "Pod")}
    assert all(query["labelSelector"] == "ballonet.io/pool=p" for _, _, query, _ in api.requests)


async def test_an_empty_list_may_be_null(api: Api, cluster: KubernetesCluster) -> None:
    api.handler = Api.answer({"items": None, "metadata": {}})
    assert await cluster.list(Kind.POD, None) == []


async def test_deleting_names_the_uid_and_takes_gone_for_done(
    api: Api, cluster: KubernetesCluster
) -> None:
    await cluster.delete(Kind.SERVICE, "ns", "p", uid="u")
    assert api.requests[0][3] == {
        "preconditions": {"uid": "u"},
        "propagationPolicy": "Background",
    }
    api.handler = Api.refusal(404, "NotFound")
    await cluster.delete(Kind.SERVICE, "ns", "p", uid="u")
    api.handler = Api.refusal(409, "Conflict")
    assert (await failing(cluster.delete(Kind.SERVICE, "ns", "p", uid="u"))).conflict


async def test_an_object_of_another_uid_is_a_conflict_in_whatever_words(
    api: Api, cluster: KubernetesCluster
) -> None:
    api.handler = Api.refusal(422, "Invalid", causes=[{"field": "metadata.uid"}])
    assert (await failing(cluster.apply(a_pool(uid="u")))).conflict
    api.handler = Api.refusal(422, "Invalid", causes=[{"field": "spec.replicas"}])
    error = await failing(cluster.apply(a_pool()))
    assert error.invalid
    assert error.fields == ("spec.replicas",)


async def test_the_servers_wish_to_wait_is_told(api: Api, cluster: KubernetesCluster) -> None:
    api.handler = Api.answer({}, 429, **{"Retry-After": "7"})
    error = await failing(cluster.get(Kind.POOL, "ns", "p"))
    assert error.throttled
    assert error.retry_after_seconds == 7
    api.handler = Api.refusal(429, "TooManyRequests", retryAfterSeconds=3)
    assert (await failing(cluster.get(Kind.POOL, "ns", "p"))).retry_after_seconds == 3
    api.handler = Api.answer({}, 429, **{"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"})
    assert (await failing(cluster.get(Kind.POOL, "ns", "p"))).retry_after_seconds is None


async def test_what_was_sent_and_may_be_a_secret_is_not_repeated(
    api: Api, cluster: KubernetesCluster
) -> None:
    said = (
        'failed to create typed patch object: .spec.template.spec.containers[name="engine"]'
        '.env[name="DB_PASSWORD"].value: expected string, '
        "got &value.valueUnstructured{Value:271828}"
    )
    api.handler = Api.answer({"kind": "Status", "reason": "", "message": said}, 500)
    error = await failing(cluster.write_status(a_pool(resourceVersion="7")))
    assert 'env[name="DB_PASSWORD"].value: expected string' in error.message
    assert "271828" not in f"{error} {error.message}"


async def test_an_older_crd_is_told_from_other_failures(
    api: Api, cluster: KubernetesCluster
) -> None:
    words = 'patch: Invalid value: "{}": strict decoding error: unknown field "status.x"'
    api.handler = Api.answer({"kind": "Status", "message": words, "code": 422}, 422)
    error = await failing(cluster.write_status(a_pool(resourceVersion="7")))
    assert error.schema_mismatch
    words = "failed to create typed patch object (ns/p): .spec.x: field not declared in schema"
    api.handler = Api.answer({"kind": "Status", "message": words, "code": 500}, 500)
    error = await failing(cluster.apply(a_pool()))
    assert error.unparsable
    api.handler = Api.answer({"kind": "Status", "message": "etcd is away", "code": 500}, 500)
    error = await failing(cluster.write_status(a_pool(resourceVersion="7")))
    assert not error.schema_mismatch
    assert not error.unparsable


@pytest.mark.parametrize("body", ["<html>Bad gateway</html>", "", "[1]", '{"kind": "Other"}'])
async def test_an_error_page_of_something_in_between_is_an_error_with_its_status(
    api: Api, cluster: KubernetesCluster, body: str
) -> None:
    api.handler = Api.answer(body, 502)
    assert (await failing(cluster.get(Kind.POOL, "ns", "p"))).status == 502


@pytest.mark.parametrize("body", ["<html>Welcome</html>", "", "[1]"])
async def test_a_success_that_is_no_object_counts_as_no_answer(
    api: Api, cluster: KubernetesCluster, body: str
) -> None:
    api.handler = Api.answer(body)
    assert (await failing(cluster.get(Kind.POOL, "ns", "p"))).unreachable


async def test_a_server_that_hangs_cuts_or_is_away_is_unreachable(
    api: Api, cluster: KubernetesCluster
) -> None:
    async def hang(_: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    api.handler = hang
    impatient = KubernetesCluster(api.connect, timeout_seconds=1)
    error = await failing(impatient.get(Kind.POOL, "ns", "p"))
    await impatient.close()
    assert error.unreachable
    assert error.reason == "Timeout"

    async def cut(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.close()
        return web.Response()

    api.handler = cut
    assert (await failing(cluster.get(Kind.POOL, "ns", "p"))).unreachable
    api.server = "http://127.0.0.1:1"
    away = KubernetesCluster(api.connect)
    assert (await failing(away.get(Kind.POOL, "ns", "p"))).unreachable
    await away.close()


async def test_a_rotated_token_is_read_again_when_the_old_one_is_refused(
    api: Api, cluster: KubernetesCluster
) -> None:
    async def check(request: web.Request) -> web.Response:
        right = request.headers["Authorization"] == f"Bearer {api.token}"
        return web.json_response({}, status=200 if right else 401)

    api.handler = check
    await cluster.get(Kind.POOL, "ns", "p")
    api.token = "second"
    results = await asyncio.gather(*(cluster.get(Kind.POOL, "ns", "p") for _ in range(5)))
    assert results == [{}] * 5
    assert api.tokens[0] == "Bearer first"
    assert api.tokens[-1] == "Bearer second"


async def test_a_call_ends_well_however_often_the_credentials_change_meanwhile(api: Api) -> None:
    asked, answered = asyncio.Event(), asyncio.Event()

    async def check(request: web.Request) -> web.Response:
        right = request.headers["Authorization"] == f"Bearer {api.token}"
        if request.path.endswith("/slow"):
            asked.set()
            await answered.wait()
        return web.json_response({}, status=200 if right else 401)

    async def connect() -> Connection:
        # Another TLS set-up each time, as where a certificate is exchanged.
        verify_tls = api.token != "second"
        return Connection(api.server, f"Bearer {api.token}", verify_tls=verify_tls)

    api.handler = check
    cluster = KubernetesCluster(connect)
    slow = asyncio.create_task(cluster.get(Kind.POOL, "ns", "slow"))
    await asked.wait()
    for api.token in ("second", "third"):
        await cluster.get(Kind.POOL, "ns", "p")
    answered.set()
    assert await slow == {}
    await cluster.close()


async def test_a_token_that_stays_refused_is_an_error_after_one_request(
    api: Api, cluster: KubernetesCluster
) -> None:
    api.handler = Api.answer({}, 401)
    assert (await failing(cluster.get(Kind.POOL, "ns", "p"))).status == 401
    assert len(api.requests) == 1


async def test_trust_is_set_up_anew_until_the_servers_certificate_is_known(
    tmp_path: Path,
) -> None:
    authorities = {name: certificate(tmp_path, name) for name in ("old", "new")}
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authorities["new"])
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", Api.answer({}))
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    server = f"https://127.0.0.1:{runner.addresses[0][1]}"
    trusted = "old"

    async def connect() -> Connection:
        return Connection(server, ca_path=str(authorities[trusted][0]))

    cluster = KubernetesCluster(connect)
    for _ in range(5):
        several = (failing(cluster.get(Kind.POOL, "ns", "p")) for _ in range(8))
        assert {error.reason for error in await asyncio.gather(*several)} == {"Untrusted"}
    # It may take hours: what failed is not kept.
    assert len(cluster._clients) == 1
    trusted = "new"
    assert await cluster.get(Kind.POOL, "ns", "p") == {}
    await cluster.close()
    await runner.cleanup()


async def test_credentials_that_cannot_be_read_are_no_answer(api: Api) -> None:
    async def connect() -> Connection:
        raise NoConnectionError("no kubeconfig")

    cluster = KubernetesCluster(connect)
    error = await failing(cluster.get(Kind.POOL, "ns", "p"))
    assert error.unreachable
    assert "no kubeconfig" in error.message


async def test_a_log_is_asked_for_in_bounds_and_read_whatever_its_bytes(
    api: Api, cluster: KubernetesCluster
) -> None:
    async def log(_: web.Request) -> web.Response:
        return web.Response(body=b"first\n\xff\xfelast\n")

    api.handler = log
    text = await cluster.logs("ns", "p-0", "engine", previous=True, tail_lines=200)
    assert text == "first\n\ufffd\ufffdlast\n"
    _, path, query, _ = api.requests[0]
    assert path == "/api/v1/namespaces/ns/pods/p-0/log"
    assert query == {
        "container": "engine",
        "tailLines": "200",
        "limitBytes": "1048576",
        "previous": "true",
    }


def test_credentials_do_not_show_in_messages() -> None:
    connection = Connection("https://x", authorization="Bearer secret")
    assert "secret" not in f"{connection} {connection!r}"


async def test_text_of_any_script_reaches_the_server_unchanged(
    api: Api, cluster: KubernetesCluster
) -> None:
    text = 'm-模型-🎈 \u2028 \x85 \x7f \\ud83c " \n'
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "p", "namespace": "ns", "annotations": {"text": text}},
    }
    await cluster.apply(deployment)
    assert api.requests[0][3]["metadata"]["annotations"]["text"] == text
