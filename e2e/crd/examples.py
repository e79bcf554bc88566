"""Accepted and refused pools for every bound and every rule of the resource.

Bounds are read from the generated schema, so a new field brings its examples along. Rules have
theirs in ``RULES`` below. The same examples go to the API server (test_crd.py here) and to the
parser (tests/unit/test_api.py): both must agree.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from ballonet.api import crdgen
from ballonet.api.v1alpha1 import API_VERSION, KIND, MAX_TOKENS

Json = dict[str, Any]
Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Example:
    """A pool and what becomes of it."""

    id: str
    pool: Json
    # Where and how it is refused: field path and a part of the message. None: it is accepted.
    refused: tuple[str, str] | None = None


def minimal_pool(name: str = "example") -> Json:
    """Return the least that is accepted, with a few values at their highest: no rule is near."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name},
        "spec": {
            "model": {"name": "Qwen/Qwen3-32B"},
            "engine": {"version": "0.32.0"},
            "accelerator": {"type": "H100-80GB"},
            "parallelism": {"tensor": 64},
            "sequence": {"maxTokens": MAX_TOKENS},
        },
    }


# --- from the schema -----------------------------------------------------------------------------

# Values of fields that "a", "aa", ... does not fit: how a string of n characters looks.
_STRETCHED: Final[dict[str, Callable[[int], str]]] = {
    "version": lambda n: ("1.2.3-" + "a" * n)[:n] if n > 6 else "1.2.3",
    "resourceName": lambda n: "a/" + "b" * max(1, n - 2),
}
_BAD_TEXTS: Final = ("-a", "a b", "ä", "A_", "/a", "..", "a,b", " ", "--port=9000", "$(A)", "a$(A)")
_UNICODE: Final = "größe-模型-🎈"


def _string(node: Json, name: str, length: int) -> str:
    if "enum" in node:
        return str(node["enum"][0])
    stretched = _STRETCHED.get(name)
    return "a" * length if stretched is None else stretched(length)


def _sample(node: Json, name: str, number: int = 0) -> Any:
    """Return an accepted value; other numbers give other keys."""
    if node.get("x-kubernetes-int-or-string"):
        return "1Gi"
    if node["type"] == "integer":
        return node["minimum"]
    if node["type"] == "string":
        suffix = str(number) if number else ""
        return _string(node, name, 1) + suffix
    if node["type"] == "array":
        return [_sample(node["items"], name)] if node.get("minItems") else []
    children = node.get("properties", {})
    return {key: _sample(children[key], key, number) for key in node.get("required", [])}


def _nodes(node: Json, path: Path) -> Iterator[tuple[Path, Json]]:
    yield path, node
    for name, child in node.get("properties", {}).items():
        yield from _nodes(child, (*path, name))
    if "items" in node:
        yield from _nodes(node["items"], (*path, 0))
    if isinstance(values := node.get("additionalProperties"), dict):
        yield from _nodes(values, (*path, "a"))


SCHEMA: Final = crdgen.pool_schema()
NODES: Final[dict[Path, Json]] = dict(_nodes(SCHEMA["properties"]["spec"], ("spec",)))


def text_of(path: Path) -> str:
    """Return a field path as the API server writes it."""
    return "".join(f"[{s}]" if isinstance(s, int) else f".{s}" for s in path).removeprefix(".")


def pool_with(path: Path, value: Any) -> Json:
    """Return the minimal pool with a value at a path; what contains it is made as needed."""
    pool = minimal_pool()
    target: Any = pool
    for i, step in enumerate(path[:-1], start=1):
        if isinstance(step, int):
            if not target:
                target.append(_sample(NODES[path[:i]], ""))
            target = target[step]
        else:
            target = target.setdefault(step, _sample(NODES[path[:i]], step))
    if isinstance(path[-1], int):
        target[:] = [value]
    else:
        target[path[-1]] = value
    if path[-1] == "sharedPrefix" and isinstance(value, str):
        # A role may only name a prefix that exists.
        pool["spec"]["sharedPrefixes"] = [{"name": value, "tokens": 1}]
    if path[-1] == "startsWith" and isinstance(value, str):
        # Likewise it may only name another role that exists.
        target["name"] = "planner"
        pool["spec"]["topologies"][0]["roles"].append({"name": value})
    if path[:2] == ("spec", "metrics") and len(path) > 2:
        # Source Prometheus and its connection come together.
        if path[2] == "prometheus":
            pool["spec"]["metrics"]["source"] = "Prometheus"
        elif value == "Prometheus":
            pool["spec"]["metrics"]["prometheus"] = {"connection": "main"}
    if path[-1] == "mode" and value == "Enabled":
        target["hostMemory"] = "8Gi"
    return pool


