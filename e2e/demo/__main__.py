"""`python -m e2e.demo [--keep]`: tell the story on the cluster that `e2e.session` started."""

from __future__ import annotations

import argparse
import http.client
import shlex
import sys
from typing import Final

import aiohttp
from rich.console import Console

from e2e.cluster import ClusterError
from e2e.demo import report
from e2e.demo.progress import Progress
from e2e.demo.story import Outcome, Story
from e2e.harness import installation
from e2e.harness.api import NAMESPACE, POD, ApiError, Json
from e2e.harness.installation import SYSTEM_NAMESPACE
from e2e.harness.operators import PodOperator
from e2e.harness.poll import eventually
from e2e.harness.site import Site, UnusableError, find_site
from e2e.images import BuildError, build
from e2e.load.fanout import UnsettledError

DEMO_NAMESPACE = "demo"


class NotSampledError(Exception):
    """A fan-out whose peaks nobody saw: its row says nothing."""


# What can go wrong outside this program; anything else is a fault of its own and keeps its trace.
FAILURES: Final = (
    AssertionError,  # what was waited for did not happen
    BuildError,
    ClusterError,
    ApiError,
    UnsettledError,
    NotSampledError,
    aiohttp.ClientError,
    http.client.HTTPException,
    OSError,
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m e2e.demo", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave everything in place")
    arguments = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 140, highlight=False)
    progress = Progress(lambda line: console.print(line, markup=False, soft_wrap=True))
    try:
        site = find_site()
    except UnusableError as error:
        progress.say(str(error))
        return 1
    story = Story(site, DEMO_NAMESPACE, progress)
    code = 0
    try:
        _install(site, progress)
        _start_fresh(site, story)
        outcome = story.tell()
        report.show(outcome, console)
        _demand_samples(outcome)
        if not arguments.keep:
            story.clean_up()
    except FAILURES as error:
        _explain(error, site, progress)
        code = 1
    if arguments.keep:
        _invite(site, console)
    return code


def _demand_samples(outcome: Outcome) -> None:
    for run in outcome.runs:
        if not run.load.samples:
            why = ", ".join(run.load.sample_errors) or "each one saw an idle engine"
            raise NotSampledError(f"{run.title}: no reading of the gauges saw the load ({why})")


def _explain(error: Exception, site: Site, progress: Progress) -> None:
    """Say in one line what failed, and the last line of the log of each pod that is not well."""
    first, _, _ = str(error).partition("\n")
    progress.say(f"FAILED: {first.removesuffix('; its log ends:') or type(error).__name__}")
    for namespace in (SYSTEM_NAMESPACE, DEMO_NAMESPACE):
        try:
            for pod in site.api.list(POD, namespace):
                if not _is_well(pod):
                    name = pod["metadata"]["name"]
                    progress.quote(f"{namespace}/{name}: {_last_line(site, pod)}")
        except (ApiError, OSError) as unreadable:
            progress.quote(f"pods of {namespace}: {unreadable}")


def _is_well(pod: Json) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _last_line(site: Site, pod: Json) -> str:
    """The last line that the pod wrote, or why there is none."""
    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    # A container that ended and was started again may not have written anything yet.
    restarted = any(
        status["restartCount"] for status in pod.get("status", {}).get("containerStatuses", [])
    )
    for previous in ("true", "false") if restarted else ("false",):
        try:
            log = site.api.logs(namespace, name, tailLines="5", previous=previous)
        except ApiError as error:
            reason = error.message
            continue
        lines = [line for line in log.splitlines() if line.strip()]
        if lines:
            return lines[-1]
        reason = f"{pod['status'].get('phase')}, no log"
    return reason


def _invite(site: Site, console: Console) -> None:
    if site.embedded is not None:
        kubectl = shlex.quote(str(site.embedded.kubectl_program))
        remove = "\nand remove everything with `make down`."
    else:
        kubectl = f"kubectl --context={shlex.quote(site.context or '')}"
        remove = ""
    console.print(
        "\nThe cluster stays up. Look around, from any folder, with\n"
        f"  {kubectl} -n {DEMO_NAMESPACE} get kvpool,deployment,pod{remove}",
        markup=False,
        soft_wrap=True,
    )


def _install(site: Site, progress: Progress) -> None:
    progress.step("Install definition, rights and operator")
    if site.embedded is not None:
        for name in ("operator", "engine"):
            progress.say(f"image {name}: build if it changed, load into the node")
            site.embedded.load_image(build(name))
    installation.install_crd(site.api, installation.pool_crd())
    installation.install_account_and_rights(site.api)
    progress.say("the operator starts")
    PodOperator(site.api).start()
    progress.say("the operator is ready")


def _start_fresh(site: Site, story: Story) -> None:
    if site.api.find(NAMESPACE, None, DEMO_NAMESPACE) is not None:
        story.progress.say("an earlier demo is removed first")
        story.clean_up()
        eventually(
            lambda: site.api.find(NAMESPACE, None, DEMO_NAMESPACE) is None,
            "the earlier demo's namespace is gone",
            timeout_seconds=120,
        )
    story.prepare()


if __name__ == "__main__":
    sys.exit(main())
