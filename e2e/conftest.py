"""Fixtures of everything that runs against a real cluster.

The cluster is the embedded one, or the kube context that BALLONET_E2E_CONTEXT names; never another.
Where it cannot be used the scenarios are skipped with the reason; with BALLONET_REQUIRE_E2E=1 that
is a failure.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NoReturn

import pytest

from e2e.cluster import Cluster, ClusterError
from e2e.faults.proxy import FaultProxy, Upstream
from e2e.harness import installation
from e2e.harness.api import NAMESPACE, SERVICE_ACCOUNT, Api
from e2e.harness.audit import AuditLog
from e2e.harness.devices import catalog_of_this_machine
from e2e.harness.operators import LocalOperator, PodOperator, release_lease
from e2e.harness.poll import eventually
from e2e.harness.pool_client import PoolClient
from e2e.harness.prometheus import Prometheus
from e2e.harness.recorder import StatusRecorder
from e2e.harness.site import Site, UnusableError, find_site
from e2e.images import BuildError, build
from e2e.load.fanout import served_first

SCENARIOS: Final = Path(__file__).parent / "scenarios"
SCENARIO_TIMEOUT_SECONDS: Final = 300
RUN: Final = "e2e"


def need_audit(site: Site) -> AuditLog:
    """Return the audit log; a cluster without one cannot run the scenario."""
    if site.audit is None:
        unusable("the cluster's audit log cannot be read")
    return site.audit


def need_embedded(site: Site) -> Cluster:
    """Return the embedded cluster; another kind cannot run the scenario."""
    if site.embedded is None:
        unusable("this scenario needs the embedded cluster")
    return site.embedded


def unusable(reason: str) -> NoReturn:
    """Skip the test with the reason, or fail it where the scenarios are required."""
    if os.environ.get("BALLONET_REQUIRE_E2E") == "1":
        pytest.fail(f"the scenarios are required, but {reason}", pytrace=False)
    pytest.skip(reason)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if SCENARIOS in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SCENARIO_TIMEOUT_SECONDS))
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> int:
    """Scenarios with the operator's pod, then those with processes, then what looks back at all."""
    if item.path.name == "test_rights.py":
        return 3
    if SCENARIOS not in item.path.parents:
        return 0
    processes = {"local_operators", "live_operator"}
    return 2 if processes.intersection(getattr(item, "fixturenames", ())) else 1


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what the operator said when a scenario fails."""
    report = yield
    if report.failed and call.when == "call":
        for name in ("pod_operator", "installed", "operator_behind_proxy"):
            operator = getattr(item, "funcargs", {}).get(name)
            if operator is not None:
                report.sections.append(("log of the operator", operator.tail()))
                break
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how long each scenario took, set-up and clean-up included."""
    seconds: dict[str, float] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport) and "e2e/scenarios/" in report.nodeid:
                seconds[report.nodeid] = seconds.get(report.nodeid, 0) + report.duration
    if not seconds:
        return
    terminalreporter.write_sep("=", "time of each scenario")
    for nodeid, duration in sorted(seconds.items(), key=lambda pair: -pair[1]):
        terminalreporter.write_line(f"{duration:7.1f} s  {nodeid.split('scenarios/', 1)[1]}")
    terminalreporter.write_line(f"{sum(seconds.values()):7.1f} s  together")


# --- the cluster ---------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def site() -> Iterator[Site]:
    """The cluster under test, or the reason why there is none."""
    try:
        found = find_site()
    except UnusableError as error:
        unusable(str(error))
    yield found
    found.api.close()


@pytest.fixture(scope="session")
def api(site: Site) -> Api:
    """The API server as its administrator."""
    return site.api


def _load_images(site: Site, *names: str) -> None:
    """Build the images where they changed and make them known to the node."""
    if site.embedded is None:
        return  # an outside cluster gets them from its own registry or by `kind load`
    for name in names:
        try:
            site.embedded.load_image(build(name))
        except (BuildError, ClusterError) as error:
            pytest.fail(f"image {name}: {error}", pytrace=False)


@pytest.fixture(scope="session")
def engine_images(site: Site) -> None:
    """The images of the stub engine and of the real one."""
    _load_images(site, "stub-engine", "engine")


@pytest.fixture(scope="session")
def operator_image(site: Site) -> None:
    """The image of the operator."""
    _load_images(site, "operator")


@pytest.fixture(scope="session")
def crd(api: Api) -> None:
    """The definition of the Gateway API's InferencePool first, then ours."""
    for document in installation.documents(installation.FOREIGN_CRD):
        installation.install_crd(api, document)
    installation.install_crd(api, installation.pool_crd())


@pytest.fixture(scope="session")
def recorder(api: Api, crd: None) -> Iterator[StatusRecorder]:
    """Keeps every status that any pool has from now on."""
    recorder = StatusRecorder(api)
    recorder.start()
    yield recorder
    recorder.stop()


