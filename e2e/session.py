"""`python -m e2e.session [--keep] -- COMMAND`: run a command on the embedded cluster.

Prepares the machine, starts the cluster with 4 fake GPUs, runs COMMAND in its network with
KUBECONFIG set, and stops the cluster, unless it ran before or --keep is given. A cluster has one
session at a time: a second one is refused.

Where the cluster cannot run, COMMAND runs without one (the scenarios then report themselves as
skipped, with the reason); with BALLONET_REQUIRE_E2E=1 that is a failure. With BALLONET_E2E_CONTEXT
the command uses that kube context and no cluster is started.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

from e2e.cache import cache_root
from e2e.cluster import Cluster, ClusterError, guard, machine, unavailable_reason
from e2e.prepare import PrepareError, prepare

FAKE_GPUS = 4
ONE_AT_A_TIME = (
    "wait until it has ended, or use a second cluster with BALLONET_CACHE=ANOTHER-FOLDER "
    "(docs/testing-cluster.md)"
)


def run(command: list[str], *, keep: bool) -> int:
    """Run `command` as described above and return its exit code.

    Raises:
        PrepareError, ClusterError: the cluster cannot be had though this machine should run it, or
            somebody else uses it.
    """
    if os.environ.get("BALLONET_E2E_CONTEXT"):
        return subprocess.run(command, check=False).returncode
    # Packages that only have to be installed are no reason yet: only root can, and root will.
    reason = unavailable_reason()
    if reason and os.geteuid() == 0 and machine.missing_packages():
        prepare()
        reason = unavailable_reason()
    if reason:
        if os.environ.get("BALLONET_REQUIRE_E2E") == "1":
            raise ClusterError(f"BALLONET_REQUIRE_E2E=1, but {reason}")
        _say(f"no cluster: {reason}")
        return subprocess.run(command, check=False).returncode
    with guard.in_use(cache_root(), ONE_AT_A_TIME) as lock:
        prepare()
        cluster = Cluster(report=_say)
        keep = keep or cluster.status().healthy
        try:
            cluster.start(gpus=FAKE_GPUS)
            line = cluster.namespace_command(command)
            # The command holds the lock as well: it may outlive this process.
            return subprocess.run(
                line, env=cluster.environment(), pass_fds=[lock], check=False
            ).returncode
        finally:
            if not keep:
                cluster.stop()


def _say(line: str) -> None:
    print(f"session: {line}", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m e2e.session",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--keep", action="store_true", help="leave the cluster running")
    parser.add_argument("command", nargs="+", help="after --")
    arguments = parser.parse_args()
    try:
        return run(arguments.command, keep=arguments.keep)
    except (PrepareError, ClusterError) as error:
        _say(str(error))
        return 1


if __name__ == "__main__":
    sys.exit(main())
