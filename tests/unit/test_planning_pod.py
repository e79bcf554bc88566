"""What the user's pod template may say of the engine's container."""

from __future__ import annotations

from typing import Any

import pytest

from ballonet.api.v1alpha1 import InferencePoolSpec
from ballonet.planning.plan import Plan
from ballonet.planning.planner import plan_pool
from ballonet.planning.pod import template_problems, template_shape_problem, user_env
from tests.pools import DEMO

REFERENCE = {"configMapKeyRef": {"name": "a", "key": "b"}}


def engine(**fields: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "engine", **fields}]}}


def planned(template: dict[str, Any], **changes: Any) -> Plan:
    # Not merged over: a merge patch would drop the null members.
    written = {**DEMO, "engine": {**DEMO["engine"], "podTemplate": template, **changes}}
    return plan_pool("demo", InferencePoolSpec.model_validate(written))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"args": ["--max-num-seqs=99"]}, "sets args of container engine: use spec.engine.args"),
        ({"args": []}, "sets args of container engine: use spec.engine.args"),
        ({"command": ["sh"]}, "sets command of container engine: use spec.engine.args"),
        ({"envFrom": [{"secretRef": {"name": "s"}}]}, "sets envFrom of container engine"),
    ],
)
def test_a_plan_refuses_what_is_not_the_users_to_set(fields: dict[str, Any], words: str) -> None:
    plan = planned(engine(**fields))
    assert len(plan.refused_arguments) == 1
    assert words in plan.refused_arguments[0]


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ({"metadata": 1}, "podTemplate.metadata must be a map"),
        ({"metadata": {"labels": []}}, "podTemplate.metadata.labels must be a map"),
        ({"spec": []}, "podTemplate.spec must be a map"),
        ({"spec": {"containers": {}}}, ".spec.containers must be a list of maps with name"),
        ({"spec": {"containers": ["engine"]}}, ".spec.containers must be a list of maps with name"),
        ({"spec": {"volumes": [{}]}}, ".spec.volumes must be a list of maps with name"),
        (engine(env={"A": "b"}), "containers[engine].env must be a list of maps with name"),
        (engine(env=[{"name": ["A"]}]), "containers[engine].env must be a list of maps with name"),
        (engine(volumeMounts=[{"name": "a"}]), ".volumeMounts must be a list of maps with mountPa"),
        (engine(ports=[{"containerPort": {}}]), ".ports must be a list of maps with containerPort"),
    ],
)
def test_a_plan_refuses_a_template_of_the_wrong_shape(template: dict[str, Any], words: str) -> None:
    plan = planned(template)
    assert len(plan.refused_arguments) == 1
    assert words in plan.refused_arguments[0]
    assert template_shape_problem(plan.spec) == plan.refused_arguments[0]


@pytest.mark.parametrize(
    "template",
    [
        {},
        {"metadata": None, "spec": {"containers": None, "volumes": [None]}},
        engine(args=None, command=None, envFrom=None, env=None),
        engine(envFrom=[], resources={"limits": {"cpu": "2"}}),
        {"spec": {"containers": [{"name": "sidecar", "args": ["a"], "command": ["sh"]}]}},
    ],
)
def test_everything_else_is_the_users(template: dict[str, Any]) -> None:
    plan = planned(template)
    assert plan.refused_arguments == ()
    assert template_shape_problem(plan.spec) is None
    assert template_problems(plan.spec) == []


@pytest.mark.parametrize("env", [[], [{"name": "X", "value": ""}], [{"name": "X", "value": "a"}]])
def test_a_reference_is_never_taken_for_its_value(env: list[dict[str, str]]) -> None:
    template = engine(env=[{"name": "X", "valueFrom": REFERENCE}])
    plan = planned(template, env=env, args=["--seed", "0", "$(X)"])
    assert user_env(plan.spec)["X"] is None
    assert any("'$(X)'" in sentence for sentence in plan.refused_arguments)


def test_plain_variables_of_the_template_are_read() -> None:
    template = engine(
        env=[
            {"name": "X", "value": "--seed"},
            {"name": "X", "value": "--max-num-seqs", "valueFrom": None},
        ]
    )
    plan = planned(template, args=["$(X)=1"])
    assert any("--max-num-seqs" in sentence for sentence in plan.refused_arguments)
    plan = planned(template, args=["$(X)=1"], env=[{"name": "X", "value": "--seed"}])
    assert plan.refused_arguments == ()


def test_a_reference_may_not_hold_arguments() -> None:
    template = engine(env=[{"name": "VLLM_ADDITIONAL_ARGS", "valueFrom": REFERENCE}])
    assert "VLLM_ADDITIONAL_ARGS" in planned(template).refused_arguments[0]
    token = engine(env=[{"name": "HF_TOKEN", "valueFrom": REFERENCE}])
    assert planned(token).refused_arguments == ()