@pytest.fixture(scope="session")
def installed(
    api: Api, crd: None, engine_images: None, recorder: StatusRecorder
) -> Iterator[PodOperator]:
    """Definitions, rights and account; the operator's pod is started by who needs it."""
    installation.install_account_and_rights(api)
    operator = PodOperator(api)
    yield operator
    operator.stop()


# --- one test ------------------------------------------------------------------------------------


_numbers = itertools.count(1)


@pytest.fixture
def namespace(api: Api, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of the test's own, removed with everything in it."""
    word = request.node.name.removeprefix("test_").split("[")[0].replace("_", "-")
    yield from make_namespace(api, word)


def make_namespace(api: Api, word: str) -> Iterator[str]:
    """Make a namespace, yield its name, and delete it."""
    name = f"{RUN}-{next(_numbers)}-{word}"[:63].rstrip("-")
    api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    # Before, the API server refuses pods, and a ReplicaSet goes on telling why its first was.
    eventually(
        lambda: api.find(SERVICE_ACCOUNT, name, "default"),
        f"the namespace {name} has its service account",
    )
    yield name
    api.delete(NAMESPACE, None, name)


@pytest.fixture(autouse=True)
def conditions_hold(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a scenario in which any pool ever had a status that contradicts itself."""
    if "installed" not in request.fixturenames:
        yield
        return
    recorder: StatusRecorder = request.getfixturevalue("recorder")
    recorder.problems()  # what an earlier test left is that test's
    yield
    problems = recorder.problems()
    assert not problems, "statuses broke the rules of docs/conditions.md:\n" + "\n".join(problems)


@pytest.fixture
def pod_operator(installed: PodOperator, operator_image: None) -> PodOperator:
    """The operator as a pod, running and ready."""
    if not installed.pods() or not installed.is_ready():
        release_lease(installed.api)
        installed.start()
    return installed


@pytest.fixture
def operator_server(site: Site) -> tuple[str, int]:
    """Host and port of the API server as operators without a proxy use it."""
    return site.api.host, site.api.port


LocalFactory = Callable[..., LocalOperator]


@pytest.fixture
def local_operators(
    site: Site, installed: PodOperator, operator_server: tuple[str, int], tmp_path: Path
) -> Iterator[LocalFactory]:
    """Makes operators that run as processes; the pod is stopped for the length of the test."""
    need_embedded(site)
    installed.stop()
    release_lease(site.api)
    with ExitStack() as stack:

        def make(
            name: str = "operator",
            *,
            server: tuple[str, int] = operator_server,
            env: dict[str, str] | None = None,
            source: Path | None = None,
        ) -> LocalOperator:
            folder = tmp_path / name
            folder.mkdir()
            operator = LocalOperator(site.api, server, folder, env or {})
            if source is not None:
                operator.source = source
            return stack.enter_context(operator)

        yield make


@pytest.fixture(scope="session")
def prometheus(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus that scrapes the engine pods of all pools."""
    need_embedded(site)
    with ExitStack() as stack:
        # What looks at a live engine shares two processors with it here, and nowhere else.
        with served_first(children=True):
            prometheus = Prometheus(site.kubeconfig, tmp_path_factory.mktemp("prometheus"))
            stack.enter_context(prometheus)
        yield prometheus


@pytest.fixture(scope="module")
def live_operator(
    site: Site,
    installed: PodOperator,
    prometheus: Prometheus,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[LocalOperator]:
    """An operator for all tests of a module.

    It knows the Prometheus as `main`, and this machine's memory as a device.
    """
    installed.stop()
    release_lease(site.api)
    folder = tmp_path_factory.mktemp("live-operator")
    connections = folder / "connections.yaml"
    connections.write_text(f"connections: [{{name: main, url: {prometheus.url}}}]\n")
    catalog = folder / "catalog.json"
    catalog.write_text(json.dumps(catalog_of_this_machine()))
    env = {
        "BALLONET_PROMETHEUS_CONNECTIONS": str(connections),
        "BALLONET_CATALOG": str(catalog),
    }
    with LocalOperator(site.api, (site.api.host, site.api.port), folder, env) as operator:
        with served_first(children=True):
            operator.start()
        yield operator


@pytest.fixture
def proxy(site: Site) -> Iterator[FaultProxy]:
    """A fault proxy in front of the API server."""
    cluster = need_embedded(site)
    pair = cluster.issue_server_certificate("fault-proxy", ["127.0.0.1"])
    upstream = Upstream(site.api.server, site.api.ca_file)
    with FaultProxy(upstream, pair.certificate, pair.key) as proxy:
        yield proxy


@pytest.fixture
def operator_behind_proxy(local_operators: LocalFactory, proxy: FaultProxy) -> LocalOperator:
    """A running operator that reaches the API server only through the fault proxy."""
    operator = local_operators(server=(proxy.host, proxy.port))
    operator.start()
    return operator


@pytest.fixture
def pools(api: Api, namespace: str) -> PoolClient:
    """Pools of the test's namespace."""
    return PoolClient(api, namespace)
