"""How long a plan takes: in process, and as a command with everything that it imports.

Run with ``python benchmarks/plan.py``; prints medians in milliseconds.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
SOURCES = [str(ROOT / "operator"), str(ROOT / "probe")]
sys.path[:0] = SOURCES

from ballonet.api.v1alpha1 import InferencePoolSpec  # noqa: E402
from ballonet.planning.planner import plan_pool  # noqa: E402

IN_PROCESS_RUNS = 30
COMMAND_RUNS = 9
# Layouts of a kind each: one group, windows, latents, an index beside them, states, and pages of
# several sizes; the weights are what makes the pool run short.
MODELS = {
    "Qwen/Qwen3-32B": "61Gi",
    "openai/gpt-oss-120b": "61Gi",
    "deepseek-ai/DeepSeek-V3": "400Gi",
    "deepseek-ai/DeepSeek-V3.2": "400Gi",
    "Qwen/Qwen3.5-27B": "52Gi",
    "nvidia/Nemotron-H-56B-Base-8K": "110Gi",
    "deepseek-ai/DeepSeek-V4-Flash": "160Gi",
}


def median_milliseconds(action: Callable[[], object], runs: int) -> float:
    """Return the median time of an action; the first run, which fills caches, is left out."""
    action()
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return 1000 * statistics.median(times)


def pool(model: str, weights: str, topologies: list[dict[str, Any]]) -> InferencePoolSpec:
    """Return a pool of a model on eight GPUs."""
    return InferencePoolSpec.model_validate(
        {
            "model": {"name": model, "weights": {"memory": weights}},
            "engine": {"version": "0.32.0"},
            "accelerator": {"type": "H100-80GB"},
            "parallelism": {"tensor": 8},
            "sequence": {"maxTokens": 8192},
            "topologies": topologies,
        }
    )


def largest_topologies() -> list[dict[str, Any]]:
    """Return as many topologies and roles as the resource allows, which do not fit."""
    roles = [{"name": f"role-{r}", "count": 5, "maxTokens": 4096 + 16 * r} for r in range(8)]
    return [{"name": f"topology-{t}", "concurrentRuns": 20, "roles": roles} for t in range(8)]


def usual_topologies() -> list[dict[str, Any]]:
    """Return a planner with five workers, so often that they do not fit."""
    roles = [{"name": "planner"}, {"name": "worker", "count": 5}]
    return [{"name": "research", "concurrentRuns": 400, "roles": roles}]


def timed(what: str, spec: InferencePoolSpec) -> None:
    """Print how long plans of a pool take, each with a ceiling of its own: no layout is reused."""
    ceilings = count(spec.sequence.max_tokens, -1)

    def another() -> InferencePoolSpec:
        sequence = spec.sequence.model_copy(update={"max_tokens": next(ceilings)})
        return spec.model_copy(update={"sequence": sequence})

    alone = median_milliseconds(
        lambda: plan_pool("p", another(), with_remedies=False), IN_PROCESS_RUNS
    )
    whole = median_milliseconds(lambda: plan_pool("p", another()), IN_PROCESS_RUNS)
    found = len(plan_pool("p", spec).remedies)
    print(f"{what}: {alone:.1f} ms, with {found} remedies {whole:.1f} ms")


def command(file: Path) -> None:
    """Run ``ballonet plan`` as a user does."""
    subprocess.run(
        [sys.executable, "-m", "ballonet", "plan", "-f", str(file)],
        stdout=subprocess.DEVNULL,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(SOURCES)},
    )


def main() -> None:
    """Print the figures."""
    for file in sorted((ROOT / "examples").glob("*.yaml")):
        documents = list(yaml.safe_load_all(file.read_text()))
        found = next(document for document in documents if document["kind"] == "InferencePool")
        spec = InferencePoolSpec.model_validate(found["spec"])
        if spec.model.config is not None and spec.model.config.config_map_ref is not None:
            continue
        timed(file.name, spec)
    for model, weights in MODELS.items():
        timed(model, pool(model, weights, usual_topologies()))
    timed("8 topologies of 8 roles", pool("Qwen/Qwen3-32B", "61Gi", largest_topologies()))
    demo = ROOT / "examples" / "demo-unfit.yaml"
    taken = median_milliseconds(lambda: command(demo), COMMAND_RUNS)
    print(f"command, {demo.name}: {taken:.0f} ms")


if __name__ == "__main__":
    main()
