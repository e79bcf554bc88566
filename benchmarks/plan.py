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
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "operator"))

from ballonet.api.v1alpha1 import InferencePoolSpec  # noqa: E402
from ballonet.planning.plan import plan_pool  # noqa: E402

IN_PROCESS_RUNS = 30
COMMAND_RUNS = 9


def median_milliseconds(action: Callable[[], object], runs: int) -> float:
    """Return the median time of an action; the first run, which fills caches, is left out."""
    action()
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return 1000 * statistics.median(times)


def largest_pool() -> InferencePoolSpec:
    """Return a pool with as many topologies and roles as the resource allows, which do not fit."""
    roles = [{"name": f"role-{r}", "count": 5, "maxTokens": 8192 + 16 * r} for r in range(8)]
    return InferencePoolSpec.model_validate(
        {
            "model": {"name": "Qwen/Qwen3-32B"},
            "engine": {"version": "0.32.0"},
            "accelerator": {"type": "H100-80GB"},
            "parallelism": {"tensor": 2},
            "sequence": {"maxTokens": 32_768},
            "topologies": [
                {"name": f"topology-{t}", "concurrentRuns": 20, "roles": roles} for t in range(8)
            ],
        }
    )


FIT = ("fit", "Qwen/Qwen3-32B", "--gpu", "H100-80GB", "--context", "32k", "--agents", "1+5")
GPUS = ("gpus", "Qwen/Qwen3-32B", "--context", "32k", "--agents", "1+5")
GPUS_OF_A_HYBRID = ("gpus", "Qwen/Qwen3-Next-80B-A3B-Instruct", *GPUS[2:])


def command(*arguments: str) -> None:
    """Run ``ballonet`` as a user does."""
    subprocess.run(
        [sys.executable, "-m", "ballonet", *arguments],
        stdout=subprocess.DEVNULL,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT / "operator")},
    )


def main() -> None:
    """Print the figures."""
    for file in sorted((ROOT / "examples").glob("*.yaml")):
        documents = list(yaml.safe_load_all(file.read_text()))
        pool = next(document for document in documents if document["kind"] == "InferencePool")
        spec = InferencePoolSpec.model_validate(pool["spec"])
        if spec.model.config is not None and spec.model.config.config_map_ref is not None:
            continue
        name = pool["metadata"]["name"]
        taken = median_milliseconds(lambda n=name, s=spec: plan_pool(n, s), IN_PROCESS_RUNS)
        print(f"plan with remedies, {file.name}: {taken:.1f} ms")
    spec = largest_pool()
    taken = median_milliseconds(lambda: plan_pool("largest", spec), IN_PROCESS_RUNS)
    print(f"plan with remedies, 8 topologies of 8 roles: {taken:.1f} ms")
    demo = ROOT / "examples" / "demo-unfit.yaml"
    plan = ("plan", "-f", str(demo))
    for arguments in (("--help",), plan, FIT, GPUS, GPUS_OF_A_HYBRID):
        taken = median_milliseconds(lambda a=arguments: command(*a), COMMAND_RUNS)
        print(f"ballonet {' '.join(arguments)}: {taken:.0f} ms")


if __name__ == "__main__":
    main()
