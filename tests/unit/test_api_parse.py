import pytest
import yaml

from ballonet.api.crdgen import pool_schema
from ballonet.api.parse import InvalidPoolError, parse_spec, unknown_fields
from ballonet.api.quantity import PATTERN as QUANTITY_PATTERN
from ballonet.api.v1alpha1 import FORMS
from ballonet.planning.remedies import apply_merge_patch
from e2e.crd.examples import minimal_pool
from tests.pools import DEMO, role, topology
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
    assert "0 is below 1: give at least 1" in count


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
    assert [field.path for field in unknown_fields(pool)] == [
        "spec.sequence.maxToken",
        "spec.topologies[0].roles[1].max_tokens",
    ]


@pytest.mark.parametrize("spec", [None, [], "text", {"topologies": {"a": 1}}, {"model": None}])
def test_unknown_fields_of_what_does_not_parse(spec):
    assert unknown_fields({"spec": spec}) == []


# --- where it is wrong, what stands there, and what to do ----------------------------------------


def problems(name: str = "demo", **changes: object) -> tuple[str, ...]:
    pool = {"metadata": {"name": name}, "spec": apply_merge_patch(DEMO, changes)}
    with pytest.raises(InvalidPoolError) as caught:
        parse_spec(pool)
    return caught.value.problems


def test_a_right_pool_is_read():
    read = parse_spec({"metadata": {"name": "demo"}, "spec": DEMO})
    assert read.sequence.max_tokens == 1024


def test_each_role_above_the_ceiling_is_named():
    roles = topology(
        role("planner", maxTokens=4096), role("worker"), role("critic", maxTokens=1025)
    )
    found = problems(topologies=[topology(role("a"), name="first"), roles])
    assert [line.split(":")[0] for line in found] == [
        "spec.topologies[1].roles[0].maxTokens",
        "spec.topologies[1].roles[2].maxTokens",
    ]
    assert "4,096 is above spec.sequence.maxTokens 1,024" in found[0]


def test_a_prefix_that_is_not_declared_is_named_with_those_that_are():
    found = problems(
        sharedPrefixes=[{"name": "system", "tokens": 32}],
        topologies=[topology(role("planner", sharedPrefix="sistem"))],
    )
    assert found == (
        "spec.topologies[0].roles[0].sharedPrefix: sistem is not one of spec.sharedPrefixes "
        "(system)",
    )


def test_prefixes_longer_than_role_or_pool_are_named():
    found = problems(
        sharedPrefixes=[{"name": "p", "tokens": 2048}],
        topologies=[topology(role("planner", sharedPrefix="p", maxTokens=512))],
    )
    assert any(line.startswith("spec.topologies[0].roles[0].sharedPrefix: p") for line in found)
    assert any(line.startswith("spec.sharedPrefixes[0].tokens: 2,048") for line in found)


@pytest.mark.parametrize("count", [0, -1, 10_001, "5", 1.5, True, None])
def test_counts_that_are_none(count: object):
    (found,) = problems(topologies=[{"name": "t", "roles": [{"name": "w", "count": count}]}])
    assert found.startswith("spec.topologies[0].roles[0].count: ")


def test_cpu_needs_memory_and_an_image():
    found = problems(budget=None, engine={"image": None})
    assert [line.split(":")[0] for line in found] == [
        "spec.budget.kvCacheMemoryPerRank",
        "spec.engine.image",
    ]


@pytest.mark.parametrize("name", ["Demo", "1demo", "de mo", "a" * 64, "demo-", "", "dé"])
def test_illegal_names(name: str):
    assert problems(name) and "metadata.name" in problems(name)[0]


def test_fields_that_are_missing_or_of_another_type():
    assert problems(sequence=None) == ("spec.sequence: Field required",)
    (found,) = problems(topologies="none")
    assert found.startswith("spec.topologies: ")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"replicas": 1001}, "spec.replicas: 1,001 is above 1,000: give at most 1000"),
        (
            {"replicas": True},
            "spec.replicas: true is not a whole number: write its digits, without unit, point and "
            "quotes",
        ),
        ({"whenUnfit": "warn"}, "spec.whenUnfit: 'warn' should be 'Refuse' or 'Warn'"),
        ({"model": "tiny"}, "spec.model: 'tiny' should be an object"),
        ({"topologies": {}}, "spec.topologies: an object should be a valid list"),
        (
            {"model": {"servedNames": list("abcdefghijklmnopq")}},
            "spec.model.servedNames: a list of 17 should have at most 16 items",
        ),
        (
            {"model": {"servedNames": ["a", "b", "a"]}},
            "spec.model.servedNames[2]: 'a' stands there already: rename or remove it",
        ),
        (
            {"topologies": [topology(role("a"), role("a"))]},
            "spec.topologies[0].roles[1]: 'a' stands there already: rename or remove it",
        ),
        (
            {"model": {"revision": "a" * 129}},
            f"spec.model.revision: '{'a' * 37}...' should have at most 128 characters",
        ),
        (
            {"accelerator": {"nodeSelector": {"-a": "b"}}},
            "spec.accelerator.nodeSelector: '-a' is not a label key: write for example "
            "example.com/gpu or gpu",
        ),
        (
            {"topologies": [topology(role("a", count=10_000), runs=101)]},
            "spec.topologies: 1,010,000 sequences at once are needed together, more than "
            "1,000,000: lower concurrentRuns or counts",
        ),
    ],
)
def test_a_problem_names_place_value_and_cure(changes: dict, told: str):
    assert problems(**changes) == (told,)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"engine": {"version": 0.33}},
            "spec.engine.version: 0.33 is not text: write it in quotes, three numbers with dots "
            "and without v, for example 0.32.0",
        ),
        (
            {"engine": {"version": "v0.32.0"}},
            "spec.engine.version: 'v0.32.0' is not of the right form: use three numbers with dots "
            "and without v, for example 0.32.0",
        ),
        (
            {"topologies": [topology(role("a"), name="Research_1")]},
            "spec.topologies[0].name: 'Research_1' is not of the right form: use a-z, 0-9 and -, "
            "starting with a letter, for example research-1",
        ),
        (
            {"accelerator": {"nodeSelector": {"a": "b c"}}},
            "spec.accelerator.nodeSelector.a: 'b c' is not of the right form: use letters, digits, "
            "-, _ and ., starting and ending with a letter or digit",
        ),
        (
            {"sequence": {"maxTokens": "32k"}},
            "spec.sequence.maxTokens: '32k' is not a whole number: write its digits, without unit, "
            "point and quotes",
        ),
    ],
)
def test_what_to_write_is_said_in_words(changes: dict, told: str):
    assert problems(**changes) == (told,)


