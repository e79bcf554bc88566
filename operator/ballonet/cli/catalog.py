"""``ballonet catalog``: what is known of devices, models and engines, and checks of own entries."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ballonet.cli import options
from ballonet.cli.canvas import printable
from ballonet.cli.formats import OutputFormat, listing
from ballonet.cli.streams import bad_input, canvas, read_text, write

if TYPE_CHECKING:
    from ballonet.catalog import Catalog
    from ballonet.cli.catalog_lists import Listed

app = typer.Typer(
    help="Show the devices, models and engine versions that are known.",
    no_args_is_help=True,
)

_ONLY_ENTRIES: Final = "give only entries of your own"
Search = Annotated[
    str | None,
    typer.Option(
        "--search",
        metavar="WORDS",
        help="Only what has all of these words in its names or its kind.",
    ),
]


@app.command()
def gpus(
    *,
    search: Search = None,
    catalog: options.CatalogFiles = None,
    output: options.Output = OutputFormat.TABLE,
) -> None:
    """List devices, and the memory that programs see on them."""
    from ballonet.cli.catalog_lists import listed_devices  # noqa: PLC0415

    _show(listed_devices(catalog_of(catalog).accelerators), search, output)


@app.command()
def models(
    *,
    search: Search = None,
    catalog: options.CatalogFiles = None,
    output: options.Output = OutputFormat.TABLE,
) -> None:
    """List models, with their weights and longest sequence."""
    from ballonet.cli.catalog_lists import listed_models  # noqa: PLC0415

    _show(listed_models(catalog_of(catalog).models), search, output)


@app.command()
def engines(*, search: Search = None, output: options.Output = OutputFormat.TABLE) -> None:
    """List engine versions, and what each of them can do."""
    from ballonet.cli.catalog_lists import listed_engines  # noqa: PLC0415

    _show(listed_engines(), search, output)


@app.command()
def validate(
    files: Annotated[
        list[str], typer.Argument(metavar="FILE", help="Files of entries; - reads one.")
    ],
) -> None:
    """Check files of own devices and models.

    A later file goes before an earlier one. Exit code: 0 they can be used, 2 they cannot.
    """
    from ballonet.catalog import Catalog, InvalidCatalog  # noqa: PLC0415
    from ballonet.cli.catalog_lists import changes  # noqa: PLC0415

    catalog, code = Catalog.builtin(), 0
    lines: list[str] = []
    for name in files:
        try:
            merged = catalog.with_entries(read_text(name, advice=_ONLY_ENTRIES), name)
        except InvalidCatalog as error:
            lines += error.problems
            code = 2
        else:
            lines.append(f"{name}: {changes(catalog, merged)}")
            catalog = merged
    write("\n".join(printable(line) for line in lines))
    raise typer.Exit(code)


def catalog_of(files: Iterable[str] | None) -> Catalog:
    """Return the catalog with the entries of files over it; bad ones end the program."""
    from ballonet.catalog import Catalog, InvalidCatalog  # noqa: PLC0415 - pydantic is slow

    catalog = Catalog.builtin()
    for name in files or ():
        try:
            catalog = catalog.with_entries(read_text(name, advice=_ONLY_ENTRIES), name)
        except InvalidCatalog as error:
            bad_input(*(f"--catalog {problem}" for problem in error.problems))
    return catalog


def _show(found: Listed, search: str | None, output: OutputFormat) -> None:
    chosen = found.matching(search or "")
    if search and not chosen.rows:
        bad_input(f"--search {search}: nothing has these words; leave it out to see all")
    write(listing(output, canvas(), chosen.table, chosen.documents))
