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
SOURCES = os.pathsep.join((str(ROOT / "operator"), str(ROOT / "probe")))
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
UNKNOWN = {"engine": {"args": ["--enable-eplb"]}}
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
        "slots": 3,
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


def test_what_was_found_instead_of_a_pool_is_named() -> None:
    wrong = [{**pool(), "kind": "InferencePools"}, {**pool(), "apiVersion": "balonet.io/v1alpha1"}]
    result = run("-f", "-", stdin=text(*wrong))
    assert result.exit_code == 2
    assert (
        "(kind InferencePool, apiVersion ballonet.io/v1alpha1); found kind 'InferencePools' of "
        "apiVersion 'ballonet.io/v1alpha1', kind 'InferencePool' of apiVersion "
        "'balonet.io/v1alpha1'"
    ) in result.stderr
    result = run("-f", "-", stdin=text(*({"kind": f"K{n}", "apiVersion": "v1"} for n in range(9))))
    assert "kind 'K4' of apiVersion 'v1' and 4 more" in result.stderr


def test_files_of_a_shell_pattern_and_a_folder(tmp_path: Path) -> None:
    names = ["a.yaml", "b.yml", "c.json"]
    for name in names:
        content = json.dumps(pool(name[0], **FITS)) if name[0] == "c" else text(pool(name[0]))
        (tmp_path / name).write_text(content)
    (tmp_path / "README.md").write_text("no YAML: [")
    files = [str(tmp_path / name) for name in names]
    for arguments in (["-f", *files], ["-f", str(tmp_path)], files):
        result = run(*arguments, "-o", "json")
        assert result.exit_code == 1
        assert {one["file"] for one in json.loads(result.stdout)} == set(files)


def test_a_folder_without_files_is_named(tmp_path: Path) -> None:
    result = run("-f", str(tmp_path))
    assert result.exit_code == 2
    assert f"{tmp_path}: the folder holds no file that ends in .json, .yaml, .yml" in result.stderr


def test_no_input_says_how_to_give_one() -> None:
    result = run()
    assert result.exit_code == 2
    assert "-f FILE" in result.stderr


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


def test_the_arithmetic_is_printed_step_by_step_when_asked_for() -> None:
    step = "Budget: floor((128 - 1 null block) x 90 %) = 114 blocks"
    assert step in run("-f", "-", "--explain", stdin=text(pool())).stdout
    assert step not in run("-f", "-", stdin=text(pool())).stdout


def test_the_answer_is_plain_text_with_a_picture_the_verdict_and_remedies() -> None:
    result = run("-f", "-", stdin=text(pool()))
    assert "6 sequences x 32 blocks = 192; budget 114" in result.stdout
    assert "planner 1 x 32 = 32" in result.stdout
    assert "KV blocks of 32 tokens, of an engine (given)" in result.stdout
    assert """--type merge -p '{"spec":{"sequence":{"maxTokens":608}}}'""" in result.stdout
    assert "\x1b" not in result.stdout


def test_markdown_has_headings_a_picture_and_the_steps() -> None:
    result = run("-f", "-", "-o", "markdown", "--explain", stdin=text(pool()))
    lines = result.stdout.splitlines()
    assert lines[0] == "## demo (-) does not fit"
    assert "```text" in lines
    assert "| Step | Arithmetic | Result | Source |" in lines
    assert any(line.startswith("* remedy LowerCeiling: ") for line in lines)
    assert (
        """  `kubectl patch inferencepools.ballonet.io demo --type merge -p """
        """'{"spec":{"sequence":{"maxTokens":608}}}'`"""
    ) in lines


def test_two_pools_side_by_side_show_what_differs() -> None:
    documents = text(pool("before"), pool("after", **FITS))
    result = run("-f", "-", "--compare", stdin=documents)
    rows = {line.split()[0]: line.split()[1:] for line in result.stdout.splitlines()}
    assert result.exit_code == 1
    assert rows["needBlocks"] == ["192", "114", "differs"]
    assert rows["budgetBlocks"] == ["114", "114"]
    assert rows["spec.sequence.maxTokens"] == ["1,024", "608", "differs"]
    assert "spec.model.name" not in rows
    found = json.loads(run("-f", "-", "--compare", "-o", "json", stdin=documents).stdout)
    assert [plan["name"] for plan in found["plans"]] == ["before", "after"]
    assert {"name": "needBlocks", "first": "192", "second": "114"} in found["differences"]


