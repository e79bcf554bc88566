"""``ballonet receipts``: what engines measured at their starts, shown and carried elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ballonet.cli import options
from ballonet.cli.canvas import Table
from ballonet.cli.cluster import asked, namespace_of
from ballonet.cli.formats import OutputFormat, as_yaml, listing
from ballonet.cli.streams import bad_input, canvas, note, read_text, write

if TYPE_CHECKING:
    from ballonet.cluster.port import Cluster, Json
    from ballonet.planning.receipts import Receipt, Receipts

app = typer.Typer(
    help="Show and carry what engines measured at their starts.",
    no_args_is_help=True,
)

# Lines that cannot be read, as far as they are shown.
_MOST_SHOWN: Final = 3
_ONLY_RECEIPTS: Final = "give only what ballonet receipts export prints"
_HEADINGS: Final = (
    *("MODEL", "ENGINE", "DEVICE", "CEILING", "SEQUENCES", "STEP TOKENS", "BOOTS"),
    *("KV MEMORY OF A RANK", "BLOCKS", "START", "LAST BOOT", "CONFIGURATION"),
)
_NUMBERS: Final = frozenset(("CEILING", "SEQUENCES", "STEP TOKENS", "BOOTS", "BLOCKS"))


@app.command("list")
def list_receipts(
    *,
    files: Annotated[
        list[str] | None,
        typer.Option(
            "--filename", "-f", metavar="FILE", help="An exported file instead of the cluster's."
        ),
    ] = None,
    namespace: options.Namespace = None,
    context: options.KubeContext = None,
    output: options.Output = OutputFormat.TABLE,
) -> None:
    """List receipts: what starts of each configuration measured."""
    found = receipts_of(files) if files else _receipts(namespace_of(namespace, context), context)
    rows = tuple(_row(receipt) for receipt in found.all)
    documents = [receipt.model_dump(mode="json", by_alias=True) for receipt in found.all]
    if not rows and output is OutputFormat.TABLE:
        note(
            "no receipts: engines make them when they start with KV memory that was predicted, "
            "neither given nor pinned"
        )
    write(listing(output, canvas(), Table(_HEADINGS, rows, _NUMBERS), documents))


@app.command()
def export(*, namespace: options.Namespace = None, context: options.KubeContext = None) -> None:
    """Print the receipts of a namespace as a ConfigMap.

    The commands import, list and plan take it.
    """
    from ballonet.reconcile.receipts import config_map  # noqa: PLC0415

    where = namespace_of(namespace, context)
    write(as_yaml(config_map(where, _receipts(where, context))))


@app.command("import")
def import_receipts(
    files: Annotated[list[str], typer.Argument(metavar="FILE", help="Exported files.")],
    *,
    namespace: options.Namespace = None,
    context: options.KubeContext = None,
) -> None:
    """Add the receipts of files to those of a namespace.

    Where both have boots of one configuration, device and limits, the larger number is kept: to
    import a file twice changes nothing.
    """
    from ballonet.reconcile.receipts import NAME, ReceiptBook  # noqa: PLC0415

    new = receipts_of(files)
    where = namespace_of(namespace, context)

    async def take(cluster: Cluster) -> tuple[Receipts, Receipts] | None:
        book = ReceiptBook(cluster, lambda: 0.0)
        before = await book.read(where)
        after = await book.take(where, new)
        return None if after is None else (before, after)

    taken = asked(context, take)
    if taken is None:
        bad_input(
            f"ConfigMap {NAME} of namespace {where} was made by somebody else and "
            "is not touched: delete it first"
        )
    before, after = taken
    changed = len({one.line() for one in after.all} - {one.line() for one in before.all})
    write(f"{len(after.all)} receipts in namespace {where}, {changed} of them new or changed")


def receipts_of(files: Iterable[str]) -> Receipts:
    """Return the receipts in files; one without any ends the program."""
    from ballonet.api.yaml_input import InvalidInput, read_documents  # noqa: PLC0415
    from ballonet.cli.pools import select  # noqa: PLC0415
    from ballonet.planning.receipts import KEY, NO_RECEIPTS, receipts_in  # noqa: PLC0415

    found = NO_RECEIPTS
    for name in files:
        try:
            chosen = select(name, read_documents(read_text(name, advice=_ONLY_RECEIPTS)))
        except InvalidInput as error:
            bad_input(f"{name}: {error}")
        own = [receipts_in(body) for body in chosen.config_maps]
        for body in chosen.config_maps:
            _say_left_out(name, body)
        if not any(one.all for one in own):
            bad_input(f"{name}: no ConfigMap in it has receipts in {KEY}: {_ONLY_RECEIPTS}")
        for one in own:
            found = found.with_receipts(one)
    return found


def _receipts(namespace: str, context: str | None) -> Receipts:
    from ballonet.cluster.port import Kind  # noqa: PLC0415
    from ballonet.planning.receipts import NO_RECEIPTS, receipts_in  # noqa: PLC0415
    from ballonet.reconcile.receipts import NAME  # noqa: PLC0415

    async def read(cluster: Cluster) -> Json | None:
        return await cluster.get(Kind.CONFIG_MAP, namespace, NAME)

    live: dict[str, Any] | None = asked(context, read)
    if live is None:
        return NO_RECEIPTS
    _say_left_out(f"ConfigMap {NAME} of namespace {namespace}", live)
    return receipts_in(live)


def _say_left_out(where: str, config_map: Mapping[str, Any]) -> None:
    """Say on standard error what cannot be read among receipts, and why."""
    from ballonet.kv.units import counted  # noqa: PLC0415
    from ballonet.planning.receipts import KEY, left_out_of  # noqa: PLC0415

    left_out = left_out_of(config_map)
    if not left_out:
        return
    shown = "; ".join(left_out[:_MOST_SHOWN])
    more = len(left_out) - _MOST_SHOWN
    note(
        f"{where}: {counted(len(left_out), 'line')} of {KEY} left out: {shown}"
        + (f"; and {more:,} more" if more > 0 else "")
    )


def _row(receipt: Receipt) -> tuple[str, ...]:
    from ballonet.kv.units import Interval  # noqa: PLC0415
    from ballonet.planning.explain import amount, span  # noqa: PLC0415

    starts = ", ".join(
        f"{one.compile_cache.value.lower()} {span(Interval(one.low_seconds, one.high_seconds))} s"
        for one in receipt.starts
    )
    return (
        receipt.model,
        receipt.version,
        receipt.device,
        f"{receipt.max_model_tokens:,}",
        f"{receipt.max_num_seqs:,}",
        f"{receipt.max_batched_tokens:,}",
        f"{receipt.boots:,}",
        amount(receipt.kv_cache_bytes),
        span(Interval(receipt.low_blocks, receipt.high_blocks)),
        starts or "-",
        receipt.last_boot,
        receipt.configuration,
    )
