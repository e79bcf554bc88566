"""``ballonet fit`` and ``ballonet gpus``: questions without any file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from ballonet.catalog.flags import vllm_sampled_versions
from ballonet.cli import question
from ballonet.cli.main import app
from tests.pools import TINY_CONFIG

MODEL = ("Qwen/Qwen3-32B", "--context", "32k")
FITS = (*MODEL, "--gpu", "H100-80GB", "--tensor", "2", "--agents", "1+5")
ON_CPU = (
    "tiny",
    "--gpu",
    "CPU",
    "--context",
    "1024",
    "--kv-memory",
    "8Mi",
    "--engine",
    "vllm@0.32",
)


def fit(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["fit", *arguments])


def gpus(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["gpus", *arguments])


@pytest.fixture
def tiny(tmp_path: Path) -> tuple[str, ...]:
    """A model of our own on CPU, so that every figure is exact."""
    file = tmp_path / "config.json"
    file.write_text(TINY_CONFIG)
    return (*ON_CPU, "--config", str(file))


def test_a_question_is_answered_in_the_first_line_and_by_the_exit_code(
    tiny: tuple[str, ...],
) -> None:
    result = fit(*tiny, "--agents", "1+5")
    assert result.exit_code == 1
    assert result.stdout.splitlines()[0] == (
        "tiny on CPU with vLLM 0.32.0 does not fit: 3 sequences at once (given), 6 are wanted"
    )
    assert fit(*tiny, "--agents", "1+2").exit_code == 0


def test_remedies_name_options_and_no_cluster(tiny: tuple[str, ...]) -> None:
    result = fit(*tiny, "--agents", "1+5")
    assert "Lower --context from 1" in result.stdout
    assert "kubectl" not in result.stdout
    assert "spec.sequence.maxTokens" not in result.stdout


def test_too_many_workers_are_told_how_many_fit() -> None:
    result = fit(*FITS[:-1], "1+500", "--worker-context", "16k")
    assert result.exit_code == 1
    told = re.search(
        r"Fits with (\d+) instead of 500 sequences of worker in agents\.", result.stdout
    )
    assert told is not None
    assert f"FewerWorkers: Lower workers of --agents from 500 to {told[1]}; " in result.stdout
    assert fit(*FITS[:-1], f"1+{told[1]}", "--worker-context", "16k").exit_code == 0


def test_without_agents_it_says_how_many_fit(tiny: tuple[str, ...]) -> None:
    result = fit(*tiny)
    assert result.exit_code == 0
    assert "fits: 3 sequences at once (given)" in result.stdout.splitlines()[0]


def test_the_same_question_as_a_pool_has_the_same_answer(tiny: tuple[str, ...]) -> None:
    arguments = (*tiny, "--agents", "1+5", "--worker-context", "512", "--runs", "2")
    asked = json.loads(fit(*arguments, "-o", "json").stdout)
    printed = fit(*arguments, "--print-pool")
    assert printed.exit_code == 0
    planned = CliRunner().invoke(app, ["plan", "-f", "-", "-o", "json"], input=printed.stdout)
    planned_document = json.loads(planned.stdout)
    assert {**asked, "file": "-"} == planned_document
    assert asked["requiredSlots"] == 12
    assert asked["needBlocks"] == 2 * (32 + 5 * 16)


def test_a_fit_on_gpus_says_that_it_is_predicted() -> None:
    result = fit(*FITS)
    assert result.exit_code == 0
    assert "surely at once (predicted)" in result.stdout.splitlines()[0]
    assert "memory of a rank on H100-80GB (all predicted" in result.stdout


def test_a_question_that_cannot_be_asked_names_options_and_no_fields() -> None:
    stranger = fit("acme/thinker", "--context", "8k", "--gpu", "H100")
    assert stranger.exit_code == 2
    assert "MODEL: acme/thinker is not in the catalog: give " in stranger.stdout
    wide = fit(*MODEL, "--gpu", "H100", "--tensor", "16")
    assert "--tensor: tensor 16 x pipeline 1 x data 1 = 16 devices a pod" in wide.stdout
    many = fit(*MODEL, "--gpu", "H100", "--agents", "9999+9999", "--runs", "1000")
    assert "--agents and --runs: 19,998,000 sequences at once" in many.stdout
    assert "spec." not in stranger.stdout + wide.stdout + many.stdout


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_has_extras_in_brackets_as_pip_takes_them(option: str) -> None:
    assert "ballonet[hub]" in fit(option).stdout


@pytest.mark.parametrize("words", [(), ("catalog",), ("receipts",)])
def test_lists_of_commands_say_whole_sentences(words: tuple[str, ...]) -> None:
    text = CliRunner().invoke(app, [*words, "--help"]).stdout.replace("[ARGS]...", "")
    assert "..." not in text


@pytest.mark.parametrize(
    "command",
    [
        *("fit", "gpus", "plan", "explain"),
        *("catalog gpus", "catalog models", "catalog engines"),
        *("receipts list", "receipts export", "receipts import"),
    ],
)
def test_options_say_what_they_take_and_not_its_type_in_python(command: str) -> None:
    text = CliRunner().invoke(app, [*command.split(), "--help"]).stdout
    options = [line for line in text.splitlines() if line.startswith("  -")]
    assert options
    assert [line for line in options if "str>" in line] == []


def test_the_examples_of_the_help_are_questions_that_can_be_asked() -> None:
    lines = CliRunner().invoke(app, ["--help"]).stdout.splitlines()
    examples = [line.split()[1:] for line in lines if line.strip().startswith("ballonet ")]
    asked = [words for words in examples if words[0] in ("fit", "gpus")]
    assert len(asked) == 2
    assert all(CliRunner().invoke(app, words).exit_code in (0, 1) for words in asked)


def test_the_version_is_an_option_too() -> None:
    option, command = (CliRunner().invoke(app, [word]) for word in ("--version", "version"))
    assert option.exit_code == command.exit_code == 0
    assert option.stdout == command.stdout != ""


@pytest.mark.parametrize("output", ["json", "yaml"])
def test_documents_are_those_of_a_plan(output: str) -> None:
    result = fit(*FITS, "-o", output)
    document = yaml.safe_load(result.stdout)
    assert document["fits"] is True
    assert document["requiredSlots"] == 6


def test_a_page_of_markdown() -> None:
    result = fit(*FITS, "-o", "markdown", "--explain")
    assert result.stdout.startswith("## Qwen/Qwen3-32B on 2 x H100-80GB with vLLM ")
    assert "| Step | Arithmetic | Result | Source |" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--agents", "five"), "--agents: 'five' is no number of agents"),
        (("--agents", "0+5"), "--agents: '0+5' is no number of agents"),
        (("--context", "32kb"), "--context: '32kb' is no number of tokens"),
        (("--context", "0"), "--context: '0' is no number of tokens"),
        (("--worker-context", "16k"), "--worker-context: there are no workers"),
        (("--kv-cache", "q8"), "--kv-cache: 'q8' is no number format that is planned for: use "),
        (("--runs", "4"), "--runs: there are no agents to run"),
        (("--engine", "ollama@1"), "--engine: 'ollama@1' is no engine"),
        (("--config", "-"), "--config -: standard input is not taken"),
        (("--config", "/no/such"), "/no/such: No such file"),
    ],
)
def test_what_cannot_be_read_is_named_by_its_option(arguments: tuple[str, ...], words: str) -> None:
    result = fit(*MODEL, "--gpu", "H100-80GB", *arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"ballonet: {words}")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("no/such", "--gpu", "H100-80GB", "--context", "1k"), "MODEL: no/such is not in the"),
        ((*MODEL, "--gpu", "H1000"), "--gpu: H1000 is not in the catalog"),
        ((*MODEL, "--gpu", "H100-80GB", "--engine", "vllm@0.99"), "--engine: 0.99.0 is not known"),
        ((*MODEL, "--gpu", "H100-80GB", "--weights", "61GB"), "--weights: '61GB'"),
        ((*MODEL, "--gpu", "H100-80GB", "--weights", "61"), "--weights: 61 is 61 bytes"),
        (
            (*MODEL, "--gpu", "H100-80GB", "--engine", "sglang", "--weights", "61"),
            "--weights: 61 is 61 bytes",
        ),
        ((*MODEL, "--gpu", "CPU"), "--kv-memory: accelerator.type CPU needs"),
        (
            (*MODEL, "--gpu", "H100-80GB", "--agents", "1+5", "--worker-context", "64k"),
            "--worker-context: 65,536 is above --context 32,768",
        ),
    ],
)
def test_what_is_not_known_is_named_by_its_option(arguments: tuple[str, ...], words: str) -> None:
    result = fit(*arguments)
    assert result.exit_code == 2
    assert words in result.stdout.replace(",", "") or words in result.stdout


@pytest.mark.parametrize(
    ("text", "tokens"), [("1", 1), ("32768", 32_768), ("32k", 32_768), ("1M", 1_048_576)]
)
def test_tokens_have_units(text: str, tokens: int) -> None:
    assert question.tokens(text) == tokens


def test_a_version_may_be_left_out_or_cut_short() -> None:
    newest = [version for version in vllm_sampled_versions() if version.startswith("0.27.")][-1]
    assert str(question.engine("vllm@0.27")) == f"vLLM {newest}"
    assert str(question.engine("VLLM")) == f"vLLM {vllm_sampled_versions()[-1]}"
    assert str(question.engine("vllm@0.20.1rc2")) == "vLLM 0.20.1rc2"
    assert str(question.engine("sglang@0.5.5")) == "SGLang 0.5.5"


@pytest.mark.parametrize(
    ("model", "name"),
    [("Qwen/Qwen3-32B", "qwen3-32b"), ("a/7B", "pool-7b"), ("///", "pool"), ("x" * 80, "x" * 63)],
)
def test_the_pool_has_a_legal_name(model: str, name: str) -> None:
    assert question.pool_name(model) == name


def test_a_format_that_the_resource_has_no_word_for_is_an_argument_of_the_engine() -> None:
    spec: dict[str, Any] = yaml.safe_load(fit(*FITS, "--kv-cache", "fp8", "--print-pool").stdout)
    assert spec["spec"]["sequence"]["kvCacheType"] == "FP8"
    spec = yaml.safe_load(fit(*FITS, "--kv-cache", "fp8_e5m2", "--print-pool").stdout)
    assert spec["spec"]["engine"]["args"] == ["--kv-cache-dtype", "fp8_e5m2"]


def test_a_format_may_be_given_in_the_words_of_the_engine() -> None:
    printed = fit(*FITS, "--kv-cache", "bfloat16", "--print-pool").stdout
    assert yaml.safe_load(printed)["spec"]["sequence"]["kvCacheType"] == "BF16"


def test_figures_of_devices_say_that_they_are_predicted() -> None:
    heading = gpus(*MODEL, "--vendor", "nvidia", "--max-gpus", "1").stdout.splitlines()[0]
    assert "at once (predicted)" in heading
    assert "KV memory of a GPU, GiB (predicted)" in heading


def test_devices_are_listed_from_the_cheapest_that_fits() -> None:
    result = gpus(*MODEL, "--agents", "1+5", "-o", "json")
    found = json.loads(result.stdout)
    assert result.exit_code == 0
    verdicts = [row["fits"] for row in found]
    order = {True: 0, None: 1, False: 2}
    assert [order[fits] for fits in verdicts] == sorted(order[fits] for fits in verdicts)
    fitting = [row for row in found if row["fits"]]
    assert [row["gpus"] for row in fitting] == sorted(row["gpus"] for row in fitting)
    by_name = {row["gpu"]: row for row in found}
    assert by_name["H100-80GB"]["gpus"] == 2
    assert by_name["H100-80GB"]["availableSlots"] >= 6
    assert by_name["T4-16GB"]["fits"] is False


def test_a_row_says_the_same_as_a_fit() -> None:
    listed = json.loads(gpus(*MODEL, "--agents", "1+5", "-o", "json").stdout)
    row = next(one for one in listed if one["gpu"] == "H100-80GB")
    asked = json.loads(fit(*FITS, "-o", "json").stdout)
    shared = row.keys() & asked.keys()
    assert {name: row[name] for name in shared} == {name: asked[name] for name in shared}


def test_devices_are_filtered_by_maker_and_number() -> None:
    found = json.loads(gpus(*MODEL, "--vendor", "NVIDIA", "--max-gpus", "1", "-o", "json").stdout)
    assert {row["vendor"] for row in found} == {"nvidia"}
    assert {row["gpus"] for row in found} == {1}
    result = gpus(*MODEL, "--vendor", "acme")
    assert result.exit_code == 2
    assert "--vendor: acme is not in the catalog: use " in result.stderr


def test_a_table_of_devices_has_one_line_each() -> None:
    lines = gpus(*MODEL, "--max-gpus", "1", "--vendor", "nvidia").stdout.splitlines()
    assert lines[0].split()[:2] == ["GPU", "GPUs"]
    rows = {line.split()[0]: line for line in lines[1:]}
    assert "does not fit" in rows["T4-16GB"]
    assert len(rows) == len(lines) - 1
    page = gpus(*MODEL, "--max-gpus", "1", "-o", "markdown").stdout.splitlines()
    assert page[0].startswith("| GPU | GPUs |")


def test_a_question_that_no_device_can_answer_is_bad_input() -> None:
    result = gpus("no/such", "--context", "1k")
    assert result.exit_code == 2
    assert "MODEL: no/such is not in the catalog" in result.stderr


def test_where_none_surely_fits_but_some_may_the_exit_code_says_so() -> None:
    result = gpus(*MODEL, "--agents", "1+5", "--vendor", "amd")
    assert result.exit_code == 3
    assert "MemoryUnknown" in result.stdout


@pytest.fixture
def own_catalog(tmp_path: Path) -> str:
    """A file with the tiny model, and a device that nobody else has."""
    model = {"name": "acme/tiny", "config": json.loads(TINY_CONFIG)}
    device = {
        "name": "X1-48GB",
        "product": "Vendor X1",
        "vendor": "nvidia",
        "memory_mib": [45_000, 45_100],
        "architecture": "9.0",
        "resource_name": "nvidia.com/gpu",
        "node_sizes": [2],
    }
    facts = ("memory_mib", "architecture", "resource_name", "node_sizes")
    device["sources"] = dict.fromkeys(facts, "sheet: data sheet")
    model["sources"] = {"config": "config file: acme/tiny"}
    file = tmp_path / "own.json"
    file.write_text(json.dumps({"accelerators": [device], "models": [model]}))
    return str(file)


def test_entries_of_a_file_go_over_the_catalog(own_catalog: str) -> None:
    asked = ("acme/tiny", "--context", "1024", "--catalog", own_catalog)
    assert fit(*asked[:3], "--gpu", "X1-48GB").exit_code == 2
    result = fit(*asked, "--gpu", "X1-48GB", "--agents", "6")
    assert result.stdout.startswith("acme/tiny on X1-48GB with vLLM ")
    assert result.exit_code == 0
    listed = json.loads(gpus(*asked, "-o", "json").stdout)
    assert {"X1-48GB", "H100-80GB"} <= {row["gpu"] for row in listed}
    printed = fit(*asked, "--gpu", "X1-48GB", "--print-pool").stdout
    plan = ["plan", "-f", "-", "--catalog", own_catalog]
    assert CliRunner().invoke(app, plan, input=printed).exit_code == 0


def test_what_is_wrong_with_such_a_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text("models: [{name: acme/tiny}]")
    result = fit(*FITS, "--catalog", str(file))
    assert result.exit_code == 2
    assert result.stderr.startswith(
        f"ballonet: --catalog {file}: models[0] ('acme/tiny'): config: "
    )


# --- SGLang ---------------------------------------------------------------------------------------


def test_sglang_is_asked_the_same_way() -> None:
    result = fit(*FITS, "--engine", "sglang@0.5.23", "--explain")
    assert result.exit_code == 0
    assert result.stdout.startswith("Qwen/Qwen3-32B on 2 x H100-80GB with SGLang 0.5.23 fits: ")
    assert "Bytes of a token: 131,072 bytes" in result.stdout
    assert "--max-running-requests" in result.stdout
    document = json.loads(fit(*FITS, "--engine", "sglang", "-o", "json").stdout)
    assert (document["blockTokens"], document["blocksPerSequence"]) == (1, 32_768)
    assert document["needBlocks"] == 6 * 32_768


def test_given_memory_makes_sglang_exact() -> None:
    # 131,072 bytes a token on each of two ranks: 8 GiB hold 65,536 tokens, two sequences of 32k.
    arguments = (*MODEL, "--gpu", "H100-80GB", "--tensor", "2", "--kv-memory", "8Gi")
    result = fit(*arguments, "--engine", "sglang", "--agents", "2")
    assert result.exit_code == 1  # nine tenths of them are promised
    assert "1 sequence at once (given), 2 are wanted" in result.stdout.splitlines()[0]
    document = json.loads(fit(*arguments, "--engine", "sglang", "-o", "json").stdout)
    assert document["kvCacheBlocks"] == {"low": 65_537, "high": 65_537}
    assert document["budgetBlocks"] == 65_536 * 9 // 10


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--gpu", "MI300X-192GB"), 3, "MemoryUnknown"),
        (("--gpu", "H100-80GB", "--tensor", "3"), 2, "--tensor: 3: 64 attention heads"),
        (("--gpu", "H100-80GB", "--tensor", "16"), 2, "has at most 8"),
        (("--gpu", "H100-80GB", "--kv-cache", "fp8_e5m2"), 3, "UnplannedArgument"),
        (("--gpu", "H1000"), 2, "--gpu: H1000 is not in the catalog"),
    ],
)
def test_what_is_not_known_of_sglang_is_said(
    arguments: tuple[str, ...], code: int, words: str
) -> None:
    result = fit(*MODEL, *arguments, "--engine", "sglang")
    assert result.exit_code == code
    assert words in result.stdout


@pytest.mark.parametrize("version", ["0.5.4", "0.5.24", "0.6.0", "99.0.0"])
def test_a_version_of_sglang_that_nobody_read_is_not_planned(version: str) -> None:
    result = fit(*MODEL, "--gpu", "H100-80GB", "--engine", f"sglang@{version}")
    assert result.exit_code == 2
    assert f"--engine: {version} is not known: use an SGLang version from 0.5.5" in result.stdout


def test_a_model_with_states_is_unknown_on_sglang() -> None:
    result = fit(
        "Qwen/Qwen3-Next-80B-A3B-Instruct",
        "--gpu",
        "H200-141GB",
        "--context",
        "32k",
        "--engine",
        "sglang",
    )
    assert result.exit_code == 3
    assert "LayoutNotUnderstood" in result.stdout


def test_no_pool_is_printed_for_an_engine_that_pools_do_not_run() -> None:
    result = fit(*FITS, "--engine", "sglang", "--print-pool")
    assert result.exit_code == 2
    assert "--print-pool: pools run vLLM, not SGLang" in result.stderr


def test_devices_are_listed_for_sglang_too() -> None:
    found = json.loads(
        gpus(*MODEL, "--engine", "sglang", "--vendor", "nvidia", "-o", "json").stdout
    )
    assert next(row for row in found if row["gpu"] == "H200-141GB")["fits"] is True


# --- weights of files -----------------------------------------------------------------------------


def checkpoint(folder: Path) -> str:
    """Write a checkpoint of one tensor of 4 GiB, of which only the header is there."""
    header = json.dumps({"w": {"dtype": "BF16", "shape": [2**31], "data_offsets": [0, 2**32]}})
    content = len(header).to_bytes(8, "little") + header.encode()
    (folder / "model.safetensors").write_bytes(content)
    return str(folder)


def test_weights_are_read_from_files(tmp_path: Path) -> None:
    arguments = (*FITS, "--weights-from", checkpoint(tmp_path), "--print-pool")
    pool = yaml.safe_load(fit(*arguments).stdout)
    assert pool["spec"]["model"]["weights"] == {"memory": str(2**32)}


def test_weights_that_cannot_be_read_are_bad_input(tmp_path: Path) -> None:
    unknown = ("no/such", *FITS[1:])
    for arguments, words in (
        (FITS, "has no safetensors files"),
        ((*FITS, "--weights", "61Gi"), "leave one of them out"),
        (unknown, "no/such is not in the catalog: give --config"),
    ):
        result = fit(*arguments, "--weights-from", str(tmp_path))
        assert result.exit_code == 2
        assert words in result.stderr


# --- the pages ------------------------------------------------------------------------------------


def test_the_documented_keys_are_the_real_ones() -> None:
    docs = Path(__file__).parents[2] / "docs"
    table = (docs / "plan.md").read_text().split("| key | meaning |", 1)[1].split("\n\n", 1)[0]
    keys = {
        key for row in table.splitlines()[2:] for key in re.findall("`([^`]+)`", row.split("|")[1])
    }
    assert keys == set(json.loads(fit(*FITS, "-o", "json").stdout))
    row = json.loads(gpus(*MODEL, "--max-gpus", "1", "-o", "json").stdout)[0]
    text = (docs / "fit.md").read_text().split("row has ", 1)[1].split(" as in a plan", 1)[0]
    assert set(re.findall("`([^`]+)`", text)) == set(row)