def test_elements_of_lists_are_compared_by_name() -> None:
    worker = {"topologies": [{"name": "research", "roles": [{"name": "worker", "count": 2}]}]}
    result = run("-f", "-", "--compare", stdin=text(pool("a"), pool("b", **worker)))
    assert "spec.topologies[research].roles[worker].count" in result.stdout


def test_long_values_are_compared_from_where_they_part() -> None:
    config = json.dumps({"model_type": "llama", "hidden_act": "silu" * 40, "vocab_size": 4096})
    other = config.replace("4096", "8192") + " " * 300
    inline = [{"model": {"config": {"inline": each}}} for each in (config, other)]
    result = run("-f", "-", "--compare", stdin=text(*(pool("a", **each) for each in inline)))
    (row,) = (line for line in result.stdout.splitlines() if "config.inline" in line)
    assert len(row) < 200
    assert "4096" in row and "8192" in row
    document = run("-f", "-", "--compare", "-o", "json", stdin=text(pool(), pool(**inline[0])))
    assert config in [each["second"] for each in json.loads(document.stdout)["differences"]]


def test_not_two_pools_cannot_be_compared() -> None:
    result = run("-f", "-", "--compare", stdin=text(pool()))
    assert result.exit_code == 2
    assert "--compare: two pools are compared, and the input holds 1" in result.stderr


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


def test_the_config_is_no_standard_input() -> None:
    result = run("-f", "-", "--config", "-", stdin=text(pool(**REF)))
    assert result.exit_code == 2
    assert "--config -: standard input is not taken: name a file" in result.stderr


def test_a_config_that_no_pool_would_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(TINY_CONFIG)
    result = run("-f", "-", "--config", str(file), stdin=text(pool()))
    assert result.exit_code == 2
    assert "no pool has spec.model.config.configMapRef" in result.stderr


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("not json", "is not JSON"),
        ("", "is empty"),
        (" ", "is empty"),
        ("[]", "JSON object"),
        ('{"model_type": "llama"}', "num_hidden_layers"),
        (TINY_CONFIG.replace('"num_hidden_layers": 4', f'"num_hidden_layers": {2**63}'), "4,096"),
        (TINY_CONFIG.replace('"num_attention_heads": 8', '"num_attention_heads": 0'), "heads"),
        ("{" + " " * 5_000_000 + "}", "larger than 4 MiB: give the config.json of one model"),
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
            "spec.topologies[0].roles[0].maxTokens: 2,048 is above spec.sequence.maxTokens 1,024",
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
        (
            {"topologies": [{"name": "t", "roles": [{"name": "w", "holdsSlot": "Never"}]}]},
            "spec.topologies[0].roles[0].holdsSlot: no such field: did you mean "
            "holdsSlotWhileWaiting?",
        ),
        (
            {"rollout": {"zzz": 1}},
            "spec.rollout.zzz: no such field: use one of drainSeconds, strategy",
        ),
        (
            {"engine": {"env": [{"name": "HF_TOKEN", "valueFrom": {}}]}},
            "spec.engine.env[0].valueFrom: no such field: name the variable under env of "
            "container engine in spec.engine.podTemplate",
        ),
        ({"parallelism": {"tensor": 3}}, "spec.parallelism.tensor: "),
        (
            {"sequence": {"max_tokens": 100}},
            "spec.sequence.max_tokens: no such field: did you mean maxTokens?",
        ),
        (
            {"engine": {"podTemplate": {"spec": {"containers": [{"name": "engine", "args": []}]}}}},
            "spec.engine.podTemplate sets args of container engine",
        ),
        (
            {"engine": {"podTemplate": {"spec": {"containers": {}}}}},
            "spec.engine.podTemplate.spec.containers must be a list of maps with name",
        ),
    ],
)
def test_bad_input_is_named_at_its_field(changes: dict[str, Any], problem: str) -> None:
    found, code = planned(pool(**changes))
    assert code == 2
    assert any(line.startswith(problem) for line in found["problems"]), found["problems"]


