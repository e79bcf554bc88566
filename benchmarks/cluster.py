"""How quick the operator is on a real API server.

Two figures: the time from `kubectl apply` of a pool to its pod, and what a first pass over 500
refused pools costs in CPU, memory and writes. The operator runs as a process with its own account,
so that its CPU and memory can be read.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path

import yaml

from e2e.harness import installation
from e2e.harness.api import NAMESPACE, POD, POOL, Json
from e2e.harness.audit import tally
from e2e.harness.operators import LocalOperator, PodOperator
from e2e.harness.poll import eventually
from e2e.harness.pools import a_pool, condition
from e2e.harness.site import Site, find_site
from e2e.images import build

NAMESPACE_NAME = "bench"
APPLY_RUNS = 15
REFUSED_POOLS = 500


def main() -> None:
    """Install, measure, print, clean up."""
    site = find_site()
    if site.embedded is None or site.audit is None:
        raise SystemExit("benchmarks/cluster.py reads the audit log of the embedded cluster")
    site.embedded.load_image(build("stub-engine"))
    installation.install_crd(site.api, installation.pool_crd())
    installation.install_account_and_rights(site.api)
    PodOperator(site.api).stop()
    _make_namespace(site)
    server = (site.api.host, site.api.port)
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            LocalOperator(site.api, server, Path(folder)) as operator,
        ):
            operator.start()
            _apply_to_pod(site)
            operator.stop()
            _first_pass(site, operator)
    finally:
        site.api.delete(NAMESPACE, None, NAMESPACE_NAME)


def _make_namespace(site: Site) -> None:
    if site.api.find(NAMESPACE, None, NAMESPACE_NAME) is None:
        metadata = {"name": NAMESPACE_NAME}
        site.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})


def _apply_to_pod(site: Site) -> None:
    """Print how long it takes from the return of kubectl apply until the pod exists."""
    taken = []
    for number in range(APPLY_RUNS):
        name = f"quick-{number}"
        manifest = yaml.safe_dump(a_pool(name).build(NAMESPACE_NAME))
        began = time.perf_counter()
        site.kubectl("apply", "-f", "-", stdin=manifest)
        applied = time.perf_counter()
        eventually(
            partial(_pods, site, name),
            f"the pod of {name} exists",
            interval_seconds=0.01,
        )
        taken.append((applied - began, time.perf_counter() - applied))
        site.api.delete(POOL, NAMESPACE_NAME, name)
    after = [second for _, second in taken]
    whole = [first + second for first, second in taken]
    print(
        f"kubectl apply to pod created, {APPLY_RUNS} runs: p50 {statistics.median(whole):.2f} s, "
        f"highest {max(whole):.2f} s; of this after kubectl returned: "
        f"p50 {statistics.median(after):.2f} s, highest {max(after):.2f} s"
    )


def _pods(site: Site, name: str) -> list[Json]:
    pods = site.api.list(POD, NAMESPACE_NAME)
    return [p for p in pods if p["metadata"]["labels"].get("ballonet.io/pool") == name]


def _first_pass(site: Site, operator: LocalOperator) -> None:
    """Print what it costs to say to 500 pools that their topology does not fit."""
    names = [f"refused-{number}" for number in range(REFUSED_POOLS)]
    for name in names:
        pool = a_pool(name).ceiling(1024).planner_and_workers(5).build(NAMESPACE_NAME)
        site.api.create(pool)
    assert site.audit is not None
    mark = site.audit.mark()
    began = time.perf_counter()
    operator.start()
    idle = _usage(operator.pid)[0]

    def all_told() -> bool:
        pools = site.api.list(POOL, NAMESPACE_NAME)
        told = [p for p in pools if (condition(p, "TopologyFits") or {}).get("status") == "False"]
        return len(told) >= REFUSED_POOLS

    eventually(all_told, "all pools are judged", timeout_seconds=300, interval_seconds=1)
    seconds = time.perf_counter() - began
    cpu_seconds, peak_mib = _usage(operator.pid)
    writes = site.audit.writes(mark, installation.OPERATOR_USER)
    counts: Counter[str] = tally(writes)
    print(
        f"first pass over {REFUSED_POOLS} refused pools: {seconds:.1f} s, "
        f"{cpu_seconds:.1f} s of CPU ({idle:.1f} s of it until ready), "
        f"peak memory {peak_mib} MiB, {len(writes) / REFUSED_POOLS:.2f} writes a pool "
        f"({', '.join(f'{word} {count}' for word, count in sorted(counts.items()))})"
    )


def _usage(pid: int) -> tuple[float, int]:
    """Return CPU seconds and peak resident memory in MiB of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    cpu_seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    (peak,) = [line for line in status if line.startswith("VmHWM:")]
    return cpu_seconds, int(peak.split()[1]) // 1024


if __name__ == "__main__":
    main()
