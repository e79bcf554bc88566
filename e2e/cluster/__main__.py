"""`python -m e2e.cluster`: start, stop and use the embedded cluster."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from e2e.cluster import build, guard, machine
from e2e.cluster.cluster import Cluster
from e2e.cluster.errors import ClusterError

USAGE = """\
usage: python -m e2e.cluster COMMAND

  deps                   install the missing Debian packages (root)
  build                  build the Kubernetes binary unless the cache has it, and print its path
  start [--gpus N]       start the cluster, or use the healthy one that runs
  stop [--force]         end it and remove everything it made; not while a session uses it
  status                 say what runs; exit code 0 healthy, 3 stopped, 1 anything else
  exec -- COMMAND        run a command in the cluster's network, with KUBECONFIG set
  kubectl ARGUMENTS      run kubectl as the cluster's administrator
  load-image FILE...     load docker archives into the node
  component ACTION NAME  stop, start, restart, pause or resume one component
"""


def say(line: str) -> None:
    print(f"cluster: {line}", file=sys.stderr, flush=True)


def deps(_: Cluster, arguments: Sequence[str]) -> int:
    _options("deps").parse_args(arguments)
    installed = machine.install_packages()
    if installed:
        say(f"installed {' '.join(installed)}")
    return 0


def make(cluster: Cluster, arguments: Sequence[str]) -> int:
    _options("build").parse_args(arguments)
    print(build.build(cluster.cache, say).kubernetes)
    return 0


def start(cluster: Cluster, arguments: Sequence[str]) -> int:
    options = _options("start")
    options.add_argument("--gpus", type=int, help="fake GPUs of the node")
    gpus = options.parse_args(arguments).gpus
    user = guard.user(cluster.cache)
    if user and not cluster.status().healthy:
        raise ClusterError(
            f"the cluster of {cluster.cache} is not healthy, and in use by {user}: "
            "a start would remove it; wait until it has ended"
        )
    cluster.start(gpus=gpus)
    print(f"KUBECONFIG={cluster.kubeconfig}")
    return 0


def stop(cluster: Cluster, arguments: Sequence[str]) -> int:
    options = _options("stop")
    options.add_argument("--force", action="store_true", help="even below a session that uses it")
    if options.parse_args(arguments).force:
        user = guard.user(cluster.cache)
        if user:
            say(f"stopped below {user}, which will fail")
        _stop(cluster)
    else:
        advice = "wait until it has ended, or stop below it (make down FORCE=1, or stop --force)"
        with guard.in_use(cluster.cache, advice):
            _stop(cluster)
    return 0


def _stop(cluster: Cluster) -> None:
    before = cluster.status()
    ended = len(cluster.processes())
    cluster.stop()
    if before.stopped:
        say(f"no cluster of {cluster.cache} runs: nothing to stop")
    else:
        say(f"stopped the cluster of {cluster.cache}: {ended} processes ended, state removed")


def status(cluster: Cluster, arguments: Sequence[str]) -> int:
    _options("status").parse_args(arguments)
    found = cluster.status()
    user = guard.user(cluster.cache)
    if user:
        print(f"in use by {user}")
    for line in found.leftovers:
        print(f"left behind: {line}")
    for name, state in found.components.items():
        print(f"{name:<24} {state}")
    if found.stopped:
        print("stopped")
        return 3
    if found.healthy:
        print(f"healthy\nKUBECONFIG={cluster.kubeconfig}")
        return 0
    print("not healthy: `start` makes it anew, `stop` removes it")
    return 1


def execute(cluster: Cluster, arguments: Sequence[str]) -> NoReturn:
    command = arguments[1:] if arguments[:1] == ["--"] else arguments
    if not command:
        raise ClusterError("exec needs a command: python -m e2e.cluster exec -- COMMAND")
    line = cluster.namespace_command(command)
    # The command takes this process's place, so its exit code and its signals are its own.
    os.execvpe(line[0], line, cluster.environment())


def kubectl(cluster: Cluster, arguments: Sequence[str]) -> NoReturn:
    execute(cluster, ["kubectl", *arguments])


def load_image(cluster: Cluster, arguments: Sequence[str]) -> int:
    options = _options("load-image")
    options.add_argument("file", nargs="+", type=Path)
    for file in options.parse_args(arguments).file:
        print(*cluster.load_image(file))
    return 0


def component(cluster: Cluster, arguments: Sequence[str]) -> int:
    actions: dict[str, Callable[[str], None]] = {
        "stop": cluster.stop_component,
        "start": cluster.start_component,
        "restart": cluster.restart_component,
        "pause": cluster.pause_component,
        "resume": cluster.resume_component,
    }
    options = _options("component")
    options.add_argument("action", choices=actions)
    options.add_argument("name")
    chosen = options.parse_args(arguments)
    actions[chosen.action](chosen.name)
    return 0


COMMANDS: dict[str, Callable[[Cluster, Sequence[str]], int]] = {
    "deps": deps,
    "build": make,
    "start": start,
    "stop": stop,
    "status": status,
    "exec": execute,
    "kubectl": kubectl,
    "load-image": load_image,
    "component": component,
}


def main(arguments: Sequence[str]) -> int:
    command = COMMANDS.get(arguments[0]) if arguments else None
    if command is None:
        print(USAGE, end="", file=sys.stderr)
        return 2
    try:
        return command(Cluster(report=say), arguments[1:])
    except ClusterError as error:
        say(str(error))
        return 1


def _options(command: str) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(prog=f"python -m e2e.cluster {command}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
