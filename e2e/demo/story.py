"""The story that the demo tells, as steps that return what was measured."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import yaml

from e2e.demo.progress import Progress
from e2e.harness.api import CONFIG_MAP, NAMESPACE, POD, POOL, Json
from e2e.harness.pools import PoolBuilder, condition, is_now
from e2e.harness.real_engine import a_vllm_pool, plain_pod, prepare_claims, remove_volumes
from e2e.harness.site import Site
from e2e.load.fanout import FanOutResult, fan_out, sequences_of_budget

CEILING_TOKENS: Final = 1024
WORKERS: Final = 5
POOL_NAME: Final = "research"
WARNED_NAME: Final = "research-warn"
PLAIN_NAME: Final = "plain"
ENGINE_START_SECONDS: Final = 240
MODEL: Final = "tiny"


@dataclass(frozen=True)
class Refused:
    """Step 1: the pool whose topology does not fit."""

    message: str
    remedies: tuple[Json, ...]
    required_slots: int
    need_blocks: int
    budget_blocks: int
    available_slots: int
    pods: int


@dataclass(frozen=True)
class Serving:
    """Step 2: the remedied pool, planned and measured."""

    patch: str
    args: tuple[str, ...]
    ceiling_tokens: int
    slots: int
    predicted: Json
    measured: Json
    verified: Json


@dataclass(frozen=True)
class Run:
    """One fan-out of step 3."""

    title: str
    ceiling_tokens: int
    slots: int | None
    load: FanOutResult


@dataclass(frozen=True)
class Outcome:
    """All that the story measured."""

    refused: Refused
    serving: Serving
    plain: Run
    warned: Run
    remedied: Run

    @property
    def runs(self) -> tuple[Run, Run, Run]:
        """The fan-outs in the order in which they ran."""
        return self.plain, self.warned, self.remedied


def unfit_pool(name: str = POOL_NAME) -> PoolBuilder:
    """A planner and five workers at a ceiling of 1,024 tokens on 128 blocks of 32."""
    return a_vllm_pool(name).ceiling(CEILING_TOKENS).planner_and_workers(WORKERS)


@dataclass(frozen=True)
class Story:
    """The demo on a cluster where the operator runs, in a namespace of its own."""

    site: Site
    namespace: str
    progress: Progress

    def tell(self) -> Outcome:
        """Tell all three steps."""
        refused = self.refuse()
        serving = self.remedy(refused)
        return self.compare(refused, serving)

    def prepare(self) -> None:
        """Make the namespace, as strict as Kubernetes can make it, and the claims."""
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        self.site.api.apply(
            {
                "apiVersion": "v1",
                "kind": "Namespace",
                "metadata": {"name": self.namespace, "labels": labels},
            }
        )
        prepare_claims(self.site.api, self.namespace)

    def clean_up(self) -> None:
        """Remove namespace and volumes."""
        self.site.api.delete(NAMESPACE, None, self.namespace)
        remove_volumes(self.site.api, self.namespace)

    # --- the steps -------------------------------------------------------------------------------

    def refuse(self) -> Refused:
        """Step 1: the topology is refused, with the arithmetic and the remedies."""
        self.progress.step(
            f"1. A pool with a planner and {WORKERS} workers, each up to {CEILING_TOKENS} tokens, "
            "on 128 KV blocks of 32 tokens"
        )
        self._kubectl_apply(unfit_pool())
        pool = self.progress.wait(
            lambda: self._pool_when(
                POOL_NAME,
                lambda pool: (
                    is_now(pool, "TopologyFits", "False")
                    and is_now(pool, "Configured", "False", "Refused")
                ),
            ),
            "the pool is judged",
            timeout_seconds=60,
        )
        topology = pool["status"]["topology"]
        refused = Refused(
            message=(condition(pool, "TopologyFits") or {})["message"],
            remedies=tuple(pool["status"].get("remedies", [])),
            required_slots=topology["requiredSlots"],
            need_blocks=topology["needBlocks"],
            budget_blocks=topology["budgetBlocks"],
            available_slots=topology["availableSlots"],
            pods=len(self._pods(POOL_NAME)),
        )
        self.progress.say("TopologyFits=False, no pod was started:")
        self.progress.quote(refused.message)
        self.progress.say("the remedies in status, cheapest first:")
        for remedy in refused.remedies:
            self.progress.quote(f"{remedy['name']}: {remedy['description']}")
        return refused

    def remedy(self, refused: Refused) -> Serving:
        """Step 2: the ceiling remedy is applied as it stands in status; the engine starts."""
        patch = next(r["patch"] for r in refused.remedies if r["name"] == "LowerCeiling")
        self.progress.step("2. The remedy LowerCeiling, taken from status as it stands there")
        self.progress.quote(f"kubectl patch kvpool {POOL_NAME} --type=merge -p '{patch}'")
        self._kubectl("patch", "kvpool", POOL_NAME, "--type=merge", "-p", patch)
        pool = self._wait_ready(POOL_NAME)
        args = tuple(pool["status"]["engine"]["args"])
        self.progress.say("the engine serves; Ballonet wrote these flags:")
        self.progress.quote(" ".join(args))
        verified = self.progress.wait(
            lambda: self._pool_when(
                POOL_NAME, lambda pool: "measured" in pool["status"].get("budget", {})
            ),
            "the engine's own figures are in status",
            timeout_seconds=60,
        )
        status = verified["status"]
        return Serving(
            patch=patch,
            args=args,
            ceiling_tokens=verified["spec"]["sequence"]["maxTokens"],
            slots=status["engine"]["slots"],
            predicted=status["budget"]["predicted"],
            measured=status["budget"]["measured"],
            verified=condition(verified, "BudgetVerified") or {},
        )

    def compare(self, refused: Refused, serving: Serving) -> Outcome:
        """Step 3: the same fan-out on a plain engine, on the warned pool, on the remedied one."""
        self.progress.step(
            "3. The same fan-out three times on the same 128 blocks: a plain engine, the unfit "
            "pool with whenUnfit: Warn, the remedied pool"
        )
        self._kubectl_apply(unfit_pool(WARNED_NAME).when_unfit("Warn"))
        self.site.api.apply(plain_pod(PLAIN_NAME, self.namespace, CEILING_TOKENS))
        plain_address = self._wait_pod_ready(PLAIN_NAME)
        warned = self._wait_ready(WARNED_NAME)
        unfit_budget = self._budget(WARNED_NAME)
        plain_run = self._fan_out(
            "plain engine, no limit", unfit_budget, f"http://{plain_address}:8000", None
        )
        self.site.api.delete(POD, self.namespace, PLAIN_NAME)
        warned_run = self._fan_out(
            "Ballonet, unfit, Warn",
            unfit_budget,
            self._engine_url(WARNED_NAME),
            warned["status"]["engine"]["slots"],
        )
        self.site.api.delete(POOL, self.namespace, WARNED_NAME)
        remedied_run = self._fan_out(
            "Ballonet, remedied",
            self._budget(POOL_NAME),
            self._engine_url(POOL_NAME),
            serving.slots,
        )
        return Outcome(refused, serving, plain_run, warned_run, remedied_run)

    # --- small parts -----------------------------------------------------------------------------

    def _fan_out(self, title: str, budget: Json, url: str, slots: int | None) -> Run:
        sequences = sequences_of_budget(budget)
        self.progress.say(f"{title}: {len(sequences)} sequences to {budget['ceilingTokens']} ...")
        load = asyncio.run(fan_out(url, sequences, model=MODEL, seed=title))
        self.progress.say(
            f"{title}: {load.finished} of {load.requests} finished, {load.preemptions} preemptions,"
            f" {load.wall_seconds:.1f} s"
        )
        return Run(title, budget["ceilingTokens"], slots, load)

    def _kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        return self.site.kubectl("-n", self.namespace, *arguments, stdin=stdin)

    def _kubectl_apply(self, pool: PoolBuilder) -> None:
        text = yaml.safe_dump(pool.build(self.namespace), sort_keys=False)
        self._kubectl("apply", "-f", "-", stdin=text)

    def _pool_when(self, name: str, predicate: Callable[[Json], bool]) -> Json | None:
        pool = self.site.api.get(POOL, self.namespace, name)
        return pool if predicate(pool) else None

    def _pods(self, pool: str) -> list[Json]:
        return self.site.api.list(POD, self.namespace, f"ballonet.io/pool={pool}")

    def _wait_ready(self, name: str) -> Json:
        def detail() -> str:
            ready = condition(self.site.api.get(POOL, self.namespace, name), "Ready") or {}
            return f"{ready.get('reason')}: {ready.get('message')}"

        return self.progress.wait(
            lambda: self._pool_when(name, lambda pool: is_now(pool, "Ready", "True")),
            f"pool {name} is ready",
            timeout_seconds=ENGINE_START_SECONDS,
            detail=detail,
        )

    def _wait_pod_ready(self, name: str) -> str:
        def address() -> str | None:
            status = self.site.api.get(POD, self.namespace, name)["status"]
            ready = any(
                c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions", [])
            )
            return status["podIP"] if ready else None

        return self.progress.wait(
            address, f"pod {name} is ready", timeout_seconds=ENGINE_START_SECONDS
        )

    def _engine_url(self, pool: str) -> str:
        (pod,) = self._pods(pool)
        return f"http://{pod['status']['podIP']}:8000"

    def _budget(self, pool: str) -> Any:
        data = self.site.api.get(CONFIG_MAP, self.namespace, f"{pool}-budget")["data"]
        return json.loads(data["budget.json"])
