"""How an outcome is printed: text for people, JSON or YAML for programs, Markdown for pages."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Any

from ballonet.cli.canvas import Canvas, Table, markdown_table


class OutputFormat(StrEnum):
    """How the outcome is printed."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    MARKDOWN = "markdown"


def as_json(document: Any) -> str:
    """Return a document as JSON.

    Characters beyond ASCII are escaped: a terminal would obey some, and some cannot be encoded.
    """
    return json.dumps(document, indent=2).replace("\x7f", "\\u007f")


def as_yaml(document: Any) -> str:
    """Return a document as YAML, of ASCII characters too."""
    import yaml  # noqa: PLC0415 - only for this output

    text: str = yaml.safe_dump(document, sort_keys=False, width=100)
    return text.rstrip("\n")


def listing(output: OutputFormat, canvas: Canvas, table: Table, documents: Any) -> str:
    """Return a list in the format that was asked for.

    Args:
        output: the format.
        canvas: where a table for people is drawn.
        table: what people read.
        documents: the same for programs.
    """
    match output:
        case OutputFormat.JSON:
            return as_json(documents)
        case OutputFormat.YAML:
            return as_yaml(documents)
        case OutputFormat.MARKDOWN:
            return "\n".join(markdown_table(table))
        case OutputFormat.TABLE:
            return "\n".join(canvas.table(table))
