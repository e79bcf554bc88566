"""`python -m e2e.demo [--keep]`: tell the story on the cluster that `e2e.session` started."""

from __future__ import annotations

import argparse
import sys

from rich.console import Console

from e2e.demo import report
from e2e.demo.progress import Progress
from e2e.demo.story import Story
from e2e.harness import installation
from e2e.harness.api import NAMESPACE
from e2e.harness.operators import PodOperator
from e2e.harness.poll import eventually
from e2e.harness.site import Site, UnusableError, find_site
from e2e.images import BuildError, build

DEMO_NAMESPACE = "demo"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m e2e.demo", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave everything in place")
    arguments = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 140, highlight=False)
    progress = Progress(lambda line: console.print(line, markup=False, soft_wrap=True))
    try:
        site = find_site()
        _install(site, progress)
    except (UnusableError, BuildError) as error:
        progress.say(str(error))
        return 1
    story = Story(site, DEMO_NAMESPACE, progress)
    _start_fresh(site, story)
    outcome = story.tell()
    report.show(outcome, console)
    if arguments.keep:
        console.print(
            "\nThe cluster stays up. Look around with\n"
            f"  python -m e2e.cluster kubectl -n {DEMO_NAMESPACE} get kvpool,deployment,pod\n"
            "and remove everything with `make down`.",
            markup=False,
        )
    else:
        story.clean_up()
    return 0


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