def test_a_model_that_is_not_known_says_what_to_give() -> None:
    unknown = pool(base=H100, model={"name": "acme/thinker-671b"})
    result = run("-f", "-", stdin=text(unknown))
    assert result.exit_code == 2
    assert result.stdout.count("is not in the catalog") == 1
    assert "spec.model.config (inline or configMapRef)" in result.stdout
    assert "did you mean" not in result.stdout


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
        (
            b'{"a": 1' + b"0" * 400 + b"}",
            "has the number '1000000000000000000000000000000000000...'",
        ),
        (b'{"a": 1' + b"0" * 5000 + b"}", "which is too large"),
        (b'{"a": 1e999}', "has the number '1e999', which is too large"),
        (b'{"a":' * 101 + b"1" + b"}" * 101, "is nested deeper than 100 levels"),
        (b'{"a":' * 970 + b"1" + b"}" * 970, "is nested deeper than 100 levels"),
        (b"[" + b"0," * 500_000 + b"0]", "holds more than 500000 values"),
        (b"a: !!int ''", "line 1: '' is no int"),
        (b"a:\n- !!int '-'", "line 2: '-' is no int"),
        (b"a: !!float ''", "line 1: '' is no float"),
        (b"a: !!bool foo", "line 1: 'foo' is no bool"),
    ],
)
def test_input_that_is_no_yaml_is_named_and_never_a_traceback(content: bytes, words: str) -> None:
    result = run("-f", "-", stdin=content)
    assert result.exit_code == 2
    assert words in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("zeros", [400, 5000])
@pytest.mark.parametrize("start", ["1", "0x1"])
def test_a_number_that_kubernetes_cannot_hold_is_text(start: str, zeros: int) -> None:
    content = text(pool()).replace("maxTokens: 1024", f"maxTokens: {start}{'0' * zeros}")
    result = run("-f", "-", stdin=content)
    assert result.exit_code == 2
    assert "spec.sequence.maxTokens: '" in result.stdout
    assert "...' is not a whole number" in result.stdout


@pytest.mark.parametrize("value", ["<<", "!!merge x"])
def test_a_merge_key_is_one_only_as_a_key(value: str) -> None:
    content = text(pool(engine={"podTemplate": {"a": "MARK"}}, **FITS)).replace("MARK", value)
    result = run("-f", "-", stdin=content)
    assert result.exit_code == 0, result.stdout


def test_a_snake_case_field_does_not_hide_a_broken_rule() -> None:
    broken = pool(topologies=[{"name": "t", "roles": [{"name": "w", "maxTokens": 200}]}])
    broken["spec"]["sequence"] = {"max_tokens": 100}
    found, code = planned(broken)
    assert code == 2
    assert found["problems"] == [
        "spec.sequence.max_tokens: no such field: did you mean maxTokens?",
        "spec.topologies[0].roles[0].maxTokens: 200 is above spec.sequence.maxTokens 100: lower it "
        "or raise that",
    ]


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ({"spec": {"containers": {}}}, "InvalidPodTemplate"),
        ({"spec": {"containers": [{"name": "engine", "command": ["sh"]}]}}, "FlagRefused"),
    ],
)
def test_a_pod_template_is_refused_for_the_reason_that_the_operator_gives(
    template: dict[str, Any], reason: str
) -> None:
    found, _ = planned(pool(engine={"podTemplate": template}))
    assert [c["reason"] for c in found["conditions"] if c["type"] == "Configured"] == [reason]


@pytest.mark.parametrize("output", ["table", "json", "yaml", "markdown"])
def test_no_text_of_a_pool_can_forge_a_line_or_be_obeyed(output: str) -> None:
    forged = pool("a\n\nother (f) fits\x1b[2J\x9b2J\u202e\x7f\ud800")
    forged["metadata"]["namespace"] = "b\nc fits"
    result = run("-f", "-", "-o", output, stdin=json.dumps(forged))
    assert result.exit_code == 2
    assert result.stdout.isascii()
    assert all(line.isprintable() for line in result.stdout.splitlines())
    if output in ("table", "markdown"):
        starts = [(line.split() or [""])[0] for line in result.stdout.splitlines()]
        assert not {"other", "c"} & set(starts)


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
        ("hybrid-model.yaml", 0),
        ("spread-over-ranks.yaml", 0),
        ("watched-agents.yaml", 0),
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
        env={**os.environ, "PYTHONPATH": SOURCES},
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
heavy = {"kopf", "kubernetes", "aiohttp", "asyncio", "rich", "prometheus_client", "structlog"}
heavy |= {"pandas", "numpy"}
print(sorted(heavy & set(sys.modules)), file=sys.stderr)
"""
    result = subprocess.run(
        [sys.executable, "-c", script],
        input=text(pool(base=H100)),
        capture_output=True,
        text=True,
        check=True,
        timeout=50,
        env={**os.environ, "PYTHONPATH": SOURCES},
    )
    assert json.loads(result.stdout)["fits"] is True
    assert result.stderr.strip() == "[]"


def test_help_needs_nothing_of_a_plan() -> None:
    script = """
