"""The generator of the CRD and the self-check of its schema."""

import copy
from collections.abc import Callable
from typing import Annotated

import pytest
from pydantic import Field

from ballonet.api import crdgen
from ballonet.api.conditions import ConditionType
from ballonet.api.model import Model, integer, text
from hack import generate
from tests.unit import schema_check


def test_the_tree_holds_what_the_generator_gives():
    assert generate.outdated() == {}


def test_the_schema_of_the_resource_has_no_violation():
    assert schema_check.violations(crdgen.pool_schema()) == []


def test_columns_stand_in_the_order_in_which_a_person_reads():
    assert [name.upper() for name, _, _ in crdgen.COLUMNS] == [
        *("MODEL", "GPU", "CEILING", "NEED", "HAVE"),
        *("FITS", "SOURCE", "READY", "REASON", "AGE"),
    ]


def test_need_and_have_are_blocks_and_slots_and_verdict_are_only_shown_wide():
    (version,) = crdgen.crd()["spec"]["versions"]
    columns = {column["name"]: column for column in version["additionalPrinterColumns"]}
    assert columns["Need"]["jsonPath"] == ".status.topology.needBlocks"
    assert columns["Have"]["jsonPath"] == ".status.topology.budgetBlocks"
    assert {name for name, column in columns.items() if column.get("priority")} == {
        *("RequiredSlots", "AvailableSlots", "Slots", "Verdict")
    }


def node_at(schema: dict, path: str) -> dict | None:
    for step in path.strip(".").split("."):
        schema = schema.get("properties", {}).get(step)
        if schema is None:
            return None
    return schema


@pytest.mark.parametrize(
    "path",
    [
        path
        for _, _, path in crdgen.COLUMNS + crdgen.WIDE_COLUMNS
        if "[" not in path and "metadata" not in path
    ]
    + list(crdgen.SELECTABLE_FIELDS)
    + [".spec.replicas", ".status.replicas", ".status.selector"],
)
def test_paths_of_columns_selectors_and_scale_exist(path: str):
    assert node_at(crdgen.pool_schema(), path) is not None


def test_columns_of_conditions_name_existing_types():
    types = [path.split('"')[1] for _, _, path in crdgen.COLUMNS if "[?" in path]
    assert types
    assert set(types) <= set(ConditionType)


def test_an_object_that_is_always_there_defaults_to_its_own_defaults():
    spec = crdgen.pool_schema()["properties"]["spec"]["properties"]
    for name in ("parallelism", "budget", "admission", "rollout"):
        assert spec[name]["default"] == {}
    for name in ("model", "engine", "accelerator", "sequence", "topologies"):
        assert "default" not in spec[name]


def test_status_has_no_defaults():
    def walk(node: dict) -> None:
        assert "default" not in node
        for child in [*node.get("properties", {}).values(), node.get("items", {})]:
            if child:
                walk(child)

    walk(crdgen.pool_schema()["properties"]["status"])


# --- what a structural schema cannot say ---------------------------------------------------------


class Twice(Model):
    value: Annotated[int, integer(0, 1)] | Annotated[str, text(1)]


class Loop(Model):
    inner: "Loop | None" = None


class Pair(Model):
    value: tuple[int, int]


class Exclusive(Model):
    value: Annotated[int, Field(gt=0)]


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Twice, "value: has more than one type"),
        (Loop, "inner: Loop contains itself"),
        (Pair, "value: prefixItems cannot be said"),
        (Exclusive, "value: exclusiveMinimum cannot be said"),
    ],
)
def test_refused_by_the_generator(model: type[Model], words: str):
    with pytest.raises(crdgen.NotStructuralError, match=words):
        crdgen.structural(model.model_json_schema(by_alias=True))


# --- the self-check finds each kind of violation -------------------------------------------------

Change = Callable[[dict], object]


def drop(key: str) -> Change:
    return lambda node: node.pop(key)


def put(**values: object) -> Change:
    return lambda node: node.update(values)


REPLICAS, NAME = ".spec.replicas", ".spec.model.name"
TOPOLOGIES, NODES = ".spec.topologies", ".spec.accelerator.nodeSelector"
QUANTITY = ".spec.budget.kvCacheMemoryPerRank"
LIST_TYPE, LIST_KEYS = "x-kubernetes-list-type", "x-kubernetes-list-map-keys"
BOUNDS = {"format": "int32", "minimum": 0, "maximum": 1, "description": "A."}

