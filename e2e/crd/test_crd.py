"""The resource on a real API server: what it accepts, refuses, defaults, merges and shows."""

from __future__ import annotations

import copy
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest
import yaml

from ballonet.api.status import InferencePoolStatus
from ballonet.api.v1alpha1 import InferencePoolSpec
from e2e.crd.examples import EXAMPLES, Example, minimal_pool
from e2e.harness.api import CRD, FOREIGN_POOL, POOL, Api, ApiError, Json
from e2e.harness.site import Site

GOLDEN: Final = Path(__file__).parents[2] / "tests" / "golden" / "crd"
PATH: Final = "/apis/ballonet.io/v1alpha1"


def in_namespace(pool: Json, namespace: str) -> Json:
    return {**pool, "metadata": {**pool["metadata"], "namespace": namespace}}


def golden(name: str, namespace: str) -> Json:
    return in_namespace(yaml.safe_load((GOLDEN / f"{name}.yaml").read_text()), namespace)


# --- examples ------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def answers(api: Api, crd: None) -> dict[str, str | None]:
    """What the server says to each example, None where it accepts; nothing is stored."""

    def answer(example: Example) -> str | None:
        try:
            api.create(in_namespace(example.pool, "default"), dry_run=True)
        except ApiError as error:
            return error.message
        return None

    with ThreadPoolExecutor(4) as threads:
        return dict(zip((e.id for e in EXAMPLES), threads.map(answer, EXAMPLES), strict=True))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.id)
def test_example(example: Example, answers: dict[str, str | None]) -> None:
    said = answers[example.id]
    if example.refused is None:
        assert said is None
        return
    field, message = example.refused
    assert said is not None
    # The error of another field may stand beside it, so only ours is looked at.
    ours = said[said.index(f"{field}: ") :] if f"{field}: " in said else said
    assert ours.startswith(f"{field}: ")
    assert message in ours


def test_unknown_fields_are_refused_by_strict_clients_and_dropped_for_others(
    api: Api, crd: None
) -> None:
    pool = in_namespace(minimal_pool(), "default")
    pool["spec"]["sequence"]["maxToken"] = 1
    with pytest.raises(ApiError, match=r'unknown field "spec.sequence.maxToken"'):
        api.create(pool, dry_run=True)
    path, query = POOL.path("default"), {"dryRun": "All", "fieldValidation": "Ignore"}
    stored = api.call("POST", path, pool, query=query)
    assert "maxToken" not in stored["spec"]["sequence"]


def test_null_is_no_value(api: Api, crd: None) -> None:
    pool = in_namespace(minimal_pool(), "default")
    pool["spec"]["sequence"]["maxTokens"] = None
    with pytest.raises(ApiError, match=r"spec\.sequence\.maxTokens: "):
        api.create(pool, dry_run=True)


# --- defaults ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["minimal", "full", "cpu"])
def test_the_server_and_the_parser_have_the_same_defaults(api: Api, crd: None, name: str) -> None:
    stored = api.create(golden(name, "default"), dry_run=True)
    spec = InferencePoolSpec.model_validate_json(json.dumps(stored["spec"]))
    expected = json.loads((GOLDEN / f"{name}.parsed.json").read_text())
    assert spec.model_dump(mode="json", by_alias=True) == expected


def test_every_default_is_written_into_the_stored_pool(api: Api, crd: None) -> None:
    stored = api.create(golden("minimal", "default"), dry_run=True)["spec"]
    assert stored["replicas"] == 1
    assert stored["budget"] == {"safetyPercent": 90, "pin": "None"}
    assert stored["rollout"] == {"drainSeconds": 60, "strategy": "RollingUpdate"}
    assert stored["topologies"][0]["roles"][0] == {
        "name": "planner",
        "count": 1,
        "holdsSlotWhileWaiting": "Always",
    }


def test_what_is_stored_is_what_was_written(api: Api, crd: None) -> None:
    """Nothing but defaults is added and nothing is rewritten: GitOps tools would show drift."""
    pool = golden("full", "default")
    stored = copy.deepcopy(api.create(pool, dry_run=True)["spec"])
    assert stored["topologies"][0]["roles"][1].pop("holdsSlotWhileWaiting") == "Always"
    assert stored["sharedPrefixes"][1].pop("credit") == "None"
    assert stored["engine"]["env"][1].pop("value") == ""
    assert stored == pool["spec"]


# --- merging -------------------------------------------------------------------------------------


def test_two_owners_may_each_declare_a_topology(api: Api, crd: None, namespace: str) -> None:
    pool = in_namespace(minimal_pool(), namespace)
    roles = [{"name": "planner"}]
    api.apply(
        {**pool, "spec": {**pool["spec"], "topologies": [{"name": "a", "roles": roles}]}}, "a"
    )
    both = api.apply(
        {**pool, "spec": {**pool["spec"], "topologies": [{"name": "b", "roles": roles}]}}, "b"
    )
    assert [topology["name"] for topology in both["spec"]["topologies"]] == ["a", "b"]
    one = api.apply(pool, "a")
    assert [topology["name"] for topology in one["spec"]["topologies"]] == ["b"]


