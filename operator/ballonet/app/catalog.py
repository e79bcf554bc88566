"""The catalog of the operator process: the built-in entries and those of its settings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from ballonet.api.yaml_input import MAX_INPUT_BYTES, SUFFIXES, InvalidInput, decode
from ballonet.app.settings import SettingsError, variable
from ballonet.catalog import Catalog, InvalidCatalog


def read_catalog(names: Iterable[str]) -> Catalog:
    """Return the built-in catalog with the entries of files over it, each over those before it.

    Args:
        names: files, and folders, as a ConfigMap is mounted; an empty folder has no entries.

    Raises:
        SettingsError: a file cannot be read or used; names it and says why.
    """
    catalog = Catalog.builtin()
    for file in _files(names):
        try:
            text = decode(_read(file), advice="give only entries of your own")
            catalog = catalog.with_entries(text, str(file))
        except OSError as error:
            raise SettingsError(
                f"{variable('catalog')}: {file}: {error.strerror or error}"
            ) from None
        except InvalidInput as error:
            raise SettingsError(f"{variable('catalog')}: {file}: {error}") from None
        except InvalidCatalog as error:
            raise SettingsError(f"{variable('catalog')}: {error}") from None
    return catalog


def _files(names: Iterable[str]) -> Iterator[Path]:
    for path in map(Path, names):
        if path.is_dir():
            yield from sorted(one for one in path.iterdir() if one.suffix in SUFFIXES)
        else:
            yield path


def _read(file: Path) -> bytes:
    with file.open("rb") as opened:
        return opened.read(MAX_INPUT_BYTES + 1)
