"""The program ``ballonet``, also installed as ``kubectl-ballonet``.

Commands import what they need when they run: ``--help`` answers without the planner, and a plan
without kopf or a Kubernetes client.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from ballonet import __version__
from ballonet.cli import options
from ballonet.cli.catalog import app as catalog_app
from ballonet.cli.catalog import catalog_of
from ballonet.cli.formats import OutputFormat
from ballonet.cli.receipts import app as receipts_app
from ballonet.cli.receipts import receipts_of
from ballonet.cli.streams import bad_input, canvas, files_of, read_text, write

if TYPE_CHECKING:
    from ballonet.catalog import Catalog
    from ballonet.cli.pools import ConfigMaps, PoolDocument
    from ballonet.cli.question import Question

Value = TypeVar("Value")

app = typer.Typer(
    name="ballonet",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    # Plain help is shorter, reads well in 80 columns, and takes [brackets] as they stand.
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(catalog_app, name="catalog")
app.add_typer(receipts_app, name="receipts")

_ONLY_POOLS: Final = "give only the pools and the ConfigMaps that they name"
_ONLY_A_CONFIG: Final = "give the config.json of one model, which has a few thousand characters"


def _print_version(asked: bool) -> None:
    if asked:
        version()
        raise typer.Exit


@app.callback()
def _program(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print the version, and end."
        ),
    ] = False,
) -> None:
    """Plan, enforce and verify the KV cache budget of LLM inference pools."""


@app.command()
def plan(
    *,
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
    output: options.Output = OutputFormat.TABLE,
    config: Annotated[
        str | None,
        typer.Option(
            "--config", help="A file with config.json, for pools that refer to a ConfigMap."
        ),
    ] = None,
    catalog: options.CatalogFiles = None,
    receipts: Annotated[
        list[str] | None,
        typer.Option(
            "--receipts",
            metavar="FILE",
            help="What engines measured, as ballonet receipts export prints it.",
        ),
    ] = None,
    explain: options.Explain = False,
    compare: Annotated[
        bool, typer.Option("--compare", help="Show two pools side by side, and what differs.")
    ] = False,
) -> None:
    """Work out whether pools fit, without a cluster.

    Exit code: 0 fits, 1 does not fit, 2 bad input, 3 not known; of several the worst of 2, 1, 3, 0.
    """
    from ballonet.cli.compare import compared  # noqa: PLC0415
    from ballonet.cli.outcome import exit_code, plan_document  # noqa: PLC0415
    from ballonet.cli.output import View, shown  # noqa: PLC0415

    names = [*(files or ()), *(more_files or ())]
    if not names:
        bad_input("no input: name a file with -f FILE; -f - reads standard input")
    pools, config_maps = _pools(names)
    config_text = None
    if config is not None:
        config_text = _config_text(config)
        if not any(pool.refers_to_config for pool in pools):
            bad_input(
                f"--config {config}: no pool has spec.model.config.configMapRef, so nothing would "
                "read it: add that to the pool, or write the text into spec.model.config.inline"
            )
    if compare and len(pools) != 2:
        bad_input(f"--compare: two pools are compared, and the input holds {len(pools)}")
    known = catalog_of(catalog)
    measured = receipts_of(receipts or ())
    outcomes = [
        plan_document(pool, config_maps, config_text, catalog=known, receipts=measured)
        for pool in pools
    ]
    if compare:
        write(compared(outcomes[0], outcomes[1], output, canvas()))
    else:
        write(shown(outcomes, output, View(canvas(), explain)))
    raise typer.Exit(exit_code(outcomes))


@app.command()
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


@app.command()
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


@app.command()
def explain(
    *,
    pool: Annotated[str, typer.Argument(metavar="POOL", help="Name of the InferencePool.")],
    namespace: Annotated[
        str | None,
        typer.Option("--namespace", "-n", help="Its namespace; that of the context if left out."),
    ] = None,
    kube_context: options.KubeContext = None,
    since: Annotated[str, typer.Option("--since", help="How far back, at most a day.")] = "1h",
    prometheus: Annotated[
        str | None,
        typer.Option("--prometheus", metavar="URL", help="A Prometheus: shows what was before."),
    ] = None,
    connections: Annotated[
        str | None,
        typer.Option(
            "--connections",
            metavar="FILE",
            help="The operator's Prometheus connections, of which the pool names one.",
        ),
    ] = None,
    catalog: options.CatalogFiles = None,
    output: options.Output = OutputFormat.TABLE,
) -> None:
    """Show what happened to a pool over time; nothing is written.

    Exit code: 0 nothing is wrong, 1 something is, 2 bad input, 3 not known.
    """
    from ballonet.cli.explain_pool import shown  # noqa: PLC0415
    from ballonet.cli.pool_story import NoStory, ask, duration  # noqa: PLC0415

    span = _read("--since", duration, since)
    if prometheus is not None and connections is not None:
        bad_input("--prometheus and --connections both say which Prometheus: give one of them")
    try:
        story = ask(
            pool,
            namespace=namespace,
            kube_context=kube_context,
            span=span,
            url=prometheus,
            connections=connections,
            catalog=catalog_of(catalog),
        )
    except NoStory as error:
        bad_input(str(error))
    write(shown(story, output, canvas()))
    raise typer.Exit(story.exit_code)


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
    """Print the version, and the engine versions that are planned for."""
    from ballonet.engines import vllm  # noqa: PLC0415 - reads the flag table

    write(f"ballonet {__version__} (vLLM {vllm.OLDEST} to {vllm.NEWEST})")


def _pools(names: list[str]) -> tuple[list[PoolDocument], ConfigMaps]:
    """Return the pools of the files, at least one, and the ConfigMaps beside them."""
    from ballonet.api.yaml_input import InvalidInput, read_documents  # noqa: PLC0415
    from ballonet.cli.pools import ConfigMaps, no_pool, select  # noqa: PLC0415

    pools: list[PoolDocument] = []
    config_maps: list[Any] = []
    others: list[str] = []
    for name in chain.from_iterable(files_of(name) for name in names):
        text = read_text(name, advice=_ONLY_POOLS)
        try:
            found = select(name, read_documents(text))
        except InvalidInput as error:
            bad_input(f"{name}: {error}")
        pools.extend(found.pools)
        config_maps.extend(found.config_maps)
        others.extend(found.others)
    if not pools:
        bad_input(f"{', '.join(names)}: {no_pool(others)}")
    return pools, ConfigMaps(tuple(config_maps))


def _config_text(name: str) -> str:
    if name == "-":
        bad_input("--config -: standard input is not taken: name a file")
    return read_text(name, advice=_ONLY_A_CONFIG)


def _question(
    *,
    context: str,
    agents: str | None,
    worker_context: str | None,
    engine: str,
    config: str | None,
    weights_from: str | None,
    catalog: Catalog,
    **given: Any,
) -> Question:
    """Return what is asked; what the texts of options say is read here."""
    from ballonet.cli import question  # noqa: PLC0415 - pydantic is slow

    counts = () if agents is None else _read("--agents", question.agents, agents)
    if given["runs"] > 1 and not counts:
        bad_input("--runs: there are no agents to run: give --agents, as 1+5")
    if worker_context is not None and len(counts) < 2:
        bad_input("--worker-context: there are no workers: give --agents planner+workers, as 1+5")
    asked = question.Question(
        context=_read("--context", question.tokens, context),
        agents=counts,
        worker_context=None
        if worker_context is None
        else _read("--worker-context", question.tokens, worker_context),
        engine=_read("--engine", question.engine, engine),
        config_text=None if config is None else _config_text(config),
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


def _read(option: str, reader: Callable[[str], Value], text: str) -> Value:
    try:
        return reader(text)
    except ValueError as error:
        bad_input(f"{option}: {error}")


def main() -> None:
    """Run the program; a fault of its own is exit code 2, because 1 says that a pool is unfit."""
    try:
        app()
    except Exception:
        traceback.print_exc()
        sys.exit(2)
