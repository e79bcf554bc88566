import pytest
import yaml

from ballonet.api.parse import InvalidPoolError, parse_spec, unknown_fields
from e2e.crd.examples import minimal_pool
from tests.unit.test_api import GOLDEN


def full_pool() -> dict:
    return yaml.safe_load((GOLDEN / "full.yaml").read_text())


def test_a_pool_of_the_api_server_is_read():
    assert parse_spec(full_pool()).sequence.max_tokens == 32768


def test_each_problem_names_its_field():
    pool = full_pool()
    pool["metadata"]["name"] = "Not_A_Name"
    pool["spec"]["topologies"][0]["roles"][1]["count"] = 0
    pool["spec"]["engine"]["version"] = "latest"
    with pytest.raises(InvalidPoolError) as caught:
        parse_spec(pool)
    name, version, count = sorted(caught.value.problems)
    assert name.startswith("metadata.name must be a DNS-1035 label")
    assert version.startswith("spec.engine.version: ")
    assert count.startswith("spec.topologies[0].roles[1].count: ")
    assert "greater than or equal to 1" in count


def test_a_broken_rule_is_told_in_its_own_words():
    pool = minimal_pool()
    pool["spec"]["accelerator"]["type"] = "CPU"
    with pytest.raises(InvalidPoolError) as caught:
        parse_spec(pool)
    assert caught.value.problems[0].startswith("spec: accelerator.type CPU needs budget.")


@pytest.mark.parametrize("pool", [{}, {"spec": None}, {"spec": []}, {"metadata": [], "spec": "x"}])
def test_what_is_no_pool_is_refused(pool):
    with pytest.raises(InvalidPoolError, match=r"metadata\.name"):
        parse_spec(pool)


def test_many_problems_are_counted():
    pool = minimal_pool()
    pool["spec"]["engine"]["args"] = [""] * 20
    with pytest.raises(InvalidPoolError, match="and 12 more"):
        parse_spec(pool)


def test_unknown_fields_are_named_and_the_pod_template_is_left_alone():
    pool = full_pool()
    assert unknown_fields(pool) == []
    pool["spec"]["sequence"]["maxToken"] = 1
    pool["spec"]["topologies"][0]["roles"][1]["max_tokens"] = 1
    pool["spec"]["engine"]["podTemplate"]["anything"] = 1
    assert unknown_fields(pool) == [
        "spec.sequence.maxToken",
        "spec.topologies[0].roles[1].max_tokens",
    ]


@pytest.mark.parametrize("spec", [None, [], "text", {"topologies": {"a": 1}}, {"model": None}])
def test_unknown_fields_of_what_does_not_parse(spec):
    assert unknown_fields({"spec": spec}) == []
