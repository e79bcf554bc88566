"""``ballonet plan`` as a program: files in, text and exit codes out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from ballonet.cli.main import app
from ballonet.planning.remedies import apply_merge_patch
from tests.pools import DEMO, H100, TINY_CONFIG

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def run(*arguments: str, stdin: str | bytes | None = None) -> Result:
    return CliRunner().invoke(app, ["plan", *arguments], input=stdin)


def pool(name: str = "demo", base: dict[str, Any] = DEMO, **changes: Any) -> dict[str, Any]:
    return {
        "apiVersion": "ballonet.io/v1alpha1",
        "kind": "InferencePool",
        "metadata": {"name": name},
        "spec": apply_merge_patch(base, changes),
    }


def text(*documents: dict[str, Any]) -> str:
    return yaml.safe_dump_all(documents)


def planned(*documents: dict[str, Any], arguments: tuple[str, ...] = ()) -> tuple[Any, int]:
    result = run("-f", "-", "-o", "json", *arguments, stdin=text(*documents))
    return json.loads(result.stdout), result.exit_code


FITS = {"sequence": {"maxTokens": 608}}
UNKNOWN = {"engine": {"args": ["--enable-expert-parallel"]}}
BAD = {"engine": {"version": "9.9.9"}}


def test_the_demo_in_json() -> None:
    found, code = planned(pool())
    assert code == 1
    expected = {
        "name": "demo",
        "fits": False,
        "requiredSlots": 6,
        "needBlocks": 192,
        "budgetBlocks": 114,
        "availableSlots": 3,
        "blocksPerSequence": 32,
        "kvCacheBlocks": {"low": 128, "high": 128},
        "kvCacheBytes": {"low": 8_388_608, "high": 8_388_608},
        "maxConcurrent": 3,
    }
    assert {key: found[key] for key in expected} == expected
    assert "--max-num-active-seqs" in found["engineArgs"]
    assert found["remedies"][0]["name"] == "LowerCeiling"
    assert found["remedies"][0]["patch"] == {"spec": {"sequence": {"maxTokens": 608}}}
    assert [(c["type"], c["status"]) for c in found["conditions"]] == [
        ("SpecResolved", "True"),
        ("BudgetComputed", "True"),
        ("TopologyFits", "False"),
    ]


@pytest.mark.parametrize(
    ("changes", "code", "fits"),
    [(FITS, 0, True), ({}, 1, False), (BAD, 2, None), (UNKNOWN, 3, None)],
)
def test_exit_code_and_fits(changes: dict[str, Any], code: int, fits: bool | None) -> None:
    found, exit_code = planned(pool(**changes))
    assert (exit_code, found["fits"]) == (code, fits)


@pytest.mark.parametrize(
    ("several", "code"),
    [
        ([FITS, FITS], 0),
        ([FITS, UNKNOWN], 3),
        ([UNKNOWN, {}, FITS], 1),
        ([{}, BAD, UNKNOWN], 2),
    ],
)
def test_the_worst_of_several_pools_is_the_exit_code(
    several: list[dict[str, Any]], code: int
) -> None:
    pools = [pool(f"pool-{n}", **changes) for n, changes in enumerate(several)]
    found, exit_code = planned(*pools)
    assert exit_code == code
    assert [one["name"] for one in found] == [f"pool-{n}" for n in range(len(several))]


def test_other_documents_are_left_out() -> None:
    gateway = {**pool("theirs"), "apiVersion": "inference.networking.k8s.io/v1"}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}}
    found, code = planned(gateway, service, pool(**FITS))
    assert (found["name"], code) == ("demo", 0)


def test_lists_are_opened() -> None:
    found, _ = planned({"apiVersion": "v1", "kind": "List", "items": [pool("a"), pool("b")]})
    assert [one["name"] for one in found] == ["a", "b"]


def test_no_pool_at_all_is_bad_input() -> None:
    for content in (
        "",
        "---\n",
        "a: 1",
        "- 1",
        text({"kind": "InferencePool", "apiVersion": "x/v1"}),
    ):
        result = run("-f", "-", stdin=content)
        assert result.exit_code == 2
        assert "no InferencePool of group ballonet.io" in result.stderr


def test_several_files(tmp_path: Path) -> None:
    for name, changes in (("a", FITS), ("b", {})):
        (tmp_path / f"{name}.yaml").write_text(text(pool(name, **changes)))
    files = [argument for name in "ab" for argument in ("-f", str(tmp_path / f"{name}.yaml"))]
    result = run(*files, "-o", "json")
    found = json.loads(result.stdout)
    assert [one["file"] for one in found] == [str(tmp_path / "a.yaml"), str(tmp_path / "b.yaml")]
    assert result.exit_code == 1


def test_yaml_says_the_same_as_json() -> None:
    as_json, _ = planned(pool())
    as_yaml = yaml.safe_load(run("-f", "-", "-o", "yaml", stdin=text(pool())).stdout)
    assert as_yaml == as_json


def test_the_arithmetic_is_printed_step_by_step_without_escapes() -> None:
    result = run("-f", "-", stdin=text(pool()))
    assert "Budget: floor((128 - 1 null block) x 90 %) = 114 blocks" in result.stdout
    assert "6 sequences x 32 blocks = 192; budget 114" in result.stdout
    assert """--type merge -p '{"spec":{"sequence":{"maxTokens":608}}}'""" in result.stdout
    assert "\x1b" not in result.stdout


REF = {"model": {"config": {"inline": None, "configMapRef": {"name": "c", "key": "config.json"}}}}


def config_map(name: str = "c", key: str = "config.json", **metadata: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, **metadata},
        "data": {key: TINY_CONFIG},
    }


def test_the_config_map_may_stand_in_the_same_input() -> None:
    found, code = planned(pool(**REF), config_map())
    assert (code, found["budgetBlocks"]) == (1, 114)


@pytest.mark.parametrize(
    "other", [config_map(name="d"), config_map(key="other"), config_map(namespace="elsewhere")]
)
def test_another_config_map_is_not_taken(other: dict[str, Any]) -> None:
    here = pool(**REF)
    here["metadata"]["namespace"] = "here"
    found, code = planned(here, other)
    assert code == 2
    assert "ConfigMap c with key config.json was not found" in found["problems"][0]
    assert "--config FILE" in found["problems"][0]


def test_the_config_may_be_a_file(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(TINY_CONFIG)
    found, code = planned(pool(**REF), arguments=("--config", str(file)))
    assert (code, found["budgetBlocks"]) == (1, 114)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("not json", "is not JSON"),
        (" ", "is empty"),
        ("[]", "JSON object"),
        ('{"model_type": "llama"}', "num_hidden_layers"),
        (TINY_CONFIG.replace('"num_hidden_layers": 4', f'"num_hidden_layers": {2**63}'), "4096"),
        (TINY_CONFIG.replace('"num_attention_heads": 8', '"num_attention_heads": 0'), "heads"),
        ("{" + " " * 5_000_000 + "}", "larger than"),
        ("[" * 100_000, "(file)"),
    ],
)
def test_an_unusable_config_is_named(tmp_path: Path, content: str, words: str) -> None:
    file = tmp_path / "config.json"
    file.write_text(content)
    result = run("-f", "-", "--config", str(file), "-o", "json", stdin=text(pool(**REF)))
    assert result.exit_code == 2
    assert words in result.stdout + result.stderr


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"topologies": [{"name": "t", "roles": [{"name": "w", "maxTokens": 2048}]}]},
            "spec.topologies[0].roles[0].maxTokens: 2048 is above spec.sequence.maxTokens 1024",
        ),
        (
            {"topologies": [{"name": "t", "roles": [{"name": "w", "count": 0}]}]},
            "spec.topologies[0].roles[0].count: ",
        ),
        ({"accelerator": {"type": "H1000"}}, "spec.accelerator.type: H1000 is not in the catalog"),
        ({"engine": {"version": "0.99.0"}}, "spec.engine.version: 0.99.0 is not known"),
        ({"model": {"name": "no/such", "config": None}}, "spec.model.name: no/such"),
        ({"budget": {"kvCacheMemoryPerRank": "8 GB"}}, "spec.budget.kvCacheMemoryPerRank: '8 GB'"),
        ({"budget": None}, "spec.budget.kvCacheMemoryPerRank: accelerator.type CPU needs"),
        ({"engine": {"args": ["--max_num_seqs=5"]}}, "--max_num_seqs"),
        (
            {"sequence": {"maxToken": 5}},
            "spec.sequence.maxToken: no such field: did you mean maxTokens?",
        ),
        ({"parallelism": {"tensor": 3}}, "spec.parallelism: "),
    ],
)
def test_bad_input_is_named_at_its_field(changes: dict[str, Any], problem: str) -> None:
    found, code = planned(pool(**changes))
    assert code == 2
    assert any(line.startswith(problem) for line in found["problems"]), found["problems"]


@pytest.mark.parametrize("name", ["Demo", "9demo", "a" * 64, "dé", "a.b"])
def test_illegal_names_are_bad_input(name: str) -> None:
    found, code = planned(pool(name))
    assert code == 2
    assert "metadata.name" in found["problems"][0]


def test_a_name_of_63_characters_is_legal() -> None:
    assert planned(pool("a" * 63, **FITS))[1] == 0


def test_a_later_version_of_the_resource_is_refused() -> None:
    result = run("-f", "-", stdin=text({**pool(), "apiVersion": "ballonet.io/v1beta9"}))
    assert result.exit_code == 2
    assert "use ballonet.io/v1alpha1" in result.stderr


def test_pools_that_are_no_pools() -> None:
    for spec in (None, [], "x", 5, {}):
        found, code = planned({**pool(), "spec": spec})
        assert code == 2
        assert found["problems"]
    found, code = planned({**pool(), "metadata": None})
    assert code == 2
    assert "metadata.name" in found["problems"][0]


def test_unicode_in_free_strings_is_kept_and_control_characters_are_not_obeyed() -> None:
    found, code = planned(pool(model={"servedNames": ["a-模型-ü"]}, **FITS))
    assert code == 0
    assert "a-模型-ü" in found["engineArgs"]
    result = run("-f", "-", stdin=text(pool(engine={"args": ["--\x1b[31mred"]})))
    assert result.exit_code == 2
    assert "\x1b" not in result.stdout


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\xff\xfe\x00a", "is not UTF-8"),
        (b"a: 1\na: 2\n", "the key 'a' twice"),
        (b'{"a": 1, "a": 2}', "the key 'a' twice"),
        (b"a: b: c", "line 1: is not YAML"),
        (b"a: *nowhere", "line 1: alias *nowhere has no anchor"),
        (b"a: &a [*a]", "no anchor"),
        (b"- " * 100_000, "nested deeper"),
        (b"[" * 100_000, "nest"),
        (b"x" * (4 * 1024 * 1024 + 1), "larger than 4 MiB"),
        (b"a\x00b", "is not YAML"),
        (b"? [a]\n: b\n", "a map key must be text"),
    ],
)
def test_input_that_is_no_yaml_is_named_and_never_a_traceback(content: bytes, words: str) -> None:
    result = run("-f", "-", stdin=content)
    assert result.exit_code == 2
    assert words in result.stderr
    assert "Traceback" not in result.stderr


def test_aliases_cannot_expand_without_bound() -> None:
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    for this, before in zip("bcdefghij", "abcdefghi", strict=True):
        lines.append(f"{this}: &{this} [{', '.join([f'*{before}'] * 9)}]")
    result = run("-f", "-", stdin="\n".join(lines))
    assert result.exit_code == 2
    assert "with its aliases" in result.stderr


def test_aliases_and_merge_keys_are_read() -> None:
    content = text(pool(**FITS)).replace("metadata:", "x: &m {name: demo}\nmetadata: *m\ny:")
    content = content.replace("x: &m {name: demo}\n", "x: &m {name: other, labels: {}}\n").replace(
        "metadata: *m", "metadata:\n  <<: *m\n  name: merged"
    )
    result = run("-f", "-", "-o", "json", stdin=content)
    assert json.loads(result.stdout)["name"] == "merged"


def test_a_file_that_is_not_there() -> None:
    result = run("-f", "/no/such/file.yaml")
    assert result.exit_code == 2
    assert "/no/such/file.yaml: No such file or directory" in result.stderr


def test_unknown_options_and_outputs_are_bad_input() -> None:
    assert run("-f", "-", "-o", "xml", stdin="").exit_code == 2
    assert run("--nonsense").exit_code == 2
    assert run().exit_code == 2


@pytest.mark.parametrize(
    ("file", "code"),
    [
        ("demo-unfit.yaml", 1),
        ("qwen3-32b-h100.yaml", 0),
        ("llama-3.1-8b-l4.yaml", 0),
        ("two-topologies.yaml", 0),
        ("planner-lets-go.yaml", 0),
        ("hybrid-model.yaml", 3),
    ],
)
def test_the_examples_are_what_their_table_says(file: str, code: int) -> None:
    assert run("-f", str(EXAMPLES / file)).exit_code == code
    row = next(r for r in (EXAMPLES / "README.md").read_text().splitlines() if f"`{file}`" in r)
    assert row.rstrip("| ").endswith(str(code))


def test_every_example_is_tested() -> None:
    listed = {
        line.split("`")[1]
        for line in (EXAMPLES / "README.md").read_text().splitlines()
        if line.startswith("| `")
    }
    assert {file.name for file in EXAMPLES.glob("*.yaml")} == listed


def ballonet(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run the real program."""
    return subprocess.run(
        [sys.executable, "-m", "ballonet", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
        env={**os.environ, "PYTHONPATH": str(ROOT / "operator")},
    )


def test_the_program_runs_as_a_module() -> None:
    result = ballonet("plan", "-f", "-", stdin=text(pool()))
    assert result.returncode == 1
    assert "6 sequences x 32 blocks = 192" in result.stdout
    assert ballonet("version").stdout.startswith("ballonet ")


def test_a_plan_needs_neither_kopf_nor_a_kubernetes_client() -> None:
    script = """
import sys
sys.argv = ["ballonet", "plan", "-f", "-", "-o", "json"]
from ballonet.cli.main import main
try:
    main()
except SystemExit:
    pass
heavy = {"kopf", "kubernetes", "aiohttp", "asyncio", "rich.table", "prometheus_client", "structlog"}
print(sorted(heavy & set(sys.modules)), file=sys.stderr)
"""
    result = subprocess.run(
        [sys.executable, "-c", script],
        input=text(pool(base=H100)),
        capture_output=True,
        text=True,
        check=True,
        timeout=50,
        env={**os.environ, "PYTHONPATH": str(ROOT / "operator")},
    )
    assert json.loads(result.stdout)["fits"] is True
    assert result.stderr.strip() == "[]"


def test_a_closed_pipe_is_no_traceback() -> None:
    process = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m ballonet plan -f - -o json | true"],
        input=text(*(pool(f"p{n}") for n in range(50))),
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
        env={**os.environ, "PYTHONPATH": str(ROOT / "operator")},
    )
    assert "Traceback" not in process.stderr
    assert "Exception" not in process.stderr


def test_a_terminal_gets_a_table_unless_colour_is_unwanted(tmp_path: Path) -> None:
    file = tmp_path / "pool.yaml"
    file.write_text(text(pool()))
    command = f"{sys.executable} -m ballonet plan -f {file}"
    plain = {"PYTHONPATH": str(ROOT / "operator"), "TERM": "xterm-256color", "COLUMNS": "120"}
    outputs = [
        subprocess.run(
            ["script", "-qec", command, "/dev/null"],
            capture_output=True,
            text=True,
            check=False,
            timeout=50,
            env={"PATH": os.environ["PATH"], **plain, **more},
        ).stdout
        for more in ({}, {"NO_COLOR": "1"})
    ]
    assert "\x1b[" in outputs[0] and "Arithmetic" in outputs[0]
    assert "\x1b[" not in outputs[1] and "= 114 blocks" in outputs[1]
