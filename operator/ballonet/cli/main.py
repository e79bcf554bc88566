"""The program ``ballonet``, also installed as ``kubectl-ballonet``."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Mapping
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

import typer

from ballonet import __version__

app = typer.Typer(
    name="ballonet",
    help="Plan, enforce and verify the KV cache budget of LLM inference pools.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


class OutputFormat(StrEnum):
    """How the outcome is printed."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


@app.command()
def plan(
    more_files: Annotated[
        list[str] | None, typer.Argument(metavar="FILE...", help="Further files or folders.")
    ] = None,
    files: Annotated[
        list[str] | None,
        typer.Option(
            "--filename",
            "-f",
            help="YAML or JSON with pools, or a folder of such files; - reads standard input.",
        ),
    ] = None,
    output: Annotated[
        OutputFormat, typer.Option("--output", "-o", help="How the outcome is printed.")
    ] = OutputFormat.TABLE,
    config: Annotated[
        str | None,
        typer.Option(
            "--config", help="A file with config.json, for pools that refer to a ConfigMap."
        ),
    ] = None,
) -> None:
    """Work out whether pools fit, without a cluster.

    Exit code: 0 fits, 1 does not fit, 2 bad input, 3 not known; of several the worst of 2, 1, 3, 0.
    """
    from ballonet.cli.outcome import exit_code, plan_document  # noqa: PLC0415 - pydantic is slow
    from ballonet.cli.output import as_json, as_table, as_text, as_yaml  # noqa: PLC0415
    from ballonet.cli.pools import ConfigMaps, PoolDocument, no_pool, select  # noqa: PLC0415
    from ballonet.cli.yaml_input import InvalidInput, decode, read_documents  # noqa: PLC0415

    names = [*(files or ()), *(more_files or ())]
    if not names:
        _bad_input("no input: name a file with -f FILE; -f - reads standard input")
    pools: list[PoolDocument] = []
    config_maps: list[Mapping[str, Any]] = []
    others: list[str] = []
    for name in chain.from_iterable(_files(name) for name in names):
        try:
            found = select(name, read_documents(decode(_read(name), advice=_ONLY_POOLS)))
        except InvalidInput as error:
            _bad_input(f"{name}: {error}")
        pools.extend(found.pools)
        config_maps.extend(found.config_maps)
        others.extend(found.others)
    if not pools:
        _bad_input(f"{', '.join(names)}: {no_pool(others)}")
    config_text = None
    if config == "-":
        _bad_input("--config -: standard input is not taken: name a file")
    if config is not None:
        try:
            config_text = decode(_read(config), advice=_ONLY_A_CONFIG)
        except InvalidInput as error:
            _bad_input(f"{config}: {error}")
        if not any(pool.refers_to_config for pool in pools):
            _bad_input(
                f"--config {config}: no pool has spec.model.config.configMapRef, so nothing would "
                "read it: add that to the pool, or write the text into spec.model.config.inline"
            )
    maps = ConfigMaps(tuple(config_maps))
    outcomes = [plan_document(pool, maps, config_text) for pool in pools]
    if output is OutputFormat.JSON:
        text = as_json(outcomes)
    elif output is OutputFormat.YAML:
        text = as_yaml(outcomes)
    elif sys.stdout is not None and sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
        text = as_table(outcomes)
    else:
        text = as_text(outcomes)
    _write(text)
    raise typer.Exit(exit_code(outcomes))


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    add_help_option=False,
)
def operator(context: typer.Context) -> None:
    """Run the operator; `ballonet operator --help` lists its settings."""
    from ballonet.app.operator import main as run_operator  # noqa: PLC0415 - needs kopf

    raise typer.Exit(run_operator(context.args))


@app.command()
def version() -> None:
    """Print the version, and the engine versions that plans are made for."""
    from ballonet.engines import vllm  # noqa: PLC0415 - reads the flag table

    _write(f"ballonet {__version__} (vLLM {vllm.OLDEST} to {vllm.NEWEST})")


_ONLY_POOLS: Final = "give only the pools and the ConfigMaps that they name"
_ONLY_A_CONFIG: Final = "give the config.json of one model, which has a few thousand characters"


def _files(name: str) -> list[str]:
    """Return the files that a name stands for: itself, or those in the folder of that name."""
    if name == "-" or not Path(name).is_dir():
        return [name]
    try:
        found = sorted(str(path) for path in Path(name).iterdir() if path.suffix in _SUFFIXES)
    except OSError as error:
        _bad_input(f"{name}: {error.strerror or error}")
    if not found:
        _bad_input(f"{name}: the folder holds no file that ends in {', '.join(_SUFFIXES)}")
    return found


# As kubectl takes them from a folder.
_SUFFIXES: Final = (".json", ".yaml", ".yml")


def _read(name: str) -> bytes:
    """Return at most one byte more than an input may have."""
    from ballonet.cli.yaml_input import MAX_INPUT_BYTES  # noqa: PLC0415

    try:
        if name == "-":
            if sys.stdin is None:
                _bad_input("-: standard input is closed")
            return sys.stdin.buffer.read(MAX_INPUT_BYTES + 1)
        with Path(name).open("rb") as file:
            return file.read(MAX_INPUT_BYTES + 1)
    except OSError as error:
        _bad_input(f"{name}: {error.strerror or error}")


def _write(text: str) -> None:
    """Write text and a line end to standard output, all of it or with a message."""
    if sys.stdout is None:
        _bad_input("standard output is closed")
    try:
        # What the encoding does not have is shown by its number.
        encoding = sys.stdout.encoding or "utf-8"
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()
        raise typer.Exit(_BROKEN_PIPE) from None
    except OSError as error:
        _drop_output()
        _bad_input(f"standard output: {error.strerror or error}")


# As a shell shows a program that SIGPIPE ended.
_BROKEN_PIPE: Final = 141


def _drop_output() -> None:
    """Let nothing be written when the interpreter ends: it would fail once more."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _bad_input(message: str) -> NoReturn:
    from ballonet.cli.output import printable  # noqa: PLC0415

    if sys.stderr is not None:
        print(f"ballonet: {printable(message)}", file=sys.stderr)
    raise typer.Exit(2)


def main() -> None:
    """Run the program; a fault of its own is exit code 2, because 1 says that a pool is unfit."""
    try:
        app()
    except Exception:
        traceback.print_exc()
        sys.exit(2)
