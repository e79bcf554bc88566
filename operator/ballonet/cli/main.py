"""The program ``ballonet``, also installed as ``kubectl-ballonet``."""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NoReturn

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
    files: Annotated[
        list[str],
        typer.Option("--filename", "-f", help="YAML or JSON with pools; - reads standard input."),
    ],
    output: Annotated[
        OutputFormat, typer.Option("--output", "-o", help="How the outcome is printed.")
    ] = OutputFormat.TABLE,
    config: Annotated[
        str | None,
        typer.Option(
            "--config", help="config.json for pools that refer to a ConfigMap; - is not taken."
        ),
    ] = None,
) -> None:
    """Work out whether pools fit, without a cluster.

    Exit code: 0 fits, 1 does not fit, 2 bad input, 3 not known; of several the worst of 2, 1, 3, 0.
    """
    from ballonet.cli.outcome import exit_code, plan_document  # noqa: PLC0415 - pydantic is slow
    from ballonet.cli.output import as_json, as_text, as_yaml, print_table  # noqa: PLC0415
    from ballonet.cli.pools import ConfigMaps, PoolDocument, select  # noqa: PLC0415
    from ballonet.cli.yaml_input import InvalidInput, decode, read_documents  # noqa: PLC0415

    pools: list[PoolDocument] = []
    config_maps = []
    for name in files:
        try:
            found, beside = select(name, read_documents(decode(_read(name))))
        except InvalidInput as error:
            _bad_input(f"{name}: {error}")
        pools.extend(found)
        config_maps.extend(beside)
    if not pools:
        _bad_input(
            f"{', '.join(files)}: holds no InferencePool of group ballonet.io; other kinds and the "
            "InferencePool of other groups are left out"
        )
    config_text = None
    if config is not None:
        try:
            config_text = decode(_read(config))
        except InvalidInput as error:
            _bad_input(f"{config}: {error}")
    maps = ConfigMaps(tuple(config_maps))
    outcomes = [plan_document(pool, maps, config_text) for pool in pools]
    if output is OutputFormat.JSON:
        print(as_json(outcomes))
    elif output is OutputFormat.YAML:
        print(as_yaml(outcomes))
    elif sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
        print_table(outcomes)
    else:
        print(as_text(outcomes))
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

    print(f"ballonet {__version__} (vLLM {vllm.OLDEST} to {vllm.NEWEST})")


def _read(name: str) -> bytes:
    """Return at most one byte more than an input may have."""
    from ballonet.cli.yaml_input import MAX_INPUT_BYTES  # noqa: PLC0415

    try:
        if name == "-":
            return sys.stdin.buffer.read(MAX_INPUT_BYTES + 1)
        with Path(name).open("rb") as file:
            return file.read(MAX_INPUT_BYTES + 1)
    except OSError as error:
        _bad_input(f"{name}: {error.strerror or error}")


def _bad_input(message: str) -> NoReturn:
    from ballonet.cli.output import printable  # noqa: PLC0415

    print(f"ballonet: {printable(message)}", file=sys.stderr)
    raise typer.Exit(2)


def main() -> None:
    """Run the program."""
    app()
