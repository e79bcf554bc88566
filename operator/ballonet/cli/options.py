"""Options that several commands share, and what their texts say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final, TypeVar

import typer

from ballonet.cli.formats import OutputFormat
from ballonet.cli.streams import bad_input, read_text

Value = TypeVar("Value")

_ONLY_A_CONFIG: Final = "give the config.json of one model, which has a few thousand characters"

Output = Annotated[OutputFormat, typer.Option("--output", "-o", help="How the outcome is printed.")]
Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="The model's name on its hub, or an alias of it.")
]
Context = Annotated[
    str,
    typer.Option(
        "--context", metavar="TOKENS", help="Most tokens of a sequence, as 32768 or 32k (x 1,024)."
    ),
]
Agents = Annotated[
    str | None,
    typer.Option(
        "--agents",
        metavar="P+W",
        help="Sequences of a run: planner+workers, as 1+5, or 6 that are alike.",
    ),
]
WorkerContext = Annotated[
    str | None,
    typer.Option(
        "--worker-context", metavar="TOKENS", help="Most tokens of a worker, where lower."
    ),
]
Runs = Annotated[int, typer.Option("--runs", metavar="N", min=1, help="Runs at the same time.")]
Engine = Annotated[
    str,
    typer.Option(
        "--engine",
        metavar="NAME@VERSION",
        help="Engine and version, as vllm@0.32; the newest if left out.",
    ),
]
KvCache = Annotated[
    str | None,
    typer.Option(
        "--kv-cache",
        metavar="FORMAT",
        help="Number format of the KV cache: auto, bf16, fp8, or another word of the engine.",
    ),
]
MemoryPercent = Annotated[
    int | None,
    typer.Option(
        "--memory-percent", metavar="N", help="Share of the device that the engine may use."
    ),
]
Weights = Annotated[
    str | None,
    typer.Option("--weights", metavar="SIZE", help="Size of all weights as loaded, as 61Gi."),
]
WeightsFrom = Annotated[
    str | None,
    typer.Option(
        "--weights-from",
        metavar="FOLDER|NAME",
        help="Read their size from safetensors files, or from a hub (needs ballonet[hub]).",
    ),
]
Explain = Annotated[
    bool, typer.Option("--explain", help="Show each step: formula, numbers, source.")
]
CatalogFiles = Annotated[
    list[str] | None,
    typer.Option(
        "--catalog", metavar="FILE", help="Own devices and models, over those of the catalog."
    ),
]
Namespace = Annotated[
    str | None,
    typer.Option(
        "--namespace", "-n", metavar="NAME", help="Namespace; that of the context if left out."
    ),
]
KubeContext = Annotated[
    str | None,
    typer.Option(
        "--context", metavar="NAME", help="Context of the kubeconfig; the current one if left out."
    ),
]
Config = Annotated[
    str | None,
    typer.Option("--config", metavar="FILE", help="The model's config.json, before the catalog."),
]


def read(option: str, reader: Callable[[str], Value], text: str) -> Value:
    """Return what the text of an option says; one that says nothing ends the program.

    Args:
        option: as it is written.
        reader: raises ValueError, in words, for what it cannot read.
        text: what stands behind the option.
    """
    try:
        return reader(text)
    except ValueError as error:
        bad_input(f"{option}: {error}")


def config_text(name: str) -> str:
    """Return the text of the file that ``--config`` names."""
    if name == "-":
        bad_input("--config -: standard input is not taken: name a file")
    return read_text(name, advice=_ONLY_A_CONFIG)
