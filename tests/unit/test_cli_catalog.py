from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ballonet.cli.catalog import app

MODEL = """\
models:
  - name: acme/chat-8b
    aliases: [acme/chat]
    config:
      model_type: llama
      num_hidden_layers: 32
      num_attention_heads: 32
      num_key_value_heads: 8
      hidden_size: 4096
      intermediate_size: 14336
      vocab_size: 128256
    sources:
      config: "config file: acme/chat-8b at revision 1"
"""


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == code, result.output
    return result.output


def documents(*arguments: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(run(*arguments, "-o", "json"))
    return found


@pytest.fixture
def own(tmp_path: Path) -> str:
    file = tmp_path / "own.yaml"
    file.write_text(MODEL)
    return str(file)


def test_a_search_takes_all_words_from_any_name() -> None:
    found = documents("gpus", "--search", "hopper pcie")
    assert {one["name"] for one in found} >= {"H100-PCIE-80GB", "H100-NVL-94GB"}
    assert all(one["architecture"] == "9.0" for one in found)
    assert [one["name"] for one in documents("gpus", "--search", "nvidia-h200-nvl")] == [
        "H200-NVL-141GB"
    ]


def test_a_figure_is_shown_with_where_it_was_read() -> None:
    (found,) = documents("gpus", "--search", "RTX-A6000")
    assert found["memoryMib"] == [45491, 48574]
    assert found["sources"]["memoryMib"].startswith("log: ")
    assert found["otherTotals"][0]["mib"] == 45493
    assert "44.42 to 47.44" in run("gpus", "--search", "RTX-A6000")


def test_what_nobody_has_seen_is_unknown() -> None:
    (found,) = documents("gpus", "--search", "B100-192GB")
    assert "memoryMib" not in found
    assert found["memoryUnknown"]


def test_models_show_weights_longest_sequence_and_declared_cache() -> None:
    found = {one["name"]: one for one in documents("models", "--search", "llama 70b")}
    fp8 = found["nvidia/Llama-3.1-70B-Instruct-FP8"]
    assert fp8["computed"]["declaredKvCache"] == "fp8"
    assert fp8["computed"]["maxPositionTokens"] == 131072
    assert fp8["computed"]["parameters"] == 70_553_706_496
    assert fp8["sources"]["weightsBytes"].startswith("log: ")
    assert fp8["computed"]["vllmVersions"] is None
    assert found["meta-llama/Llama-3.3-70B-Instruct"]["config"]["num_hidden_layers"] == 80


def test_models_that_not_every_version_has_are_shown_with_those_that_do() -> None:
    (found,) = documents("models", "--search", "zai-org/GLM-4.7-Flash")
    assert found["computed"]["vllmVersions"] == "0.15.0 to 0.33.0"
    assert "0.15.0 to 0.33.0" in run("models", "--search", "zai-org/GLM-4.7-Flash")


def test_engines_show_what_each_version_can_do() -> None:
    found = {one["version"]: one for one in documents("engines")}
    assert "bounded queue" in found["0.29.0"]["abilities"]
    assert "bounded queue" not in found["0.28.0"]["abilities"]
    assert found["0.19.1"]["defaultMemoryPercent"] == 90
    assert found["0.32.0"]["defaultMemoryPercent"] == 92
    assert len(found["0.32.0"]["calibration"]) >= 1
    assert list(found) == sorted(found, key=lambda text: [int(n) for n in text.split(".")])


def test_a_search_without_result_says_so() -> None:
    assert "nothing has these words" in run("gpus", "--search", "abacus", code=2)


@pytest.mark.parametrize(("section", "command"), [("accelerators", "gpus"), ("models", "models")])
def test_what_is_shown_can_be_written_into_a_file(
    section: str, command: str, tmp_path: Path
) -> None:
    shown = documents(command)
    for one in shown:
        del one["computed"]
    file = tmp_path / "shown.json"
    file.write_text(json.dumps({section: shown}))
    assert run("validate", str(file)) == f"{file}: nothing new\n"
    assert documents(command, "--catalog", str(file)) == documents(command)


@pytest.mark.parametrize("command", ["gpus", "models", "engines"])
def test_a_list_can_be_put_on_a_page(command: str) -> None:
    lines = run(command, "-o", "markdown").splitlines()
    assert lines[1].replace("-", "").replace(":", "").replace("|", "").strip() == ""
    assert len({line.count("|") for line in lines}) == 1


def test_an_entry_that_was_shown_can_be_written_into_a_file(tmp_path: Path) -> None:
    (shown,) = documents("gpus", "--search", "RTX-A6000")
    del shown["computed"]
    file = tmp_path / "own.json"
    file.write_text(json.dumps({"accelerators": [shown | {"driverMib": 49141}]}))
    assert run("validate", str(file)) == f"{file}: RTX-A6000-48GB replaced\n"


def test_own_entries_are_listed_with_the_others(own: str) -> None:
    (found,) = documents("models", "--catalog", own, "--search", "acme/chat")
    assert found["sources"]["config"] == "config file: acme/chat-8b at revision 1"


def test_a_file_that_can_be_used_is_said_to_be(own: str) -> None:
    assert run("validate", own) == f"{own}: acme/chat-8b added\n"


def test_the_entries_of_the_page_can_be_used(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "catalog-entries.md").read_text()
    blocks = re.findall(r"(?s)```yaml\n(.*?)```", page)
    assert len(blocks) == 2
    said = []
    for number, block in enumerate(blocks):
        file = tmp_path / f"{number}.yaml"
        file.write_text(block)
        said.append(run("validate", str(file)).partition(": ")[2].strip())
    assert said[0] in page
    assert said[1] == "13.0 added"


def test_a_file_without_entries_is_said_to_change_nothing(own: str) -> None:
    Path(own).write_text("models: []\n")
    assert run("validate", own) == f"{own}: nothing new\n"


def test_a_file_of_replacements_says_what_it_replaces(own: str) -> None:
    Path(own).write_text(MODEL.replace("acme/chat-8b\n", "Qwen/Qwen3-8B\n"))
    assert run("validate", own) == f"{own}: Qwen/Qwen3-8B replaced\n"


def test_every_problem_of_every_file_is_printed_on_its_line(own: str, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text("models:\n  - name: x\n  - nmae: y\n")
    lines = run("validate", own, str(other), code=2).splitlines()
    assert lines[0] == f"{own}: acme/chat-8b added"
    assert lines[1] == f"{other}: models[0] ('x'): config: is missing: give it"
    assert f"{other}: models[1]: nmae: is not known: did you mean name?" in lines