# --- status and scale ----------------------------------------------------------------------------


def largest(schema: Json) -> object:
    """Return a value at the upper end of every bound."""
    match schema["type"]:
        case "integer":
            return schema["maximum"]
        case "string" if "enum" in schema:
            return schema["enum"][-1]
        case "string" if schema.get("format") == "date-time":
            return "2026-01-01T00:00:00Z"
        case "string":
            return "A" * schema["maxLength"]
        case "array":
            return [largest(schema["items"])]
        case _:
            return {key: largest(value) for key, value in schema["properties"].items()}


def test_status_takes_its_largest_values_and_leaves_the_spec_alone(
    api: Api, crd: None, namespace: str
) -> None:
    stored = api.create(in_namespace(minimal_pool(), namespace))
    versions = api.get(CRD, None, "inferencepools.ballonet.io")["spec"]["versions"]
    schema = versions[0]["schema"]["openAPIV3Schema"]["properties"]["status"]
    status = largest(schema)
    InferencePoolStatus.model_validate_json(json.dumps(status))
    written = api.call(
        "PATCH",
        POOL.path(namespace, "example", "status"),
        {"status": status, "spec": {"replicas": 7}},
        content_type="application/merge-patch+json",
        query={"dryRun": "All", "fieldValidation": "Strict"},
    )
    assert written["status"] == status
    assert written["spec"] == stored["spec"]
    assert written["metadata"]["generation"] == 1


def test_status_written_with_the_spec_is_dropped(api: Api, crd: None) -> None:
    pool = in_namespace(minimal_pool(), "default")
    stored = api.create({**pool, "status": {"replicas": 1}}, dry_run=True)
    assert "status" not in stored


def test_scale_reads_and_writes_replicas(api: Api, crd: None, namespace: str) -> None:
    api.create(in_namespace(minimal_pool(), namespace))
    path = POOL.path(namespace, "example", "scale")
    assert api.call("GET", path)["spec"]["replicas"] == 1
    scaled = api.call(
        "PATCH", path, {"spec": {"replicas": 3}}, content_type="application/merge-patch+json"
    )
    assert scaled["spec"]["replicas"] == 3
    pool = api.get(POOL, namespace, "example")
    assert pool["spec"]["replicas"] == 3
    assert pool["metadata"]["generation"] == 2


# --- how it is found and shown -------------------------------------------------------------------


def test_names(api: Api, crd: None) -> None:
    resources = {r["name"]: r for r in api.call("GET", PATH)["resources"]}
    assert set(resources) == {
        "inferencepools",
        "inferencepools/status",
        "inferencepools/scale",
    }
    assert resources["inferencepools"]["kind"] == "InferencePool"
    assert resources["inferencepools"]["shortNames"] == ["kvpool"]
    assert resources["inferencepools"]["categories"] == ["ballonet"]


def test_the_foreign_resource_of_the_same_kind_keeps_its_names(api: Api, crd: None) -> None:
    found = api.get(CRD, None, "inferencepools.inference.networking.k8s.io")
    assert found["status"]["acceptedNames"]["shortNames"] == ["infpool"]
    ours = api.get(CRD, None, "inferencepools.ballonet.io")
    for definition in (found, ours):
        conditions = {c["type"]: c["status"] for c in definition["status"]["conditions"]}
        assert conditions["NamesAccepted"] == conditions["Established"] == "True"
    assert api.list(FOREIGN_POOL, "default") == []


def test_pools_are_selected_by_model_and_device(api: Api, crd: None, namespace: str) -> None:
    pool = in_namespace(minimal_pool(), namespace)
    api.create(pool)
    other = copy.deepcopy(pool)
    other["metadata"]["name"] = "other"
    other["spec"]["accelerator"]["type"] = "L4"
    api.create(other)
    for selector, names in (
        ("spec.accelerator.type=L4", ["other"]),
        ("spec.model.name=Qwen/Qwen3-32B", ["example", "other"]),
        ("spec.model.name=somebody/else", []),
    ):
        found = api.call("GET", POOL.path(namespace), query={"fieldSelector": selector})
        assert [item["metadata"]["name"] for item in found["items"]] == names


def test_columns_and_short_name(site: Site, crd: None, namespace: str) -> None:
    site.api.create(in_namespace(minimal_pool(), namespace))
    header, row = site.kubectl("get", "kvpool", f"--namespace={namespace}").splitlines()
    assert header.split() == [
        *("NAME", "MODEL", "GPU", "CEILING", "NEED", "HAVE"),
        *("FITS", "SOURCE", "READY", "REASON", "AGE"),
    ]
    assert row.split()[:4] == ["example", "Qwen/Qwen3-32B", "H100-80GB", "16777216"]


def test_explain_knows_every_field(site: Site, crd: None) -> None:
    told = site.kubectl("explain", "inferencepools.ballonet.io.spec.topologies.roles")
    assert "holdsSlotWhileWaiting" in told
    assert "Always: a sequence of this role keeps its slot" in told
