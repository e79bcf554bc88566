"""Definitions of another age than the operator."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator

import pytest

from e2e.conftest import LocalFactory
from e2e.faults.proxy import FaultProxy
from e2e.harness import installation
from e2e.harness.api import Api, ApiError, Json
from e2e.harness.operators import LocalOperator
from e2e.harness.poll import eventually
from e2e.harness.pool_client import PoolClient
from e2e.harness.pools import a_pool, condition, is_now

SETTLE_SECONDS = 5
WATCHED_SECONDS = 20


@pytest.fixture
def definition(api: Api) -> Iterator[Json]:
    """Our definition to change; the shipped one is put back."""
    yield copy.deepcopy(installation.pool_crd())
    installation.install_crd(api, installation.pool_crd())


def spec_schema(definition: Json) -> Json:
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    found: Json = schema["properties"]["spec"]
    return found


def status_schema(definition: Json) -> Json:
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    found: Json = schema["properties"]["status"]
    return found


def test_a_definition_older_than_the_operator_is_named_and_not_retried_for_ever(
    operator_behind_proxy: LocalOperator,
    proxy: FaultProxy,
    definition: Json,
    api: Api,
    pools: PoolClient,
) -> None:
    del status_schema(definition)["properties"]["budget"]
    installation.install_crd(api, definition)
    operator = operator_behind_proxy
    pools.create(a_pool())
    eventually(
        lambda: "CRD" in operator.log_file.read_text() and "older" in operator.log_file.read_text(),
        "the log names the older definition",
    )
    # Events of pods that start are a reason to look again; then there is none.
    eventually(lambda: pools.deployment()["status"].get("readyReplicas") == 1, "the pod serves")
    time.sleep(SETTLE_SECONDS)
    proxy.forget_calls()
    time.sleep(WATCHED_SECONDS)
    tries = proxy.count(lambda call: call.is_write and call.path.endswith("/status"))
    assert tries.total() <= 2, f"status was tried again and again: {tries}"
    assert operator.is_alive

    installation.install_crd(api, installation.pool_crd())
    # A new definition makes the watches start anew, and with them the passes.
    pools.touch()
    pools.wait_ready()


def test_a_pool_stored_under_an_older_definition_is_stalled_and_others_go_on(
    operator_behind_proxy: LocalOperator, definition: Json, api: Api, pools: PoolClient
) -> None:
    sequence = spec_schema(definition)["properties"]["sequence"]["properties"]
    sequence["maxTokens"] = {"type": "string", "description": "As it was once."}
    loose = copy.deepcopy(definition)
    spec_schema(loose).pop("x-kubernetes-validations", None)
    installation.install_crd(api, loose)
    # The definition is there, the API server may still check by the one before for a moment.
    old = a_pool("old").set("sequence.maxTokens", "a thousand").build(pools.namespace)
    eventually(lambda: _created(api, old), "the pool is stored", timeout_seconds=30)
    installation.install_crd(api, installation.pool_crd())

    stalled = pools.wait_for("Stalled", "True", "InvalidSpec", "old")
    assert "spec.sequence.maxTokens" in stalled["message"]
    resolved = condition(pools.get("old"), "SpecResolved") or {}
    assert "spec.sequence.maxTokens" in resolved["message"]
    pools.create_ready(a_pool("other"))
    assert not pools.children("old")

    pools.patch({"sequence": {"maxTokens": 608}}, "old")
    pools.wait_ready("old")
    assert is_now(pools.get("other"), "Ready", "True")


def test_a_running_pool_whose_spec_no_longer_parses_keeps_its_pods(
    local_operators: LocalFactory, definition: Json, api: Api, pools: PoolClient
) -> None:
    operator = local_operators()
    operator.start()
    pools.create_ready(a_pool())
    before = {pod["metadata"]["uid"] for pod in pools.pods()}
    operator.stop()
    sequence = spec_schema(definition)["properties"]["sequence"]["properties"]
    sequence["maxTokens"] = {"type": "string", "description": "As it was once."}
    spec_schema(definition).pop("x-kubernetes-validations", None)
    installation.install_crd(api, definition)
    eventually(
        lambda: _patched(pools, {"sequence": {"maxTokens": "a thousand"}}), "the spec is stored"
    )
    installation.install_crd(api, installation.pool_crd())
    operator.start()
    stalled = pools.wait_for("Stalled", "True", "InvalidSpec")
    assert "spec.sequence.maxTokens" in stalled["message"]
    assert {pod["metadata"]["uid"] for pod in pools.pods()} == before


def _created(api: Api, obj: Json) -> bool:
    try:
        api.create(obj)
    except ApiError as error:
        assert error.status == 422, error
        return False
    return True


def _patched(pools: PoolClient, spec: Json) -> bool:
    try:
        pools.patch(spec)
    except ApiError as error:
        assert error.status == 422, error
        return False
    return True
