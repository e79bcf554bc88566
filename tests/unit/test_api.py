"""The parser: it takes and refuses what the API server takes and refuses (e2e/crd)."""

import json
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from ballonet.api.v1alpha1 import NAME_RULE, InferencePoolSpec
from e2e.crd.examples import EXAMPLES, NODES, RULES, Example, minimal_pool

GOLDEN = Path(__file__).parents[1] / "golden" / "crd"
ACCEPTED = [example for example in EXAMPLES if example.refused is None]
REFUSED = [example for example in EXAMPLES if example.refused is not None]


def parse(spec: dict) -> InferencePoolSpec:
    return InferencePoolSpec.model_validate_json(json.dumps(spec))


@pytest.mark.parametrize("example", ACCEPTED, ids=lambda example: example.id)
def test_accepted(example: Example):
    assert NAME_RULE.holds(example.pool["metadata"]["name"])
    parse(example.pool["spec"])


@pytest.mark.parametrize("example", REFUSED, ids=lambda example: example.id)
def test_refused_at_the_field(example: Example):
    field, message = example.refused
    if message in NAME_RULE.message:
        assert not NAME_RULE.holds(example.pool["metadata"]["name"])
        return
    with pytest.raises(ValidationError) as caught:
        parse(example.pool["spec"])
    if message in RULES:
        assert message in str(caught.value)
        return
    where = field.replace("[", ".").replace("]", "").split(".")[1:]
    if message == "Duplicate value":  # told at the object that holds the list
        *where, name, _ = where
        assert f"{name} has " in str(caught.value)
    found = [[str(step) for step in error["loc"]] for error in caught.value.errors()]
    assert any(path[: len(where)] == where for path in found)


def test_every_rule_of_the_schema_has_accepted_and_refused_examples():
    messages = [
        rule["message"]
        for node in NODES.values()
        for rule in node.get("x-kubernetes-validations", [])
        if not node.get("x-kubernetes-int-or-string")  # their examples come with the bounds
    ]
    messages.append(NAME_RULE.message)
    for part, (_, accepted, refused) in RULES.items():
        assert accepted, part
        assert refused, part
    assert len(messages) == len(set(messages)) == len(RULES)
    assert all(any(part in message for part in RULES) for message in messages)


def test_every_field_of_the_spec_has_an_accepted_and_a_refused_example():
    told = {example.id.split(" ")[0] for example in EXAMPLES}
    for path, node in NODES.items():
        if path != ("spec",) and not node.get("x-kubernetes-preserve-unknown-fields"):
            field = "".join(f"[{s}]" if isinstance(s, int) else f".{s}" for s in path)[1:]
            assert field in told, path


@pytest.mark.parametrize("name", ["minimal", "full", "cpu"])
def test_pools_of_v1alpha1_keep_their_meaning(name: str):
    """A changed default changes stored pools: it is a breaking change of the API."""
    pool = yaml.safe_load((GOLDEN / f"{name}.yaml").read_text())
    expected = json.loads((GOLDEN / f"{name}.parsed.json").read_text())
    assert parse(pool["spec"]).model_dump(mode="json", by_alias=True) == expected


def test_the_full_pool_sets_every_field():
    pool = yaml.safe_load((GOLDEN / "full.yaml").read_text())
    not_there = []
    for path in NODES:
        target = pool
        for step in path:
            try:
                target = target["example.com/pool" if step == "a" else step]
            except (KeyError, IndexError):
                not_there.append(path)
                break
    assert not_there == [("spec", "model", "config", "inline")]  # it excludes configMapRef


def test_unknown_fields_are_ignored():
    spec = minimal_pool()["spec"]
    assert parse({**spec, "fromTheFuture": {"a": 1}}) == parse(spec)


def test_the_users_own_text_of_a_quantity_is_kept():
    spec = parse({**minimal_pool()["spec"], "budget": {"kvCacheMemoryPerRank": "1024Mi"}})
    assert spec.budget.kv_cache_memory_per_rank == "1024Mi"