def _field_examples(path: Path, node: Json) -> Iterator[tuple[str, Any, str | None]]:
    """Yield what, value and (where it is refused) a part of the message."""
    name = str(path[-1])
    if node.get("x-kubernetes-int-or-string"):
        for value in ("8Gi", "1", 1, 2**53, "8Pi", "1.5Gi", "1e9", "500m"):
            yield f"quantity {value!r} accepted", value, None
        for value in ("0", 0, -1, "-1Gi", "9Pi", 2**53 + 1):
            yield f"quantity {value!r} refused", value, "must be a quantity above 0"
        for value in ("8 Gi", "8GiB", "a lot", "", "0x10"):
            yield f"quantity {value!r} refused", value, "should match"
        yield "too long refused", "1" * 33, "may not be more than 32"
        yield "boolean refused", True, "must be of type integer,string"
        yield "float refused", 1.5, "must be of type integer,string"
        return
    match node["type"]:
        case "integer":
            low, high = node["minimum"], node["maximum"]
            yield "minimum accepted", low, None
            yield "maximum accepted", high, None
            yield "below minimum refused", low - 1, f"should be greater than or equal to {low}"
            yield "above maximum refused", high + 1, "should be less than or equal to"
            yield "string refused", str(low), "must be of type integer"
            yield "boolean refused", True, "must be of type int"
            yield "float refused", low + 0.5, "must be of type integer"
        case "string" if "enum" in node:
            for value in node["enum"]:
                yield f"{value} accepted", value, None
            yield "unknown value refused", "Nonsense", "Unsupported value"
            yield "lower case refused", node["enum"][0].lower(), "Unsupported value"
        case "string":
            yield from _string_examples(name, node)
        case "array":
            yield from _list_examples(name, node)
        case "object" if "additionalProperties" in node:
            most = node["maxProperties"]
            many = {f"key{i}": "" for i in range(most + 1)}
            yield "most entries accepted", dict(list(many.items())[:most]), None
            yield "too many entries refused", many, f"must have at most {most}"
        case "object":
            yield "string refused", "a", "must be of type object"


def _string_examples(name: str, node: Json) -> Iterator[tuple[str, Any, str | None]]:
    low, high = node.get("minLength", 0), node["maxLength"]
    yield "shortest accepted", _string(node, name, low), None
    yield "longest accepted", _string(node, name, high), None
    yield "too long refused", _string(node, name, high + 1), f"may not be more than {high}"
    if low:
        yield "empty refused", "", "at least 1 chars long"
    yield "number refused", 1, "must be of type string"
    pattern = node.get("pattern")
    if pattern is None or re.search(pattern, _UNICODE):
        yield "unicode accepted", _UNICODE, None
        yield "longest unicode accepted", "a" + "🎈" * (high - 1), None
    if pattern is None:
        return
    for bad in _BAD_TEXTS:
        if not re.search(pattern, bad):
            yield f"{bad!r} refused", bad, "should match"


def _list_examples(name: str, node: Json) -> Iterator[tuple[str, Any, str | None]]:
    least, most = node.get("minItems", 0), node["maxItems"]
    items = [_sample(node["items"], name, i) for i in range(most + 1)]
    yield "fewest items accepted", items[:least], None
    yield "most items accepted", items[:most], None
    yield "too many items refused", items, f"must have at most {most} items"
    if least:
        yield "too few items refused", [], f"should have at least {least} items"
    twice = [items[0], items[0]]
    if node["x-kubernetes-list-type"] == "atomic":
        yield "repeated item accepted", twice, None
    else:
        yield "repeated item refused", twice, "Duplicate value"


