"""The probe in a pod: what it is told, and what keeps it from being loaded."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ballonet.api.conditions import Reason, Status
from ballonet.planning.planner import plan_pool
from ballonet.planning.pod import user_env
from ballonet.planning.probe import probe_env, probe_ports
from ballonet_probe.settings import RoleLimits, read_settings
from tests.pools import DEMO, H100, role, spec, topology

ENABLED = {"perSequence": "Enabled"}
ZIP = "/opt/ballonet-probe/ballonet_probe.zip"


def env_of(base: dict[str, Any] = DEMO, /, **changes: Any) -> dict[str, str]:
    pool = spec(base, metrics=ENABLED, **changes)
    return probe_env(pool, user_env(pool))


def variables(**values: str) -> dict[str, Any]:
    return {**DEMO["engine"], "env": [{"name": n, "value": v} for n, v in values.items()]}


def in_template(name: str, **fields: Any) -> dict[str, Any]:
    container = {"name": "engine", "env": [{"name": name, **fields}]}
    return {**DEMO["engine"], "podTemplate": {"spec": {"containers": [container]}}}


def test_nothing_without_it() -> None:
    pool = spec(DEMO)
    assert probe_env(pool, user_env(pool)) == {}
    assert probe_ports(pool) == ()


def test_the_probe_reads_what_it_is_told() -> None:
    topologies = [
        topology(
            role("planner", compactAtTokens=700), role("worker", maxTokens=512), name="research"
        ),
        topology(role("worker", maxTokens=256, compactAtTokens=200), name="review"),
    ]
    settings = read_settings(env_of(topologies=topologies))
    assert settings.port == 9109
    # Of two roles of one name the laxest promise counts: no ceiling 512 and no compaction at 200.
    assert settings.roles == {"planner": RoleLimits(1024, 700), "worker": RoleLimits(512, None)}
    assert settings.enabled


@pytest.mark.parametrize(
    ("engine", "path"),
    [
        (DEMO["engine"], ZIP),
        (variables(PYTHONPATH=""), ZIP),
        (variables(PYTHONPATH="/mine:/other"), f"{ZIP}:/mine:/other"),
        (in_template("PYTHONPATH", value="/mine"), f"{ZIP}:/mine"),
    ],
)
def test_it_goes_before_the_users_own_path(engine: dict[str, Any], path: str) -> None:
    assert env_of(engine=engine)["PYTHONPATH"] == path


@pytest.mark.parametrize(
    ("engine", "plugins"),
    [
        (DEMO["engine"], None),  # unset, it means all of them
        (variables(VLLM_PLUGINS=""), "ballonet_probe"),
        (variables(VLLM_PLUGINS="a,b"), "a,b,ballonet_probe"),
        (variables(VLLM_PLUGINS="a,ballonet_probe"), None),
        (in_template("VLLM_PLUGINS", value="a"), "a,ballonet_probe"),
    ],
)
def test_it_is_added_to_the_plugins_that_a_user_names(
    engine: dict[str, Any], plugins: str | None
) -> None:
    assert env_of(engine=engine).get("VLLM_PLUGINS") == plugins


def test_each_engine_of_a_pod_has_a_port() -> None:
    pool = spec(H100, metrics=ENABLED, parallelism={"tensor": 2, "data": 3})
    assert probe_ports(pool) == (9109, 9110, 9111)


def test_no_argument_and_no_figure_of_the_plan_changes() -> None:
    with_probe = plan_pool("a", spec(DEMO, metrics=ENABLED))
    without = plan_pool("a", spec(DEMO))
    assert with_probe.engine_args == without.engine_args
    assert with_probe.pod == without.pod
    assert with_probe.topology == without.topology


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        (variables(BALLONET_PROBE="off"), "variable BALLONET_PROBE is set by Ballonet"),
        (variables(BALLONET_PROBE_PORT="1"), "variable BALLONET_PROBE_PORT is set by Ballonet"),
        (
            in_template("PYTHONPATH", valueFrom={"configMapKeyRef": {"name": "a", "key": "b"}}),
            "variable PYTHONPATH is a reference",
        ),
        (
            in_template("VLLM_PLUGINS", valueFrom={"configMapKeyRef": {"name": "a", "key": "b"}}),
            "variable VLLM_PLUGINS is a reference",
        ),
    ],
)
def test_variables_that_would_keep_it_out(engine: dict[str, Any], words: str) -> None:
    (sentence,) = plan_pool("a", spec(DEMO, metrics=ENABLED, engine=engine)).refused_arguments
    assert words in sentence
    assert plan_pool("a", spec(DEMO, engine=engine)).refused_arguments == ()


def test_how_many_ids_are_shown_stays_the_users() -> None:
    engine = variables(BALLONET_PROBE_TOP="8", BALLONET_PROBE_IDS="plain")
    plan = plan_pool("a", spec(DEMO, metrics=ENABLED, engine=engine))
    assert plan.refused_arguments == ()


@pytest.mark.parametrize(("version", "known"), [("0.16.0", False), ("0.17.1", True)])
def test_a_version_that_it_does_not_know_is_refused(version: str, known: bool) -> None:
    plan = plan_pool("a", spec(H100, metrics=ENABLED, engine={"version": version}))
    assert (plan.spec_resolved.status is Status.TRUE) == known
    if not known:
        assert plan.spec_resolved.reason is Reason.UNSUPPORTED_BY_ENGINE
        assert "spec.metrics.perSequence: the probe reads vLLM 0.17" in plan.spec_resolved.message


def test_ceilings_are_json_on_one_line() -> None:
    text = env_of(DEMO)["BALLONET_PROBE_ROLES"]
    assert json.loads(text) == {
        "planner": {"ceilingTokens": 1024},
        "worker": {"ceilingTokens": 1024},
    }
    assert "\n" not in text
