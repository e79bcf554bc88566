"""``ballonet receipts`` and ``ballonet plan --receipts``."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from ballonet.cli.main import app
from ballonet.cluster import client
from ballonet.cluster.port import Kind
from ballonet.planning.receipts import KEY, MAX_LINES, Receipts, left_out_of, receipts_in
from ballonet.reconcile.receipts import NAME, config_map
from tests.boots import LLAMA, boot, kept, usual_bytes
from tests.fakes.cluster import FakeCluster

POOL = {
    "apiVersion": "ballonet.io/v1alpha1",
    "kind": "InferencePool",
    "metadata": {"name": "pool"},
    "spec": LLAMA,
}


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "250"})
    assert result.exit_code == code, result.output
    return result.output


def written(folder: Path, name: str, body: dict[str, Any]) -> str:
    file = folder / name
    file.write_text(yaml.safe_dump(body))
    return str(file)


class Cluster(FakeCluster):
    async def close(self) -> None:
        pass


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    cluster = Cluster()

    def made(connect: Callable[[], Awaitable[Any]]) -> Cluster:
        return cluster

    monkeypatch.setattr(client, "KubernetesCluster", made)
    return cluster


def in_cluster(cluster: Cluster, namespace: str) -> Receipts:
    found = cluster.peek(Kind.CONFIG_MAP, namespace, NAME)
    assert found is not None
    return receipts_in(found)


def test_a_plan_begins_from_an_exported_file(tmp_path: Path) -> None:
    pool = written(tmp_path, "pool.yaml", POOL)
    file = written(tmp_path, "receipts.yaml", config_map("agents", kept(boot())))
    without = json.loads(run("plan", pool, "-o", "json"))
    found = json.loads(run("plan", pool, "--receipts", file, "-o", "json"))
    assert (without["source"], found["source"]) == ("Predicted", "Receipt")
    low, high = found["kvCacheBytes"]["low"], found["kvCacheBytes"]["high"]
    assert low < usual_bytes() < high
    assert high - low < without["kvCacheBytes"]["high"] - without["kvCacheBytes"]["low"]
    assert "KV cache from receipts" in run("plan", pool, "--receipts", file)


def test_a_file_without_receipts_is_bad_input(tmp_path: Path) -> None:
    pool = written(tmp_path, "pool.yaml", POOL)
    assert "no ConfigMap in it has receipts" in run("plan", pool, "--receipts", pool, code=2)
    assert "no ConfigMap in it has receipts" in run("receipts", "list", "-f", pool, code=2)


def damaged(receipts: Receipts, *lines: str) -> dict[str, Any]:
    found = config_map("agents", receipts)
    found["data"][KEY] = "\n".join((*lines, found["data"][KEY]))
    return found


def test_damaged_lines_are_left_out_and_counted_beside_good_ones(tmp_path: Path) -> None:
    good = kept(boot())
    without_boots = good.text().replace('"boots":1', '"boots":0').strip()
    file = written(tmp_path, "receipts.yaml", damaged(good, "nonsense", without_boots, ""))
    result = CliRunner().invoke(app, ["receipts", "list", "-f", file, "-o", "json"])
    assert result.exit_code == 0
    assert len(json.loads(result.stdout)) == 1
    assert f"ballonet: {file}: 2 lines of receipts.jsonl left out: line 1: " in result.stderr
    assert "line 2: boots: 0: " in result.stderr
    pool = written(tmp_path, "pool.yaml", POOL)
    planned = CliRunner().invoke(app, ["plan", pool, "--receipts", file, "-o", "json"])
    assert json.loads(planned.stdout)["source"] == "Receipt"
    assert planned.stderr == result.stderr


def test_a_namespace_without_receipts_says_when_they_come(cluster: Cluster) -> None:
    result = CliRunner().invoke(app, ["receipts", "list", "-n", "agents"])
    assert result.exit_code == 0
    assert "no receipts: engines make them when they start" in result.stderr


def test_damaged_lines_of_a_namespace_are_counted_too(cluster: Cluster) -> None:
    cluster.put(damaged(kept(boot()), *("nonsense",) * 5))
    result = CliRunner().invoke(app, ["receipts", "export", "-n", "agents"])
    assert result.exit_code == 0 and receipts_in(yaml.safe_load(result.stdout)) == kept(boot())
    assert "ConfigMap ballonet-receipts of namespace agents: 5 lines of rec" in result.stderr
    assert result.stderr.endswith("; and 2 more\n")


def test_receipts_without_damage_are_read_in_silence(tmp_path: Path) -> None:
    file = written(tmp_path, "receipts.yaml", config_map("agents", kept(boot(), boot(1))))
    assert CliRunner().invoke(app, ["receipts", "list", "-f", file]).stderr == ""


def test_lines_beyond_the_bounds_are_left_out_by_number() -> None:
    found = damaged(kept(boot()), *("",) * MAX_LINES)
    assert receipts_in(found) == Receipts()
    assert left_out_of(found) == ("line 1025: is beyond 1,024 lines or 256 KiB",)


def test_a_list_says_what_was_measured(tmp_path: Path) -> None:
    boots = kept(boot(), boot(1, usual_bytes() - 2**30), boot(2, device="other"))
    file = written(tmp_path, "receipts.yaml", config_map("agents", boots))
    table = run("receipts", "list", "-f", file)
    assert "NVIDIA-H100-80GB-HBM3 81559" in table
    assert "53.45 GiB to 54.45 GiB" in table
    assert "cold 40 to 41 s" in table
    documents = json.loads(run("receipts", "list", "-f", file, "-o", "json"))
    assert [one["boots"] for one in documents] == [2, 1]


def test_receipts_are_carried_to_another_namespace_and_taken_in_once(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.put(config_map("from", kept(boot(), boot(1))))
    cluster.put(config_map("to", kept(boot(2, device="other"))))
    file = tmp_path / "export.yaml"
    file.write_text(run("receipts", "export", "-n", "from"))
    said = run("receipts", "import", str(file), "-n", "to")
    assert said == "2 receipts in namespace to, 1 of them new or changed\n"
    assert in_cluster(cluster, "to") == kept(boot(), boot(1), boot(2, device="other"))
    cluster.writes.clear()
    run("receipts", "import", str(file), "-n", "to")
    assert cluster.writes == []
    run("receipts", "import", str(file), "-n", "empty")
    assert in_cluster(cluster, "empty") == kept(boot(), boot(1))
    assert json.loads(run("receipts", "list", "-n", "nothing", "-o", "json")) == []


def test_a_config_map_of_somebody_else_is_not_written(cluster: Cluster, tmp_path: Path) -> None:
    theirs = config_map("to", kept())
    del theirs["metadata"]["labels"]
    cluster.put(theirs)
    file = written(tmp_path, "receipts.yaml", config_map("agents", kept(boot())))
    assert "made by somebody else" in run("receipts", "import", file, "-n", "to", code=2)
    assert cluster.writes == []


def test_a_cluster_that_refuses_is_a_message(cluster: Cluster) -> None:
    cluster.fail(403, "Forbidden", "you may not", verb="get")
    assert run("receipts", "list", code=2) == "ballonet: you may not\n"
