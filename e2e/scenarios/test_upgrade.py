"""A newer operator takes over running pools: nothing restarts because something was learnt."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path

import pytest

from e2e.conftest import LocalFactory
from e2e.harness import installation
from e2e.harness.api import Api, Json
from e2e.harness.installation import REPOSITORY
from e2e.harness.poll import eventually, never
from e2e.harness.pool_client import PoolClient, fingerprints
from e2e.harness.pools import a_pool, condition, is_now

LOOKS_SECONDS = 20
# Each says the same thing in another way: added at the end of a module, it changes what the module
# gives to others.
CHANGED_DEFAULTS = """
_release_defaults = _defaults
def _defaults(*args, **kwargs):
    template = _release_defaults(*args, **kwargs)
    template["spec"]["priorityClassName"] = ""
    template["spec"]["terminationGracePeriodSeconds"] = 7
    template["spec"]["containers"][0]["env"].append({"name": "NEWER", "value": "1"})
    return template
"""
CHANGED_PLANNER = """
_release_render_args = render_args
def render_args(gates, version):
    return (*_release_render_args(gates, version), "--newer-flag")
"""


@pytest.fixture
def newer_source(tmp_path: Path) -> Path:
    """The operator's source as a later release might be: other defaults, another planner."""
    source = tmp_path / "source"
    shutil.copytree(REPOSITORY / "operator", source, ignore=shutil.ignore_patterns("__pycache__"))
    for module, text in (
        ("reconcile/children.py", CHANGED_DEFAULTS),
        ("engines/vllm.py", CHANGED_PLANNER),
    ):
        path = source / "ballonet" / module
        path.write_text(path.read_text() + text)
    return source


@pytest.fixture
def newer_crd(api: Api) -> Json:
    """The definition with a default more, for a field that had none."""
    definition = copy.deepcopy(installation.pool_crd())
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    sequence = schema["properties"]["spec"]["properties"]["sequence"]["properties"]
    assert "default" not in sequence["maxBatchedTokens"]
    sequence["maxBatchedTokens"]["default"] = 4096
    return definition


def test_a_newer_operator_and_definition_restart_nothing(
    local_operators: LocalFactory,
    newer_source: Path,
    newer_crd: Json,
    api: Api,
    pools: PoolClient,
) -> None:
    old = local_operators("old")
    old.start()
    pools.create(a_pool().planner_and_workers(5))
    pools.wait_measured()
    before = fingerprints(pools.pods())
    template = pools.deployment()["spec"]["template"]
    budget = pools.budget()
    old.stop()
    try:
        installation.install_crd(api, newer_crd)
        # The API server may still answer by the definition before for a moment.
        eventually(
            lambda: pools.get()["spec"]["sequence"]["maxBatchedTokens"] == 4096,
            "the new default is served",
        )

        newer = local_operators("newer", source=newer_source)
        newer.start()
        pending = pools.wait_for("Configured", "True", "UpdatePending")
        assert pending["message"]
        never(
            lambda: (
                fingerprints(pools.pods()) != before
                or pools.deployment()["spec"]["template"] != template
            ),
            "something was restarted because the operator is newer",
            seconds=LOOKS_SECONDS,
        )
        assert is_now(pools.get(), "Ready", "True")
        assert pools.budget() == budget
        assert len(pools.replica_sets()) == 1
        # Scaling follows the template that serves.
        pools.patch({"replicas": 2})
        pools.wait(lambda pool: pool["status"].get("readyReplicas") == 2, "scaled")
        assert before <= fingerprints(pools.pods())
        assert len(pools.replica_sets()) == 1

        # What is pending goes out with the user's next change.
        pools.patch({"sequence": {"maxTokens": 320}})
        pools.wait_ready()
        (container,) = pools.deployment()["spec"]["template"]["spec"]["containers"]
        assert "--newer-flag" in container["args"]
        assert {"name": "NEWER", "value": "1"} in container["env"]
        assert (condition(pools.get(), "Configured") or {})["reason"] == "Applied"
    finally:
        installation.install_crd(api, installation.pool_crd())
