"""``ballonet fit`` and ``ballonet gpus``: a question about a model, without a pool.

As in ``cli/main.py`` commands import what they need when they run.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ballonet.cli import options
from ballonet.cli.catalog import catalog_of
from ballonet.cli.formats import OutputFormat
from ballonet.cli.streams import bad_input, canvas, write

if TYPE_CHECKING:
    from ballonet.catalog import Catalog
    from ballonet.cli.question import Question


def fit(
    *,
    model: options.Model,
    gpu: Annotated[
        str, typer.Option("--gpu", metavar="TYPE", help="Device type of the catalog, or CPU.")
    ],
    context: options.Context,
    agents: options.Agents = None,
    worker_context: options.WorkerContext = None,
    runs: options.Runs = 1,
    tensor: Annotated[
        int, typer.Option("--tensor", metavar="N", min=1, help="GPUs of an engine.")
    ] = 1,
    engine: options.Engine = "vllm",
    kv_cache: options.KvCache = None,
    memory_percent: options.MemoryPercent = None,
    kv_memory: Annotated[
        str | None,
        typer.Option(
            "--kv-memory", metavar="SIZE", help="KV memory of a rank, as 8Gi: not predicted then."
        ),
    ] = None,
    weights: options.Weights = None,
    weights_from: options.WeightsFrom = None,
    config: options.Config = None,
    catalog: options.CatalogFiles = None,
    explain: options.Explain = False,
    print_pool: Annotated[
        bool, typer.Option("--print-pool", help="Print the pool that asks this, and end.")
    ] = False,
    output: options.Output = OutputFormat.TABLE,
) -> None:
    """Answer whether a model with this context fits a GPU.

    Exit code: 0 fits, 1 does not fit, 2 bad input, 3 not known.
    """
    from ballonet.cli.fit import asked, pool_text  # noqa: PLC0415

    known = catalog_of(catalog)
    question = _question(
        model=model,
        gpu=gpu,
        context=context,
        agents=agents,
        worker_context=worker_context,
        runs=runs,
        tensor=tensor,
        engine=engine,
        kv_cache=kv_cache,
        memory_percent=memory_percent,
        kv_memory=kv_memory,
        weights=weights,
        weights_from=weights_from,
        catalog=known,
        config=config,
    )
    if print_pool:
        if question.engine.name.value != "vLLM":
            bad_input(f"--print-pool: pools run vLLM, not {question.engine}")
        write(pool_text(question))
        return
    text, code = asked(question, known, output, canvas(), explain=explain)
    write(text)
    raise typer.Exit(code)


def gpus(
    *,
    model: options.Model,
    context: options.Context,
    agents: options.Agents = None,
    worker_context: options.WorkerContext = None,
    runs: options.Runs = 1,
    vendor: Annotated[
        str | None, typer.Option("--vendor", metavar="NAME", help="nvidia, amd or intel alone.")
    ] = None,
    max_gpus: Annotated[
        int, typer.Option("--max-gpus", metavar="N", min=1, help="Most GPUs of an engine.")
    ] = 8,
    engine: options.Engine = "vllm",
    kv_cache: options.KvCache = None,
    memory_percent: options.MemoryPercent = None,
    weights: options.Weights = None,
    weights_from: options.WeightsFrom = None,
    config: options.Config = None,
    catalog: options.CatalogFiles = None,
    output: options.Output = OutputFormat.TABLE,
) -> None:
    """List the GPUs that a model with this context fits, fewest first.

    Exit code: 0 one fits, 1 none fits, 2 bad input, 3 none surely fits.
    """
    from ballonet.cli.gpus import what_fits  # noqa: PLC0415

    known = catalog_of(catalog)
    question = _question(
        model=model,
        gpu="",
        context=context,
        agents=agents,
        worker_context=worker_context,
        runs=runs,
        engine=engine,
        kv_cache=kv_cache,
        memory_percent=memory_percent,
        weights=weights,
        weights_from=weights_from,
        catalog=known,
        config=config,
    )
    found = what_fits(question, known, vendor=vendor, most=max_gpus)
    if found.problem is not None:
        bad_input(found.problem)
    write(found.text(output, canvas()))
    raise typer.Exit(found.code)


def _question(
    *,
    context: str,
    agents: str | None,
    worker_context: str | None,
    engine: str,
    kv_cache: str | None,
    config: str | None,
    weights_from: str | None,
    catalog: Catalog,
    **given: Any,
) -> Question:
    """Return what is asked; what the texts of options say is read here."""
    from ballonet.cli import question  # noqa: PLC0415 - pydantic is slow

    counts = () if agents is None else options.read("--agents", question.agents, agents)
    if given["runs"] > 1 and not counts:
        bad_input("--runs: there are no agents to run: give --agents, as 1+5")
    if worker_context is not None and len(counts) < 2:
        bad_input("--worker-context: there are no workers: give --agents planner+workers, as 1+5")
    asked = question.Question(
        context=options.read("--context", question.tokens, context),
        agents=counts,
        worker_context=None
        if worker_context is None
        else options.read("--worker-context", question.tokens, worker_context),
        engine=options.read("--engine", question.engine, engine),
        kv_cache=None
        if kv_cache is None
        else options.read("--kv-cache", question.kv_cache, kv_cache),
        config_text=None if config is None else options.config_text(config),
        **given,
    )
    if weights_from is None:
        return asked
    if asked.weights is not None:
        bad_input("--weights-from: --weights says the size already: leave one of them out")
    return replace(asked, weights=str(_checkpoint_bytes(weights_from, asked, catalog)))


def _checkpoint_bytes(source: str, question: Question, catalog: Catalog) -> int:
    """Return the size of the weights of a folder or of a repository of a hub."""
    from ballonet.cli.hub import NoCheckpoint, checkpoint_weights  # noqa: PLC0415
    from ballonet.kv.config import InvalidModelConfig, LayoutNotUnderstood  # noqa: PLC0415
    from ballonet.kv.geometry import parse_config  # noqa: PLC0415

    model = catalog.model(question.model)
    try:
        if question.config_text is not None:
            geometry = parse_config(question.config_text)
        elif model is not None:
            geometry = model.geometry
        else:
            bad_input(f"--weights-from: {question.model} is not in the catalog: give --config")
        return checkpoint_weights(source, geometry.layers)
    except (NoCheckpoint, InvalidModelConfig, LayoutNotUnderstood) as error:
        bad_input(f"--weights-from: {error}")
