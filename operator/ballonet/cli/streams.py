"""Files in, text out: a fault of a stream is a message and exit code 2, never a traceback."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final, NoReturn

import typer

from ballonet.cli.canvas import PLAIN, Canvas, printable

# As a shell shows a program that SIGPIPE ended.
_BROKEN_PIPE: Final = 141
# Below it a bar in colour says less than its legend.
_NARROW_COLUMNS: Final = 60


def bad_input(*messages: str) -> NoReturn:
    """Say on standard error what is wrong with the input, a line each, and end with exit code 2."""
    note(*messages)
    raise typer.Exit(2)


def note(*messages: str) -> None:
    """Say something on standard error, a line each."""
    if sys.stderr is not None:
        for message in messages:
            print(f"ballonet: {printable(message)}", file=sys.stderr)


def files_of(name: str) -> list[str]:
    """Return the files that a name stands for: itself, or those in the folder of that name."""
    if name == "-" or not Path(name).is_dir():
        return [name]
    from ballonet.api.yaml_input import SUFFIXES  # noqa: PLC0415 - PyYAML is slow to import

    try:
        found = sorted(str(path) for path in Path(name).iterdir() if path.suffix in SUFFIXES)
    except OSError as error:
        bad_input(f"{name}: {error.strerror or error}")
    if not found:
        bad_input(f"{name}: the folder holds no file that ends in {', '.join(SUFFIXES)}")
    return found


def read_text(name: str, *, advice: str) -> str:
    """Return the text of a file, or of standard input for ``-``.

    Args:
        name: the file.
        advice: what to give instead of an input that is too large.
    """
    from ballonet.api.yaml_input import (  # noqa: PLC0415 - PyYAML is slow to import
        InvalidInput,
        decode,
    )

    try:
        return decode(_read(name), advice=advice)
    except InvalidInput as error:
        bad_input(f"{name}: {error}")


def _read(name: str) -> bytes:
    """Return at most one byte more than an input may have."""
    from ballonet.api.yaml_input import MAX_INPUT_BYTES  # noqa: PLC0415

    try:
        if name == "-":
            if sys.stdin is None:
                bad_input("-: standard input is closed")
            return sys.stdin.buffer.read(MAX_INPUT_BYTES + 1)
        with Path(name).open("rb") as file:
            return file.read(MAX_INPUT_BYTES + 1)
    except OSError as error:
        bad_input(f"{name}: {error.strerror or error}")


def canvas() -> Canvas:
    """Return what standard output can show: colours and blocks only on a terminal that takes them.

    NO_COLOR asks for plain text; COLUMNS gives the width of what is no terminal.
    """
    out = sys.stdout
    columns = _columns()
    wanted = out is not None and out.isatty() and not os.environ.get("NO_COLOR")
    if not wanted or columns < _NARROW_COLUMNS or "utf" not in (out.encoding or "").lower():
        return Canvas(columns)
    return Canvas(columns, colour=True)


def _columns() -> int:
    try:
        return int(os.environ["COLUMNS"])
    except (KeyError, ValueError):
        pass
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or PLAIN.columns
    except (AttributeError, OSError, ValueError):
        return PLAIN.columns


def write(text: str) -> None:
    """Write text and a line end to standard output, all of it or with a message."""
    if sys.stdout is None:
        bad_input("standard output is closed")
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
        bad_input(f"standard output: {error.strerror or error}")


def _drop_output() -> None:
    """Let nothing be written when the interpreter ends: it would fail once more."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
