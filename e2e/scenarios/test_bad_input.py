"""Bad input: a clear message at the field, nothing lost, no crash loop."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from typing import Any, Final

import pytest
import yaml

from e2e.harness.api import CONFIG_MAP, POD, Api, ApiError, Json
from e2e.harness.operators import PodOperator
from e2e.harness.pool_client import PoolClient, fingerprints
from e2e.harness.pools import MODEL_CONFIG, PoolBuilder, a_gpu_pool, a_pool, is_now
from e2e.harness.site import Site

# ConfigMaps that pools refer to are read every 60 s.
REFERENCE_SECONDS: Final = 90
CONFIG: Final[Json] = json.loads(MODEL_CONFIG.read_text())


@dataclass(frozen=True)
class Refused:
    """A pool that the API server refuses, and what it must say."""

    pool: PoolBuilder
    words: tuple[str, ...]


def roles(**changed: Any) -> list[Json]:
    role = {"name": "planner", "count": 1, **changed}
    return [{"name": "research", "roles": [role]}]


REFUSED: Final = {
    "role ceiling above the pool's": Refused(
        a_pool().set("topologies", roles(maxTokens=4096)),
        ("spec", "a role's maxTokens must not exceed sequence.maxTokens"),
    ),
    "zero workers": Refused(
        a_pool().set("topologies", roles(count=0)), ("spec.topologies[0].roles[0].count",)
    ),
    "negative workers": Refused(
        a_pool().set("topologies", roles(count=-1)), ("spec.topologies[0].roles[0].count",)
    ),
    "negative replicas": Refused(a_pool().replicas(-1), ("spec.replicas",)),
    "no ceiling": Refused(a_pool().ceiling(0), ("spec.sequence.maxTokens",)),
    "quantity that does not parse": Refused(
        a_pool().set("budget.kvCacheMemoryPerRank", "8 apples"),
        ("spec.budget.kvCacheMemoryPerRank",),
    ),
    "config twice": Refused(
        a_pool().set("model.config", {"inline": "{}", "configMapRef": {"name": "c", "key": "k"}}),
        ("spec.model.config", "exactly one"),
    ),
    "unknown prefix": Refused(
        a_pool().set("topologies", roles(sharedPrefix="none")), ("sharedPrefix",)
    ),
    "two roles of one name": Refused(
        a_pool().set(
            "topologies",
            [{"name": "research", "roles": [{"name": "planner"}, {"name": "planner"}]}],
        ),
        ("spec.topologies[0].roles[1]", "planner"),
    ),
    "illegal name": Refused(a_pool("Pool_1"), ("metadata.name",)),
    "name that begins with a digit": Refused(a_pool("1pool"), ("name",)),
    "name of 64 characters": Refused(a_pool("p" * 64), ("name",)),
    "misspelt field": Refused(a_pool().set("sequence.maxToken", 5), ("spec.sequence.maxToken",)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_api_server_refuses_at_the_field(
    name: str, site: Site, crd: None, namespace: str
) -> None:
    case = REFUSED[name]
    text = yaml.safe_dump(case.pool.build(namespace))
    with pytest.raises(AssertionError) as refused:
        site.kubectl("create", "-f", "-", stdin=text)
    for word in case.words:
        assert word in str(refused.value)


@dataclass(frozen=True)
class Unresolved:
    """A pool that is stored but cannot run: which condition names what."""

    pool: PoolBuilder
    reason: str
    words: tuple[str, ...]
    kind: str = "SpecResolved"


def config(**changed: Any) -> PoolBuilder:
    fields = {**CONFIG, **changed}
    text = json.dumps({key: value for key, value in fields.items() if value is not None})
    return a_pool().set("model.config.inline", text)


def engine_container(**fields: Any) -> Json:
    return {"spec": {"containers": [{"name": "engine", **fields}]}}


UNRESOLVED: Final = {
    "gpu": Unresolved(
        a_gpu_pool().set("accelerator.type", "H100-80"), "UnknownAccelerator", ("H100-80GB",)
    ),
    "version": Unresolved(
        a_pool().set("engine.version", "0.1.0"), "UnknownEngineVersion", ("0.1.0", "0.33.0")
    ),
    "model": Unresolved(
        a_pool().without("model.config").set("model.name", "Qwen/Qwen3-32"),
        "UnknownModel",
        ("Qwen/Qwen3-32B", "spec.model.config"),
    ),
    "not-json": Unresolved(
        a_pool().set("model.config.inline", "{nope"), "InvalidModelConfig", ("JSON",)
    ),
    "blank": Unresolved(a_pool().set("model.config.inline", " "), "InvalidModelConfig", ()),
    "lacks": Unresolved(
        config(num_hidden_layers=None), "InvalidModelConfig", ("num_hidden_layers",)
    ),
    "absurd": Unresolved(
        config(num_hidden_layers=2**63), "InvalidModelConfig", ("num_hidden_layers", f"{2**63:,}")
    ),
    "heads": Unresolved(
        a_gpu_pool()
        .set("model.config.inline", json.dumps({**CONFIG, "num_attention_heads": 6}))
        .set("parallelism.tensor", 4),
        "UnsupportedByEngine",
        ("spec.parallelism.tensor: 4", "6 attention heads", "set it to one of 1, 2, 6"),
    ),
    "owned-flag": Unresolved(
        a_pool().args("--max_num_seqs=9"), "FlagRefused", ("--max_num_seqs",), "Configured"
    ),
    "owned-abbreviation": Unresolved(
        a_pool().args("--max-num-batched-token", "9"),
        "FlagRefused",
        ("--max-num-batched-token",),
        "Configured",
    ),
    "owned-variable": Unresolved(
        a_pool().env(VLLM_CPU_KVCACHE_SPACE="4"),
        "FlagRefused",
        ("VLLM_CPU_KVCACHE_SPACE",),
        "Configured",
    ),
    "flags-in-variable": Unresolved(
        a_pool().env(VLLM_ADDITIONAL_ARGS="--max-model-len 9"),
        "FlagRefused",
        ("VLLM_ADDITIONAL_ARGS",),
        "Configured",
    ),
    "config-file": Unresolved(
        a_pool().args("--config", "/c.yaml"), "FlagRefused", ("--config",), "Configured"
    ),
    "template-command": Unresolved(
        a_pool().pod_template(engine_container(command=["bash"])),
        "FlagRefused",
        ("podTemplate", "command"),
        "Configured",
    ),
    "template-refused": Unresolved(
        a_pool().pod_template({"spec": {"restartPolicy": "Sometimes"}}),
        "InvalidPodTemplate",
        ("restartPolicy", "Sometimes"),
        "Configured",
    ),
    "template-type": Unresolved(
        a_pool().pod_template({"spec": {"hostNetwork": "maybe"}}),
        "InvalidPodTemplate",
        ("hostNetwork",),
        "Configured",
    ),
    "template-field": Unresolved(
        a_pool().pod_template({"spec": {"nosuchField": 1}}),
        "InvalidPodTemplate",
        ("nosuchField",),
        "Configured",
    ),
    "template-scalar": Unresolved(
        a_pool().pod_template({"spec": {"containers": "none"}}),
        "InvalidPodTemplate",
        ("containers",),
        "Configured",
    ),
}


@pytest.mark.parametrize("name", UNRESOLVED)
def test_a_pool_that_cannot_run_says_why_and_recovers_by_an_edit(
    name: str, pod_operator: PodOperator, pools: PoolClient
) -> None:
    case = UNRESOLVED[name]
    restarts = pod_operator.restarts()
    pools.create(case.pool)
    found = pools.wait_for(case.kind, "False", case.reason)
    for word in case.words:
        assert word in found["message"]
    pool = pools.get()
    assert is_now(pool, "Stalled", "True", case.reason)
    assert is_now(pool, "Ready", "False", case.reason)
    assert not pools.pods()
    assert "Deployment" not in pools.children()
    assert pod_operator.restarts() == restarts

    # Replaced as a whole, as with `kubectl replace`: nothing of the bad spec stays.
    good = a_pool().build(pools.namespace)
    good["metadata"]["resourceVersion"] = pools.get()["metadata"]["resourceVersion"]
    pools.api.call(
        "PUT",
        f"/apis/ballonet.io/v1alpha1/namespaces/{pools.namespace}/inferencepools/pool",
        good,
    )
    pools.wait_ready()


def test_a_bad_edit_of_a_running_pool_leaves_its_pods_alone(
    pod_operator: PodOperator, pools: PoolClient
) -> None:
    pools.create_ready(a_pool().planner_and_workers(5))
    before = fingerprints(pools.pods())
    budget = pools.budget()
    for spec, reason in (
        ({"sequence": {"maxTokens": 1024}}, "Refused"),
        ({"engine": {"args": ["--max-num-seqs", "99"]}}, "FlagRefused"),
        ({"engine": {"version": "7.7.7"}}, "UnknownEngineVersion"),
        (
            {"engine": {"podTemplate": {"spec": {"restartPolicy": "Sometimes"}}}},
            "InvalidPodTemplate",
        ),
    ):
        undo = {
            "sequence": {"maxTokens": 608},
            "engine": {"args": None, "version": "0.32.0", "podTemplate": None},
        }
        pools.patch({**undo, **_merged(undo, spec)})
        pools.wait_for("Configured", "False", reason)
        assert is_now(pools.get(), "Stalled", "True")
        assert fingerprints(pools.pods()) == before
        assert pools.budget() == budget, "the budget describes what serves"
    pools.patch(undo)
    pools.wait_ready()
    assert fingerprints(pools.pods()) == before, "back where it was, nothing had to restart"


def test_a_config_map_that_appears_later_is_found_and_one_that_goes_changes_conditions_only(
    pod_operator: PodOperator, pools: PoolClient, api: Api, namespace: str
) -> None:
    reference = {"configMapRef": {"name": "model", "key": "config.json"}}
    pools.create(a_pool().set("model.config", reference))
    missing = pools.wait_for("SpecResolved", "False", "ConfigNotFound")
    assert "model" in missing["message"]
    assert not pools.pods()
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "model", "namespace": namespace},
        "data": {"config.json": MODEL_CONFIG.read_text()},
    }
    api.create(config_map)
    # Nobody touches the pool: it recovers by itself. Then a pod has to start.
    pools.wait_ready(timeout_seconds=REFERENCE_SECONDS + 60)
    before = fingerprints(pools.pods())

    api.delete(CONFIG_MAP, namespace, "model")
    pools.wait_for("SpecResolved", "False", "ConfigNotFound", timeout_seconds=REFERENCE_SECONDS)
    assert fingerprints(pools.pods()) == before
    assert is_now(pools.get(), "Available", "True")
    api.create(config_map)
    pools.wait_for("SpecResolved", "True", timeout_seconds=REFERENCE_SECONDS)
    assert fingerprints(pools.pods()) == before


def test_text_of_any_script_reaches_the_engine_unchanged(
    pod_operator: PodOperator, pools: PoolClient
) -> None:
    name = "m-модель-模型-🎈"
    pools.create_ready(a_pool().set("model.servedNames", [name]).env(NOTE="naïve ‘quotes’ \\ $(X)"))
    assert name in pools.stub().state()["argv"]
    assert pools.budget()["servedNames"] == [name]
    (pod,) = pools.pods()
    variables = {v["name"]: v.get("value") for v in pod["spec"]["containers"][0]["env"]}
    assert variables["NOTE"] == "naïve ‘quotes’ \\ $(X)"


def test_the_longest_name_works(pod_operator: PodOperator, pools: PoolClient, api: Api) -> None:
    name = "a" + "b" * 61 + "c"
    assert len(name) == 63
    pools.create_ready(a_pool(name))
    assert pools.budget(name)["pool"] == name
    assert set(pools.children(name)) == {"Deployment", "Service", "ConfigMap"}
    assert len(api.list(POD, pools.namespace)) == 1


def test_a_service_called_vllm_does_no_harm(pod_operator: PodOperator, pools: PoolClient) -> None:
    pools.create_ready(a_pool("vllm"))
    (pod,) = pools.pods("vllm")
    assert pod["spec"]["enableServiceLinks"] is False


def test_an_inline_config_beyond_the_bound_is_refused(crd: None, api: Api, namespace: str) -> None:
    huge = a_pool().set("model.config.inline", "x" * 65_537)
    with pytest.raises(ApiError) as refused:
        api.create(huge.build(namespace))
    assert "spec.model.config.inline" in refused.value.message


def _merged(base: Json, change: Json) -> Json:
    merged = copy.deepcopy(base)
    for key, value in change.items():
        merged[key] = {**merged.get(key, {}), **value}
    return merged
