"""The embedded cluster itself, on a second one beside the cluster that the scenarios use."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e import images
from e2e.cache import cache_root
from e2e.cluster import Cluster, ClusterError, build, unavailable_reason
from e2e.conftest import unusable
from e2e.harness.poll import eventually

pytestmark = pytest.mark.timeout(180)

IMAGE = images.IMAGES["stub-engine"].reference
ASK_THE_API = """
import os, ssl, urllib.request
folder = "/var/run/secrets/kubernetes.io/serviceaccount/"
host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
request = urllib.request.Request(
    f"https://{host}:{port}/version",
    headers={"Authorization": "Bearer " + open(folder + "token").read()},
)
context = ssl.create_default_context(cafile=folder + "ca.crt")
print(urllib.request.urlopen(request, context=context, timeout=10).read().decode())
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    reason = unavailable_reason()
    if reason:
        unusable(reason)
    cache = tmp_path_factory.mktemp("cache")
    binaries = build.build(cache_root(), print)
    for binary in (binaries.kubernetes, binaries.pause):
        (cache / binary.parent.name).symlink_to(binary.parent)
    cluster = Cluster(cache)
    try:
        cluster.start(gpus=2)
        cluster.load_image(images.build("stub-engine"))
        yield cluster
    finally:
        cluster.stop()


def _create_pod(cluster: Cluster, name: str, argv: list[str], gpus: int = 0) -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": "main",
                    "image": IMAGE,
                    "imagePullPolicy": "Never",
                    "command": argv,
                    "resources": {"limits": {"nvidia.com/gpu": gpus} if gpus else {}},
                }
            ],
        },
    }
    cluster.kubectl("create", "-f", "-", stdin=json.dumps(pod))


def _pod(cluster: Cluster, name: str) -> Any:
    return json.loads(cluster.kubectl("get", "pod", name, "-o", "json"))


def _await_phase(cluster: Cluster, name: str, phase: str) -> None:
    def reached() -> bool:
        status = _pod(cluster, name)["status"]
        assert status["phase"] == phase, status
        return True

    eventually(reached, f"pod {name} {phase}", timeout_seconds=60)


def test_a_second_start_uses_the_cluster_that_runs(cluster: Cluster) -> None:
    before = cluster.node_pid
    Cluster(cluster.cache).start()
    assert cluster.node_pid == before
    assert cluster.status().healthy


def test_a_pod_reaches_the_api_server_by_its_service_and_token(cluster: Cluster) -> None:
    _create_pod(cluster, "asks", ["python3", "-c", ASK_THE_API])
    _await_phase(cluster, "asks", "Succeeded")
    assert json.loads(cluster.kubectl("logs", "asks"))["gitVersion"] == build.kubernetes_version()


def test_fake_gpus_bound_what_is_scheduled_also_after_a_kubelet_restart(cluster: Cluster) -> None:
    cluster.restart_component("kubelet")
    _create_pod(cluster, "two", ["sleep", "600"], gpus=2)
    _await_phase(cluster, "two", "Running")
    _create_pod(cluster, "one-more", ["sleep", "600"], gpus=1)

    def refused() -> bool:
        conditions = _pod(cluster, "one-more")["status"].get("conditions", [])
        assert "Insufficient nvidia.com/gpu" in json.dumps(conditions)
        return True

    eventually(refused, "the pod to be refused for lack of GPUs", timeout_seconds=30)
    cluster.set_fake_gpus(3)
    _await_phase(cluster, "one-more", "Running")


def test_pods_outlive_the_api_server_and_etcd(cluster: Cluster) -> None:
    _create_pod(cluster, "stays", ["sleep", "600"])
    _await_phase(cluster, "stays", "Running")
    before = _pod(cluster, "stays")
    for component in ("kube-apiserver", "etcd"):
        cluster.restart_component(component)
    after = _pod(cluster, "stays")
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["status"]["containerStatuses"][0]["restartCount"] == 0


def test_a_paused_api_server_answers_again_when_resumed(cluster: Cluster) -> None:
    cluster.pause_component("kube-apiserver")
    try:
        assert cluster.status().components["kube-apiserver"] == "paused"
        with pytest.raises(ClusterError, match="did not end"):
            cluster.kubectl("get", "namespaces", timeout_seconds=2)
    finally:
        cluster.resume_component("kube-apiserver")
    eventually(lambda: cluster.status().healthy, "the cluster healthy", timeout_seconds=30)


def test_writes_and_the_operators_reads_are_recorded(cluster: Cluster) -> None:
    cluster.kubectl("create", "namespace", "ballonet-system")
    cluster.kubectl("create", "serviceaccount", "reader", "--namespace=ballonet-system")
    token = cluster.kubectl("create", "token", "reader", "--namespace=ballonet-system").strip()
    read = ("get", "--raw", "/api/v1/namespaces/default/configmaps")
    cluster.kubectl(*read)
    server = json.loads(cluster.kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
    with pytest.raises(ClusterError, match="forbidden"):
        cluster.kubectl(
            *(*read, "--kubeconfig=/dev/null", f"--server={server}", f"--token={token}"),
            f"--certificate-authority={cluster.certificate_authority}",
        )
    recorded = [json.loads(line) for line in cluster.audit_log.read_text().splitlines()]
    readers = [each["user"]["username"] for each in recorded if each["verb"] in {"get", "list"}]
    assert readers == ["system:serviceaccount:ballonet-system:reader"]
    created = [each["objectRef"].get("name") for each in recorded if each["verb"] == "create"]
    assert "ballonet-system" in created


def test_stop_leaves_nothing_behind_after_parts_were_killed(cluster: Cluster) -> None:
    started = cluster.processes()
    assert cluster.node_pid in started
    os.kill(cluster.node_pid, signal.SIGKILL)
    cluster.stop_component("etcd")

    cluster.stop()

    assert cluster.status().stopped
    assert cluster.leftovers() == []
    assert [pid for pid in started if _runs(pid)] == []


def _runs(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return "State:\tZ" not in status