def bound_examples() -> list[Example]:
    """Return an example for both sides of every bound, type, enum and required field."""
    found = []
    for path, node in NODES.items():
        if path == ("spec",):
            continue
        where = text_of(path)
        for what, value, message in _field_examples(path, node):
            field = f"{where}[1]" if message == "Duplicate value" else where
            refused = None if message is None else (field, message)
            found.append(Example(f"{where} {what}", pool_with(path, value), refused))
        for name in node.get("required", []):
            pool = pool_with((*path, name), _sample(node["properties"][name], name))
            _drop(pool, (*path, name))
            found.append(Example(f"{where}.{name} missing", pool, (f"{where}.{name}", "Required")))
    return found


def _drop(pool: Json, path: Path) -> None:
    target: Any = pool
    for step in path[:-1]:
        target = target[step]
    del target[path[-1]]


# --- rules ---------------------------------------------------------------------------------------


def _pool(**spec: Any) -> Json:
    """Return the minimal pool with parts of the spec merged in one level deep."""
    pool = copy.deepcopy(minimal_pool())
    for name, value in spec.items():
        old = pool["spec"].get(name)
        merged = {**old, **value} if isinstance(old, dict) else value
        pool["spec"][name] = merged
    return pool


def _run(*roles: Json, runs: int = 1) -> list[Json]:
    return [{"name": "research", "concurrentRuns": runs, "roles": list(roles)}]


_PREFIX: Final = [{"name": "system", "tokens": 512}]
_CPU_BUDGET: Final = {"kvCacheMemoryPerRank": "8Mi"}
_TOPOLOGIES: Final = "spec.topologies"