import sys
sys.argv = ["ballonet", "fit", "--help"]
from ballonet.cli.main import main
try:
    main()
except SystemExit:
    pass
heavy = {"yaml", "kopf", "kubernetes", "ballonet.api.v1alpha1", "ballonet.planning", "ballonet.kv"}
print(sorted(heavy & set(sys.modules)), file=sys.stderr)
"""
    result = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        timeout=50,
        env={**os.environ, "PYTHONPATH": SOURCES},
    )
    assert "--agents" in result.stdout
    assert result.stderr.strip() == "[]"


def test_a_closed_pipe_is_no_traceback() -> None:
    process = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m ballonet plan -f - -o json | true"],
        input=text(*(pool(f"p{n}") for n in range(50))),
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
        env={**os.environ, "PYTHONPATH": SOURCES},
    )
    assert "Traceback" not in process.stderr
    assert "Exception" not in process.stderr


@pytest.mark.parametrize(
    ("redirection", "code", "words"),
    [
        ("-f FILE >&-", 2, "standard output is closed"),
        ("-f FILE -o json >&-", 2, "standard output is closed"),
        ("-f FILE >/dev/full", 2, "standard output: No space left on device"),
        ("-f - <&-", 2, "-: standard input is closed"),
        ("-f /no/such/file 2>&-", 2, ""),
        ("-f FILE | true; exit ${PIPESTATUS[0]}", 141, ""),
    ],
)
def test_a_fault_of_the_streams_is_never_taken_for_an_unfit_pool(
    tmp_path: Path, redirection: str, code: int, words: str
) -> None:
    file = tmp_path / "pools.yaml"
    # More than a pipe holds, so that the writer meets its end.
    file.write_text(text(*(pool(f"p{n}") for n in range(50))))
    command = redirection.replace("FILE", str(file))
    process = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m ballonet plan {command}"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
        env={**os.environ, "PYTHONPATH": SOURCES},
    )
    assert process.returncode == code
    assert process.stderr.strip() == (f"ballonet: {words}" if words else "")
    assert process.stdout == ""


def test_an_output_without_unicode_shows_the_numbers_of_characters(tmp_path: Path) -> None:
    file = tmp_path / "pool.yaml"
    file.write_text(text(pool(model={"servedNames": ["a-ü"]}, **FITS)))
    process = subprocess.run(
        [sys.executable, "-m", "ballonet", "plan", "-f", str(file)],
        capture_output=True,
        check=False,
        timeout=50,
        env={**os.environ, "PYTHONPATH": SOURCES, "PYTHONIOENCODING": "ascii"},
    )
    assert (process.returncode, process.stderr) == (0, b"")
    assert rb"a-\xfc" in process.stdout


def test_a_fault_of_the_program_is_never_taken_for_an_unfit_pool() -> None:
    script = """
import sys
import ballonet.cli.outcome
from ballonet.cli.main import main
del ballonet.cli.outcome.plan_pool
sys.argv = ["ballonet", "plan", "-f", "-"]
main()
"""
    process = subprocess.run(
        [sys.executable, "-c", script],
        input=text(pool()),
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
        env={**os.environ, "PYTHONPATH": SOURCES},
    )
    assert process.returncode == 2
    assert "NameError" in process.stderr


def test_a_terminal_gets_colours_unless_they_are_unwanted(tmp_path: Path) -> None:
    file = tmp_path / "pool.yaml"
    file.write_text(text(pool()))
    command = f"{sys.executable} -m ballonet plan -f {file}"
    terminal = {
        "PYTHONPATH": SOURCES,
        "TERM": "xterm-256color",
        "COLUMNS": "120",
        "PYTHONIOENCODING": "utf-8",
    }
    outputs = [
        subprocess.run(
            ["script", "-qec", command, "/dev/null"],
            capture_output=True,
            text=True,
            check=False,
            timeout=50,
            env={"PATH": os.environ["PATH"], **terminal, **more},
        ).stdout
        for more in ({}, {"NO_COLOR": "1"}, {"COLUMNS": "40"}, {"PYTHONIOENCODING": "ascii"})
    ]
    assert "\x1b[" in outputs[0] and "█" in outputs[0]
    for plain in outputs[1:]:
        assert plain.isascii() and "\x1b" not in plain
        assert "need [##" in plain
