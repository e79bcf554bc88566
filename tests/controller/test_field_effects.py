"""Every field of the spec has an effect that a user can see: nothing is accepted and then ignored.

The table names, for each field, two values and the place where they show: the pod that starts, the
limits that runtimes read, or the status.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from ballonet.cluster.port import Json, Kind
from e2e.crd.examples import NODES
from e2e.harness.pools import MODEL_CONFIG, a_pool
from tests.controller.world import NAMESPACE, World

CONFIG = json.loads(MODEL_CONFIG.read_text())
TWICE_THE_LAYERS = {**CONFIG, "num_hidden_layers": 2 * CONFIG["num_hidden_layers"]}
CONFIG_MAPS = {
    "one": {"config.json": json.dumps(CONFIG), "twice.json": json.dumps(TWICE_THE_LAYERS)},
    "two": {"config.json": json.dumps(TWICE_THE_LAYERS)},
}

# The tiny model with its KV memory given: 128 blocks of 32 tokens, a sequence takes 2.
TINY: Json = {
    **a_pool().spec,
    "sequence": {"maxTokens": 64, "blockTokens": 32},
    "sharedPrefixes": [{"name": "system", "tokens": 32, "credit": "Declared"}],
    "topologies": [
        {
            "name": "research",
            "concurrentRuns": 1,
            "roles": [
                {"name": "planner", "count": 1},
                {"name": "worker", "count": 5, "maxTokens": 64, "sharedPrefix": "system"},
            ],
        }
    ],
}
# A model and a device that the catalog knows; the KV memory is predicted.
LARGE: Json = {
    "model": {"name": "Qwen/Qwen3-32B"},
    "engine": {"version": "0.32.0"},
    "accelerator": {"type": "H100-80GB"},
    "parallelism": {"tensor": 2},
    "sequence": {"maxTokens": 32768},
}
SMALL: Json = {
    **LARGE,
    "model": {"name": "meta-llama/Llama-3.1-8B-Instruct"},
    "parallelism": {"tensor": 1},
    "sequence": {"maxTokens": 4096},
}


MIXTURE: Json = {**SMALL, "model": {"name": "Qwen/Qwen3-30B-A3B"}}

# Two KV heads over four ranks: each is kept twice, so that two ranks can share a sequence.
FEW_KV_HEADS: Json = {
    **LARGE,
    "model": TINY["model"],
    "parallelism": {"tensor": 4},
    "sequence": {"maxTokens": 64},
    "budget": TINY["budget"],
}


@dataclass
class Seen:
    """What a user sees of a pool after a pass."""

    world: World
    budget: Json = field(init=False)

    def __post_init__(self) -> None:
        found = self.world.cluster.peek(Kind.CONFIG_MAP, NAMESPACE, "pool-budget")
        self.budget = json.loads(found["data"]["budget.json"]) if found else {}

    @property
    def status(self) -> Json:
        return self.world.pool()["status"]

    @property
    def deployment(self) -> Json:
        found = self.world.deployment()
        assert found is not None, self.status["conditions"]
        return found

    @property
    def pod(self) -> Json:
        return self.deployment["spec"]["template"]["spec"]

    @property
    def engine(self) -> Json:
        return next(c for c in self.pod["containers"] if c["name"] == "engine")

    def argument(self, flag: str) -> str | None:
        args = self.engine["args"]
        return args[args.index(flag) + 1] if flag in args else None

    def env(self, name: str) -> str | None:
        return next((v["value"] for v in self.engine["env"] if v["name"] == name), None)

    def need(self) -> tuple[int, int]:
        topology = self.status["topology"]
        return topology["requiredSlots"], topology["needBlocks"]

    def blocks(self) -> int:
        return self.status["budget"]["predicted"]["lowBlocks"]

    def kv_gib(self) -> int:
        return self.status["budget"]["predicted"]["kvCacheLowBytes"] // 2**30


@dataclass(frozen=True)
class Effect:
    """A field, two values of it, and what is seen with either.

    A value of None leaves the field out. Where figures come from measured memory rules, only that
    they differ is asked for (``expected`` is None).
    """

    path: str
    values: tuple[Any, Any]
    look: Callable[[Seen], Any]
    expected: tuple[Any, Any] | None
    base: Json = field(default_factory=lambda: TINY)

    def fields(self) -> str:
        return re.sub(r"\[\d+\]", "[]", self.path)


def arg(flag: str) -> Callable[[Seen], str | None]:
    return lambda seen: seen.argument(flag)


CLAIM = {**TINY, "model": {**TINY["model"], "claim": {"name": "models", "path": "tiny"}}}
BY_REFERENCE = {
    **TINY,
    "model": {
        **TINY["model"],
        "config": {"configMapRef": {"name": "one", "key": "config.json"}},
    },
}
NO_CREDIT = {**TINY, "sharedPrefixes": [{"name": "system", "tokens": 32}]}
TWO_PREFIXES = {
    **TINY,
    "sharedPrefixes": [
        {"name": "system", "tokens": 32, "credit": "Declared"},
        {"name": "b", "tokens": 32},
    ],
}
UNFIT = {**TINY, "sequence": {"maxTokens": 1024, "blockTokens": 32}, "sharedPrefixes": []}
UNFIT["topologies"] = [
    {"name": "research", "roles": [{"name": "planner"}, {"name": "worker", "count": 5}]}
]
ROLE = "topologies[0].roles[1]"
LETS_GO = copy.deepcopy(TINY)
LETS_GO["topologies"][0]["roles"][1]["holdsSlotWhileWaiting"] = "Never"

EFFECTS = [
    Effect("replicas", (1, 3), lambda s: s.deployment["spec"]["replicas"], (1, 3)),
    # model
    Effect(
        "model.name",
        ("tiny", "other/tiny"),
        lambda s: s.engine["command"],
        (["vllm", "serve", "tiny"], ["vllm", "serve", "other/tiny"]),
    ),
    Effect(
        "model.config.inline",
        (json.dumps(CONFIG), json.dumps(TWICE_THE_LAYERS)),
        Seen.blocks,
        (128, 64),
    ),
    Effect("model.config.configMapRef.name", ("one", "two"), Seen.blocks, (128, 64), BY_REFERENCE),
    Effect(
        "model.config.configMapRef.key",
        ("config.json", "twice.json"),
        Seen.blocks,
        (128, 64),
        BY_REFERENCE,
    ),
    Effect(
        "model.weights.memory",
        ("16Mi", "1040Mi"),
        lambda s: int(s.engine["resources"]["limits"]["memory"]) // 2**20,
        (2048 + 8 + 16, 2048 + 8 + 1040),
    ),
    Effect(
        "model.servedNames",
        (None, ["a", "b"]),
        lambda s: s.budget["servedNames"],
        (["tiny"], ["a", "b"]),
    ),
    Effect("model.revision", (None, "v2"), arg("--revision"), (None, "v2")),
    Effect(
        "model.claim.name",
        ("models", "others"),
        lambda s: [
            v["persistentVolumeClaim"]["claimName"]
            for v in s.pod["volumes"]
            if "persistentVolumeClaim" in v
        ],
        (["models"], ["others"]),
        CLAIM,
    ),
    Effect(
        "model.claim.path",
        (None, "tiny/v1"),
        lambda s: s.engine["command"][-1],
        ("/model", "/model/tiny/v1"),
        CLAIM,
    ),
    # engine
    Effect(
        "engine.type",
        ("VLLM", "VLLM"),  # the only one so far
        lambda s: s.engine["command"][0],
        ("vllm", "vllm"),
    ),
    Effect(
        "engine.version",
        ("0.30.0", "0.32.0"),
        lambda s: "--max-num-active-seqs" in s.engine["args"],
        (False, True),
    ),
    Effect(
        "engine.image",
        (None, "registry.example/vllm:a"),
        lambda s: s.engine["image"],
        ("vllm/vllm-openai:v0.32.0", "registry.example/vllm:a"),
        LARGE,
    ),
    Effect(
        "engine.args",
        (None, ["--seed", "7"]),
        lambda s: s.engine["args"][-2:] == ["--seed", "7"],
        (False, True),
    ),
    Effect(
        "engine.env[0].name",
        ("A", "B"),
        lambda s: (s.env("A"), s.env("B")),
        (("1", None), (None, "1")),
        {**TINY, "engine": {**TINY["engine"], "env": [{"name": "A", "value": "1"}]}},
    ),
    Effect(
        "engine.env[0].value",
        (None, "2"),
        lambda s: s.env("A"),
        ("", "2"),
        {**TINY, "engine": {**TINY["engine"], "env": [{"name": "A"}]}},
    ),
    Effect(
        "engine.podTemplate",
        (None, {"spec": {"priorityClassName": "high"}}),
        lambda s: s.pod.get("priorityClassName"),
        (None, "high"),
    ),
    Effect(
        "engine.startupTimeoutSeconds",
        (600, 1200),
        lambda s: (
            s.engine["startupProbe"]["periodSeconds"] * s.engine["startupProbe"]["failureThreshold"]
        ),
        (600, 1200),
    ),
    # accelerator
    Effect("accelerator.type", ("H100-80GB", "L4-24GB"), Seen.kv_gib, None, SMALL),
    Effect(
        "accelerator.memoryPercent",
        (85, 90),
        arg("--gpu-memory-utilization"),
        ("0.85", "0.90"),
        LARGE,
    ),
    Effect(
        "accelerator.resourceName",
        ("nvidia.com/gpu", "example.com/h100"),
        lambda s: s.engine["resources"]["limits"].get("example.com/h100"),
        (None, "2"),
        LARGE,
    ),
    Effect(
        "accelerator.nodeSelector",
        (None, {"pool": "a"}),
        lambda s: s.pod.get("nodeSelector"),
        (None, {"pool": "a"}),
    ),
    Effect("parallelism.tensor", (1, 2), arg("--tensor-parallel-size"), ("1", "2"), SMALL),
    Effect("parallelism.pipeline", (1, 2), arg("--pipeline-parallel-size"), ("1", "2"), SMALL),
    Effect("parallelism.data", (1, 2), arg("--data-parallel-size"), (None, "2"), SMALL),
    Effect(
        "parallelism.decodeContext",
        (1, 2),
        arg("--decode-context-parallel-size"),
        (None, "2"),
        FEW_KV_HEADS,
    ),
    Effect(
        "parallelism.expert",
        ("Disabled", "Enabled"),
        lambda s: "--enable-expert-parallel" in s.engine["args"],
        (False, True),
        MIXTURE,
    ),
    # sequence
    Effect("sequence.maxTokens", (64, 96), arg("--max-model-len"), ("64", "96")),
    Effect("sequence.kvCacheType", ("Auto", "FP8"), arg("--kv-cache-dtype"), (None, "fp8"), LARGE),
    Effect(
        "sequence.prefixCaching",
        ("Enabled", "Disabled"),
        lambda s: "--no-enable-prefix-caching" in s.engine["args"],
        (False, True),
    ),
    Effect("sequence.blockTokens", (32, 64), arg("--block-size"), ("32", "64")),
    Effect(
        "sequence.maxBatchedTokens", (2048, 4096), arg("--max-num-batched-tokens"), ("2048", "4096")
    ),
    # prefixes: five workers share a block, so credit takes four off the need of 12
    Effect(
        "sharedPrefixes[0].name",
        ("a", "c"),
        lambda s: s.budget["sharedPrefixes"][0]["name"],
        ("a", "c"),
        {**UNFIT, "whenUnfit": "Warn", "sharedPrefixes": [{"name": "a", "tokens": 32}]},
    ),
    Effect("sharedPrefixes[0].tokens", (31, 32), Seen.need, ((6, 12), (6, 8))),
    Effect("sharedPrefixes[0].credit", (None, "Declared"), Seen.need, ((6, 12), (6, 8)), NO_CREDIT),
    # topologies
    Effect(
        "topologies[0].name",
        ("a", "b"),
        lambda s: [role["topology"] for role in s.status["topology"]["roles"]],
        (["a", "a"], ["b", "b"]),
    ),
    Effect("topologies[0].concurrentRuns", (1, 2), Seen.need, ((6, 8), (12, 15))),
    Effect(
        "topologies[0].placement",
        ("Sticky", "Spread"),
        Seen.need,
        ((6, 8), (3, 5)),
        {**TINY, "replicas": 2},
    ),
    Effect(
        f"{ROLE}.startsWith",
        (None, "planner"),
        Seen.need,
        ((5, 6), (6, 8)),
        LETS_GO,
    ),
    Effect(
        f"{ROLE}.name",
        ("worker", "reader"),
        lambda s: s.budget["topologies"][0]["roles"][1]["name"],
        ("worker", "reader"),
    ),
    Effect(f"{ROLE}.count", (5, 6), Seen.need, ((6, 8), (7, 9))),
    Effect(f"{ROLE}.maxTokens", (32, 64), Seen.need, ((6, 7), (6, 8))),
    Effect(f"{ROLE}.sharedPrefix", ("b", "system"), Seen.need, ((6, 12), (6, 8)), TWO_PREFIXES),
    Effect(
        "topologies[0].roles[0].holdsSlotWhileWaiting",
        ("Always", "Never"),
        lambda s: s.status["topology"]["requiredSlots"],
        (6, 5),
    ),
    Effect("reservedSlots", (0, 3), Seen.need, ((6, 8), (9, 14))),
    Effect(
        "whenUnfit",
        ("Refuse", "Warn"),
        lambda s: s.world.deployment() is not None,
        (False, True),
        UNFIT,
    ),
    # budget, admission, roll-out
    Effect("budget.safetyPercent", (90, 50), lambda s: s.budget["budgetBlocks"], (114, 63)),
    Effect(
        "budget.kvCacheMemoryPerRank",
        ("8Mi", "16Mi"),
        lambda s: (s.blocks(), s.argument("--kv-cache-memory-bytes")),
        ((128, str(8 * 2**20)), (256, str(16 * 2**20))),
    ),
    Effect(
        "admission.queue",
        ("Unbounded", "Bounded"),
        lambda s: s.argument("--max-num-queued-reqs") is not None,
        (False, True),
    ),
    Effect(
        "metrics.perSequence",
        ("Disabled", "Enabled"),
        lambda s: [port["containerPort"] for port in s.engine["ports"]],
        ([8000], [8000, 9109]),
    ),
    Effect(
        f"{ROLE}.compactAtTokens",
        (None, 48),
        lambda s: json.loads(s.env("BALLONET_PROBE_ROLES") or "")["worker"],
        ({"ceilingTokens": 64}, {"ceilingTokens": 64, "compactAtTokens": 48}),
        {**TINY, "metrics": {"perSequence": "Enabled"}},
    ),
    Effect(
        "offload.mode",
        ("Disabled", "Enabled"),
        lambda s: s.status["engine"].get("hostCacheBytes"),
        (None, 64 * 2**30),
        {**LARGE, "offload": {"hostMemory": "64Gi"}},
    ),
    Effect(
        "offload.hostMemory",
        ("64Gi", "96Gi"),
        arg("--kv-offloading-size"),
        ("64", "96"),
        {**LARGE, "offload": {"mode": "Enabled"}},
    ),
    Effect(
        "rollout.drainSeconds",
        (60, 90),
        lambda s: s.pod["terminationGracePeriodSeconds"],
        (90, 120),
    ),
    Effect(
        "rollout.strategy",
        ("RollingUpdate", "Recreate"),
        lambda s: s.deployment["spec"]["strategy"]["type"],
        ("RollingUpdate", "Recreate"),
    ),
]


def with_value(spec: Json, path: str, value: Any) -> Json:
    spec = copy.deepcopy(spec)
    *parents, last = re.findall(r"\w+", path)
    target: Any = spec
    for step in parents:
        target = target[int(step)] if step.isdigit() else target.setdefault(step, {})
    if value is None:
        target.pop(last, None)
    else:
        target[last] = value
    return spec


async def see(spec: Json) -> Seen:
    world = World()
    for name, data in CONFIG_MAPS.items():
        world.cluster.put(
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": name, "namespace": NAMESPACE},
                "data": data,
            }
        )
    pool = a_pool().build(NAMESPACE)
    world.cluster.put({**pool, "spec": spec})
    await world.reconcile()
    return Seen(world)


def test_the_table_names_every_field():
    leaves = {
        re.sub(r"\[\d+\]", "[]", "".join(f"[{s}]" if isinstance(s, int) else f".{s}" for s in path))
        for path, node in NODES.items()
        if not any("properties" in inner for inner in (node, node.get("items", {})))
        and "additionalProperties" not in NODES.get(path[:-1], {})
        and path[-1] != 0
        # Their effect takes live numbers: tests/unit/test_diagnosis.py has a row for each of the
        # first, tests/controller/test_metrics_sources.py follows the second.
        and path[:2] != ("spec", "diagnosis")
        and path[:3] not in (("spec", "metrics", "source"), ("spec", "metrics", "prometheus"))
        # It takes what engines measured before: tests/controller/test_receipts.py.
        and path != ("spec", "budget", "pin")
    }
    assert {f".spec.{effect.fields()}" for effect in EFFECTS} == leaves


@pytest.mark.parametrize("effect", EFFECTS, ids=lambda effect: effect.path)
async def test_effect(effect: Effect):
    found = [
        effect.look(await see(with_value(effect.base, effect.path, value)))
        for value in effect.values
    ]
    if effect.expected is None:
        assert found[0] != found[1]
    else:
        assert tuple(found) == effect.expected
