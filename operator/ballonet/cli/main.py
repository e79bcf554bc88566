"""The program ``ballonet``, also installed as ``kubectl-ballonet``.

Commands import what they need when they run: ``--help`` answers without the planner, and a plan
without kopf or a Kubernetes client.
"""

from __future__ import annotations

import sys
import traceback
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ballonet import __version__
from ballonet.cli import options
from ballonet.cli.ask import fit, gpus
from ballonet.cli.catalog import app as catalog_app
from ballonet.cli.catalog import catalog_of
from ballonet.cli.formats import OutputFormat
from ballonet.cli.receipts import app as receipts_app
from ballonet.cli.receipts import receipts_of
from ballonet.cli.streams import bad_input, canvas, files_of, read_text, write

if TYPE_CHECKING:
    from ballonet.cli.pools import ConfigMaps, PoolDocument

# \b: lines as they stand.
_EXAMPLES: Final = """\b
Examples:
  ballonet fit Qwen/Qwen3-32B --gpu H100-80GB --context 32k --agents 1+5
  ballonet gpus Qwen/Qwen3-32B --context 32k --agents 1+5
  ballonet plan -f pool.yaml --explain
  ballonet explain POOL -n NAMESPACE
"""

app = typer.Typer(
    name="ballonet",
    epilog=_EXAMPLES,
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


# In the order of a first visit: questions without a file come first.
app.command()(fit)
app.command()(gpus)


@app.command()
def plan(
    *,
    more_files: Annotated[
        list[str] | None, typer.Argument(metavar="FILE", help="Further files or folders.")
    ] = None,
    files: Annotated[
        list[str] | None,
        typer.Option(
            "--filename",
            "-f",
            metavar="FILE",
            help="YAML or JSON with pools, or a folder of such files; - reads standard input.",
        ),
    ] = None,
    output: options.Output = OutputFormat.TABLE,
    config: Annotated[
        str | None,
        typer.Option(
            "--config",
            metavar="FILE",
            help="A file with config.json, for pools that refer to a ConfigMap.",
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
        config_text = options.config_text(config)
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
def explain(
    *,
    pool: Annotated[str, typer.Argument(metavar="POOL", help="Name of the InferencePool.")],
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace",
            "-n",
            metavar="NAME",
            help="Its namespace; that of the context if left out.",
        ),
    ] = None,
    kube_context: options.KubeContext = None,
    since: Annotated[
        str,
        typer.Option(
            "--since", metavar="TIME", help="How far back, as 90s, 15m or 1h; at most 1d."
        ),
    ] = "1h",
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

    span = options.read("--since", duration, since)
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


def main() -> None:
    """Run the program; a fault of its own is exit code 2, because 1 says that a pool is unfit."""
    try:
        app()
    except Exception:
        traceback.print_exc()
        sys.exit(2)
