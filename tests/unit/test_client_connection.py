"""How the API server is found: kubeconfig, ServiceAccount, and neither."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ballonet.cluster import connection
from ballonet.cluster.connection import (
    Connection,
    NoConnectionError,
    connect,
    context_namespace,
    own_namespace,
)

KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: one
clusters:
- {name: c, cluster: {server: "https://10.0.0.1:6443/", insecure-skip-tls-verify: true}}
contexts:
- {name: one, context: {cluster: c, user: u}}
- {name: two, context: {cluster: c, user: v}}
users:
- {name: u, user: {tokenFile: TOKEN}}
- {name: v, user: {token: inline}}
"""


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine outside of any cluster, with an empty home."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setattr(connection, "_ACCOUNT", tmp_path / "none")
    return tmp_path


async def test_a_kubeconfig_is_read_afresh_each_time(
    outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = outside / "token"
    token.write_text("first")
    (outside / "config").write_text(KUBECONFIG.replace("TOKEN", str(token)))
    monkeypatch.setenv("KUBECONFIG", str(outside / "config"))
    monkeypatch.setattr(
        "kubernetes.aio.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(outside / "config")
    )
    assert await connect() == Connection(
        "https://10.0.0.1:6443", authorization="Bearer first", verify_tls=False
    )
    token.write_text("second")
    assert (await connect()).authorization == "Bearer second"
    assert (await connect("two")).authorization == "Bearer inline"
    with pytest.raises(NoConnectionError, match="three"):
        await connect("three")


async def test_without_either_the_message_says_what_to_do(
    outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "kubernetes.aio.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(outside / "absent")
    )
    with pytest.raises(NoConnectionError) as caught:
        await connect()
    assert str(caught.value) == (
        f"cannot tell how to reach the API server: there is no kubeconfig at {outside / 'absent'}; "
        "run in a pod with a ServiceAccount or set KUBECONFIG"
    )
    assert own_namespace() is None


@pytest.mark.parametrize("text", ["", "words", "a: [", "- 1", "users: 3", "contexts: [{}]", "\0"])
async def test_a_damaged_kubeconfig_is_named(
    outside: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    damaged = outside / "config"
    damaged.write_text(text)
    monkeypatch.setattr(
        "kubernetes.aio.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(damaged)
    )
    with pytest.raises(NoConnectionError, match=f"{damaged}|Invalid kube-config file"):
        await connect()
    assert context_namespace() == "default"


async def test_no_token_of_a_kubeconfig_gets_into_a_message(
    outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = outside / "config"
    config.write_text(KUBECONFIG.replace("user: {token: inline}", "usr: {token: hunter2}"))
    monkeypatch.setattr(
        "kubernetes.aio.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(config)
    )
    with pytest.raises(NoConnectionError, match="Expected key user in") as caught:
        await connect("two")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("host", "server"),
    [("10.96.0.1", "https://10.96.0.1:443"), ("fd00::1", "https://[fd00::1]:443")],
)
async def test_in_a_pod_the_service_account_is_used_and_its_token_read_afresh(
    outside: Path, monkeypatch: pytest.MonkeyPatch, host: str, server: str
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    monkeypatch.setattr(connection, "_ACCOUNT", outside)
    (outside / "token").write_text("first\n")
    (outside / "namespace").write_text("ballonet-system\n")
    expected = Connection(server, authorization="Bearer first", ca_path=str(outside / "ca.crt"))
    assert await connect() == expected
    (outside / "token").write_text("second\n")
    assert (await connect()).authorization == "Bearer second"
    assert own_namespace() == "ballonet-system"


def test_an_operator_with_nobody_to_ask_says_so_without_a_traceback(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "ballonet", "operator", "--listen", "127.0.0.1:0"],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2] / "operator",
        env={
            **{k: v for k, v in os.environ.items() if k != "KUBERNETES_SERVICE_HOST"},
            "KUBECONFIG": str(tmp_path / "absent"),
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
    )
    assert result.returncode == 1
    last = json.loads(result.stdout.splitlines()[-1])
    assert last["error"].startswith("cannot tell how to reach the API server: there is no kubeconf")
    assert "Traceback" not in result.stdout + result.stderr