# Rule message (a part) -> where it is shown, accepted pools, refused pools.
RULES: Final[dict[str, tuple[str, list[Json], list[Json]]]] = {
    "metadata.name must be a DNS-1035 label": (
        "",
        [minimal_pool("a"), minimal_pool("a" * 63), minimal_pool("a-1")],
        [minimal_pool("a" * 64), minimal_pool("1a"), minimal_pool("a.b")],
    ),
    "give exactly one of inline and configMapRef": (
        "spec.model.config",
        [
            _pool(model={"config": {"inline": "{}"}}),
            _pool(model={"config": {"configMapRef": {"name": "a", "key": "config.json"}}}),
        ],
        [
            _pool(model={"config": {}}),
            _pool(model={"config": {"inline": "{}", "configMapRef": {"name": "a", "key": "b"}}}),
        ],
    ),
    "keys of nodeSelector must be label keys": (
        "spec.accelerator.nodeSelector",
        [
            _pool(accelerator={"nodeSelector": {"gpu": "yes", "example.com/Gpu_1": ""}}),
            _pool(accelerator={"nodeSelector": {"a" * 63: "b"}}),
        ],
        [
            _pool(accelerator={"nodeSelector": {key: "a"}})
            for key in ("", "a b", "-a", "/a", "a/", "a/b/c", "ä", "a" * 64, "UPPER.com/a")
        ],
    ),
    "mode Enabled needs hostMemory": (
        "spec.offload.hostMemory",
        [
            _pool(offload={}),
            _pool(offload={"hostMemory": "8Gi"}),
            _pool(offload={"mode": "Disabled"}),
            _pool(offload={"mode": "Enabled", "hostMemory": "8Gi"}),
        ],
        [_pool(offload={"mode": "Enabled"})],
    ),
    "a role's maxTokens must not exceed sequence.maxTokens": (
        _TOPOLOGIES,
        [
            _pool(
                sequence={"maxTokens": 1024},
                topologies=_run({"name": "planner", "maxTokens": 1024}, {"name": "worker"}),
            )
        ],
        [
            _pool(
                sequence={"maxTokens": 1024},
                topologies=_run({"name": "planner"}, {"name": "worker", "maxTokens": 1025}),
            )
        ],
    ),
    "a role's compactAtTokens must not exceed its ceiling": (
        _TOPOLOGIES,
        [
            _pool(
                sequence={"maxTokens": 1024},
                topologies=_run(
                    {"name": "planner", "compactAtTokens": 1024},
                    {"name": "worker", "maxTokens": 512, "compactAtTokens": 512},
                ),
            )
        ],
        [
            _pool(
                sequence={"maxTokens": 1024},
                topologies=_run({"name": "planner", "compactAtTokens": 1025}),
            ),
            _pool(
                sequence={"maxTokens": 1024},
                topologies=_run({"name": "worker", "maxTokens": 512, "compactAtTokens": 513}),
            ),
        ],
    ),
    "a role's sharedPrefix must be the name of one of sharedPrefixes": (
        _TOPOLOGIES,
        [
            _pool(
                sharedPrefixes=_PREFIX,
                topologies=_run({"name": "planner", "sharedPrefix": "system"}),
            )
        ],
        [
            _pool(topologies=_run({"name": "planner", "sharedPrefix": "system"})),
            _pool(
                sharedPrefixes=_PREFIX,
                topologies=_run({"name": "planner", "sharedPrefix": "other"}),
            ),
        ],
    ),
    "a role's sharedPrefix must not be longer than the role's maxTokens": (
        _TOPOLOGIES,
        [
            _pool(
                sharedPrefixes=_PREFIX,
                topologies=_run({"name": "worker", "sharedPrefix": "system", "maxTokens": 512}),
            )
        ],
        [
            _pool(
                sharedPrefixes=_PREFIX,
                topologies=_run({"name": "worker", "sharedPrefix": "system", "maxTokens": 511}),
            )
        ],
    ),
    "a role's startsWith must be the name of another role of the topology": (
        f"{_TOPOLOGIES}[0].roles",
        [
            _pool(
                topologies=_run({"name": "planner"}, {"name": "worker", "startsWith": "planner"})
            ),
            _pool(
                topologies=_run(
                    {"name": "planner", "startsWith": "worker"},
                    {"name": "worker", "startsWith": "planner"},
                )
            ),
        ],
        [
            _pool(topologies=_run({"name": "planner", "startsWith": "worker"})),
            _pool(topologies=_run({"name": "planner", "startsWith": "planner"})),
            _pool(topologies=_run({"name": "planner"}, {"name": "worker", "startsWith": "critic"})),
        ],
    ),
    "give prometheus with source Prometheus, and only then": (
        "spec.metrics.prometheus",
        [
            _pool(metrics={"source": "Pods"}),
            _pool(metrics={"source": "Prometheus", "prometheus": {"connection": "main"}}),
        ],
        [
            _pool(metrics={"source": "Prometheus"}),
            _pool(metrics={"prometheus": {"connection": "main"}}),
        ],
    ),
    "decodeContext must divide tensor": (
        "spec.parallelism.decodeContext",
        [
            _pool(parallelism={"tensor": tensor, "decodeContext": context})
            for tensor, context in ((1, 1), (8, 2), (8, 8), (6, 3))
        ],
        [
            _pool(parallelism={"tensor": tensor, "decodeContext": context})
            for tensor, context in ((1, 2), (8, 3), (8, 16))
        ],
    ),
    "all topologies together must not need more than 1,000,000 sequences at once": (
        _TOPOLOGIES,
        [_pool(topologies=_run({"name": "worker", "count": 1000}, runs=1000))],
        [_pool(topologies=_run({"name": "planner"}, {"name": "worker", "count": 1000}, runs=1000))],
    ),
    "a shared prefix must not be longer than sequence.maxTokens": (
        "spec.sharedPrefixes",
        [_pool(sequence={"maxTokens": 512}, sharedPrefixes=_PREFIX)],
        [_pool(sequence={"maxTokens": 511}, sharedPrefixes=_PREFIX)],
    ),
    "accelerator.type CPU needs budget.kvCacheMemoryPerRank": (
        "spec.budget.kvCacheMemoryPerRank",
        [_pool(accelerator={"type": "CPU"}, engine={"image": "a"}, budget=_CPU_BUDGET)],
        [
            _pool(accelerator={"type": "CPU"}, engine={"image": "a"}),
            _pool(accelerator={"type": "cpu"}, engine={"image": "a"}, budget={}),
        ],
    ),
    "accelerator.type CPU needs engine.image": (
        "spec.engine.image",
        [_pool(accelerator={"type": "Cpu"}, engine={"image": "a"}, budget=_CPU_BUDGET)],
        [_pool(accelerator={"type": "CPU"}, budget=_CPU_BUDGET)],
    ),
}


def rule_examples() -> list[Example]:
    """Return the accepted and refused pools of every rule."""
    return [
        Example(f"{message} / {verdict} {i}", pool, refused)
        for message, (field, accepted, refused_pools) in RULES.items()
        for verdict, pools, refused in (
            ("accepted", accepted, None),
            ("refused", refused_pools, (field, message)),
        )
        for i, pool in enumerate(pools, start=1)
    ]


EXAMPLES: Final = [*bound_examples(), *rule_examples()]