VIOLATIONS: dict[str, tuple[str, Change, str]] = {
    "no description": (NAME, drop("description"), "has no description"),
    "no type": (NAME, drop("type"), "must have one type"),
    "two types": (NAME, put(type=["string", "integer"]), "must have one type"),
    "union": (NAME, put(anyOf=[{"type": "string"}]), "must have one type"),
    "float": (REPLICAS, put(type="number"), "is a number"),
    "boolean": (REPLICAS, put(type="boolean"), "is a boolean"),
    "nullable": (REPLICAS, put(nullable=True), "is nullable"),
    "string without bound": (NAME, drop("maxLength"), "is a string without maxLength"),
    "default too long": (NAME, put(default="a" * 254), "has a default longer"),
    "integer without minimum": (REPLICAS, drop("minimum"), "without minimum and maximum"),
    "integer without maximum": (REPLICAS, drop("maximum"), "without minimum and maximum"),
    "integer without format": (REPLICAS, drop("format"), "without format int32 or int64"),
    "bounds beyond format": (REPLICAS, put(maximum=2**31), "outside int32"),
    "bounds the wrong way": (REPLICAS, put(maximum=-1), "outside int32"),
    "default out of bounds": (REPLICAS, put(default=1001), "has the default 1001"),
    "enum style": (".spec.whenUnfit", put(enum=["refuse"]), "which is not CamelCase"),
    "enum default": (".spec.whenUnfit", put(default="Maybe"), "which is not in its enum"),
    "list without bound": (TOPOLOGIES, drop("maxItems"), "is a list without maxItems"),
    "list without items": (TOPOLOGIES, drop("items"), "is a list without items"),
    "list without type": (TOPOLOGIES, drop(LIST_TYPE), "is a list without list type"),
    "unique items": (TOPOLOGIES, put(uniqueItems=True), "use list type set"),
    "map list without keys": (TOPOLOGIES, drop(LIST_KEYS), "is a map list without keys"),
    "map list with optional key": (
        TOPOLOGIES,
        lambda node: node["items"].update(required=["roles"]),
        "has the key name, which is neither required nor defaulted",
    ),
    "set of objects": (
        TOPOLOGIES,
        lambda node: node.update({LIST_TYPE: "set"}),
        "is a set of objects",
    ),
    "map without bound": (NODES, drop("maxProperties"), "is a map without maxProperties"),
    "map value without bound": (
        NODES,
        lambda node: node["additionalProperties"].pop("maxLength"),
        "[*]: is a string without maxLength",
    ),
    "open object": (".spec.rollout", drop("properties"), "is an object without properties"),
    "open map": (NODES, put(additionalProperties=True), "is an object without properties"),
    "object and map": (
        ".spec.rollout",
        put(additionalProperties={"type": "string", "maxLength": 1}),
        "has properties and additionalProperties",
    ),
    "opaque": (
        ".spec.rollout",
        lambda node: node.update({"x-kubernetes-preserve-unknown-fields": True}),
        "keeps unknown fields; only .spec.engine.podTemplate may",
    ),
    "required but not there": (".spec.model", put(required=["nam"]), "requires nam, which does"),
    "required with default": (
        ".spec",
        put(required=["replicas"]),
        "requires replicas, which has a default",
    ),
    "quantity without bound": (QUANTITY, drop("maxLength"), "without maxLength and pattern"),
    "quantity without pattern": (QUANTITY, drop("pattern"), "without maxLength and pattern"),
    "quantity with type": (QUANTITY, put(type="string"), "must have no type"),
    "field name": (
        ".spec.rollout",
        lambda node: node["properties"].update(Drain_Seconds={"type": "integer", **BOUNDS}),
        "which is not camelCase",
    ),
    "unit in name": (
        ".spec.rollout",
        lambda node: node["properties"]["drainSeconds"].update(type="string", maxLength=9),
        "has a field drainSeconds, whose name asks for type integer",
    ),
    "reference that is no object": (
        ".spec.model.config",
        lambda node: node["properties"].update(
            configMapRef={"type": "string", "maxLength": 1, "description": "A."}
        ),
        "has a field configMapRef, whose name asks for type object",
    ),
    "no conditions": (".status", lambda node: node["properties"].pop("conditions"), "a list map"),
    "conditions by another key": (
        ".status.conditions",
        lambda node: node.update({LIST_KEYS: ["reason"]}),
        "must be a list map by type",
    ),
}


@pytest.mark.parametrize("kind", VIOLATIONS)
def test_self_check_finds(kind: str):
    path, change, words = VIOLATIONS[kind]
    schema = copy.deepcopy(crdgen.pool_schema())
    node = node_at(schema, path)
    assert node is not None
    change(node)
    found = schema_check.violations(schema)
    assert any(fault.startswith(path) and words in fault for fault in found), found