def test_every_pattern_of_the_spec_has_words():
    def patterns(node: dict) -> set[str]:
        found = {node["pattern"]} if "pattern" in node else set()
        children = [*node.get("properties", {}).values(), node.get("items", {})]
        children.append(node.get("additionalProperties", {}))
        return found.union(*(patterns(child) for child in children if child))

    schema = pool_schema()["properties"]["spec"]
    assert len(patterns(schema)) > 10
    assert patterns(schema) - {QUANTITY_PATTERN} <= FORMS.keys()


@pytest.mark.parametrize(
    "engine",
    [
        {"args": ["hush" * 1025]},
        {"args": "hush"},
        {"env": [{"name": "TOKEN=hush"}]},
        {"env": [{"name": "TOKEN", "value": "hush" * 1025}]},
        {"env": ["TOKEN=hush"]},
        {"env": {"TOKEN": "hush"}},
        {"podTemplate": "hush"},
        "args: [--api-key, hush]",
    ],
)
def test_what_may_be_a_secret_is_not_repeated(engine: object):
    (told,) = problems(engine=engine)
    assert told.startswith("spec.engine")
    assert "hush" not in told


# --- what lands in the engine's arguments --------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"model": {"servedNames": ["tiny", "--watermark=0.5"]}},
        {"model": {"servedNames": ["-h"]}},
        {"model": {"servedNames": ["$(X)"]}},
        {"model": {"servedNames": ["a$(X)"]}},
        {"model": {"servedNames": ["a\x00b"]}},
        {"model": {"servedNames": ["a\nb"]}},
        {"model": {"name": "--headless"}},
        {"model": {"name": "a$(X)"}},
        {"model": {"revision": "--headless"}},
        {"model": {"revision": "a$(X)"}},
        {"model": {"claim": {"name": "c", "path": "-x"}}},
        {"model": {"claim": {"name": "c", "path": "a/$(X)"}}},
        {"model": {"claim": {"name": "c", "path": "../a"}}},
        {"engine": {"image": "--privileged"}},
        {"engine": {"image": "a$(X)"}},
    ],
)
def test_no_text_of_the_model_can_become_a_flag(changes: dict):
    (problem,) = problems(**changes)
    assert "is not of the right form: use " in problem


@pytest.mark.parametrize(
    "image",
    ["a", "localhost:5000/a/b:1.2-c", "[::1]:5000/a", "r.example/a_b@sha256:0123", "A1/x__y:V_1"],
)
def test_images_of_all_shapes_are_read(image: str):
    spec = apply_merge_patch(DEMO, {"engine": {"image": image}})
    assert parse_spec({"metadata": {"name": "demo"}, "spec": spec}).engine.image == image


def nested(levels: int) -> dict:
    template: dict = {}
    for _ in range(levels - 1):
        template = {"a": template}
    return template


def test_a_pod_template_has_bounded_depth():
    spec = {**DEMO, "engine": {**DEMO["engine"], "podTemplate": nested(100)}}
    parse_spec({"metadata": {"name": "demo"}, "spec": spec})
    for levels in (101, 970):
        spec["engine"]["podTemplate"] = {"a": [nested(levels - 2)]}
        with pytest.raises(InvalidPoolError) as caught:
            parse_spec({"metadata": {"name": "demo"}, "spec": spec})
        assert caught.value.problems == (
            "spec.engine.podTemplate: is nested deeper than 100 levels; no pod template is",
        )


@pytest.mark.parametrize("namespace", [["a"], {"a": 1}, 5, True, "a\nb", "A", "", "a" * 64, "a."])
def test_a_namespace_is_a_name(namespace: object):
    with pytest.raises(InvalidPoolError) as caught:
        parse_spec({"metadata": {"name": "demo", "namespace": namespace}, "spec": DEMO})
    (problem,) = caught.value.problems
    assert problem.startswith("metadata.namespace: ")


@pytest.mark.parametrize("name", [["a"], {"a": 1}, 5, None])
def test_a_name_is_text(name: object):
    with pytest.raises(InvalidPoolError, match=r"^metadata\.name: .* must be text$"):
        parse_spec({"metadata": {"name": name}, "spec": DEMO})
