"""Settings: where they come from, which wins, and what is said of those that cannot be used."""

from __future__ import annotations

from pathlib import Path

import pytest

from ballonet.app.catalog import read_catalog
from ballonet.app.settings import (
    LogFormat,
    LogLevel,
    Settings,
    SettingsError,
    argument_parser,
    flag,
    load,
    variable,
)
from ballonet.catalog import Catalog


def test_flags_win_over_variables_and_these_over_defaults() -> None:
    environ = {"BALLONET_WORKERS": "7", "BALLONET_LOG_LEVEL": "debug", "HOME": "/x"}
    settings = load(environ, ["--workers", "2", "--log-format=console"])
    assert settings.workers == 2
    assert settings.log_level is LogLevel.DEBUG
    assert settings.log_format is LogFormat.CONSOLE
    assert settings.resync_seconds == 600


def test_the_help_says_defaults_and_the_words_that_a_setting_takes() -> None:
    text = " ".join(argument_parser().format_help().split())
    assert "One of debug, info, warning, error. Default: info." in text
    assert "Pools that are worked on at the same time. Default: 4." in text
    assert "empty means the whole cluster. --namespace" in text


def test_namespaces_are_a_list_with_commas_and_empty_means_all() -> None:
    assert load({"BALLONET_NAMESPACES": " b, a,,b "}).namespaces == ("a", "b")
    assert load({"BALLONET_NAMESPACES": ""}).namespaces == ()
    assert load({}).namespaces == ()


@pytest.mark.parametrize(
    ("environ", "arguments", "words"),
    [
        ({"BALLONET_WORKERS": "many"}, [], "BALLONET_WORKERS='many'"),
        ({"BALLONET_WORKERS": "0"}, [], "greater than or equal to 1"),
        ({}, ["--workers", "65"], "--workers='65'"),
        ({"BALLONET_LOG_LEVEL": "loud"}, [], "'debug', 'info', 'warning' or 'error'"),
        ({"BALLONET_NAMESPACES": "a,B_c"}, [], "BALLONET_NAMESPACES='a,B_c': use a-z, 0-9 and -"),
        ({"BALLONET_LISTEN": "8080"}, [], "BALLONET_LISTEN='8080': use HOST:PORT, or :PORT"),
        ({}, ["--listen", ":65536"], "--listen=':65536': use HOST:PORT"),
        ({}, ["--prometheus-connections", "a.yaml"], "='a.yaml': use an absolute path"),
        ({}, ["--worker", "2"], "unknown argument '--worker'"),
        ({}, ["serve"], "unknown argument 'serve'"),
    ],
)
def test_a_setting_that_cannot_be_used_is_named_with_its_value(
    environ: dict[str, str], arguments: list[str], words: str
) -> None:
    with pytest.raises(SettingsError) as raised:
        load(environ, arguments)
    assert words in str(raised.value)


@pytest.mark.parametrize(
    ("listen", "address"),
    [
        (":8080", (None, 8080)),
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        ("[::1]:9090", ("::1", 9090)),
        ("localhost:80", ("localhost", 80)),
        (":65535", (None, 65_535)),
    ],
)
def test_an_address_without_a_host_means_all_addresses(
    listen: str, address: tuple[str | None, int]
) -> None:
    assert Settings(listen=listen).address == address


def test_by_default_nothing_listens_beyond_this_machine() -> None:
    assert Settings().address[0] == "127.0.0.1"


def test_two_processes_never_have_the_same_identity_by_default() -> None:
    assert Settings().identity != Settings().identity


def test_the_installation_is_the_lease() -> None:
    assert Settings(namespace="system", lease_name="blue").installation == "system/blue"


def test_each_setting_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "operator.md").read_text()
    for name in Settings.model_fields:
        assert f"`{variable(name)}`" in text
        assert f"`{flag(name)}`" in text


ENTRY = """\
models:
  - name: {name}
    config: {{model_type: llama, num_hidden_layers: 2, num_attention_heads: 4, hidden_size: 64,
             vocab_size: 128}}
    sources: {{config: "config file: ours"}}
"""


def test_own_entries_are_read_from_files_and_folders_each_over_those_before(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "mounted"
    folder.mkdir()
    (folder / "a.yaml").write_text(ENTRY.format(name="acme/a"))
    (folder / "notes.txt").write_text("no entries")
    single = tmp_path / "more.yml"
    single.write_text(ENTRY.format(name="Qwen/Qwen3-8B"))
    settings = load({"BALLONET_CATALOG": f"{folder}, {single}"})
    catalog = read_catalog(settings.catalog)
    assert catalog.model("acme/a") is not None
    replaced = catalog.model("Qwen/Qwen3-8B")
    assert replaced is not None
    assert replaced.geometry.layers == 2


def test_a_folder_without_entries_leaves_the_catalog_as_it_is(tmp_path: Path) -> None:
    assert read_catalog([str(tmp_path)]) is Catalog.builtin()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "BALLONET_CATALOG: {file}: No such file or directory"),
        (b"\xff", "BALLONET_CATALOG: {file}: is not UTF-8 text"),
        (b"models: [{name: x}]", "BALLONET_CATALOG: {file}: models[0] ('x'): config: is missing"),
    ],
)
def test_a_file_of_entries_that_cannot_be_used_is_named(
    text: bytes | None, words: str, tmp_path: Path
) -> None:
    file = tmp_path / "own.yaml"
    if text is not None:
        file.write_bytes(text)
    with pytest.raises(SettingsError) as raised:
        read_catalog([str(file)])
    assert words.format(file=file) in str(raised.value)
