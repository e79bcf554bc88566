"""Outcomes as text: a table for people, JSON or YAML for programs."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import Any

from ballonet.api.conditions import ConditionType, Finding, Status
from ballonet.api.v1alpha1 import GROUP, PLURAL
from ballonet.cli.outcome import ExitCode, Outcome, as_document

_VERDICTS = {
    ExitCode.FITS: "fits",
    ExitCode.DOES_NOT_FIT: "does not fit",
    ExitCode.BAD_INPUT: "is wrong",
    ExitCode.UNKNOWN: "may fit or not",
}
_STYLES = {
    ExitCode.FITS: "bold green",
    ExitCode.DOES_NOT_FIT: "bold red",
    ExitCode.BAD_INPUT: "bold red",
    ExitCode.UNKNOWN: "bold yellow",
}


def printable(text: str) -> str:
    """Return one line of text, without characters that a terminal would obey."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def as_json(outcomes: Sequence[Outcome]) -> str:
    """Return one pool as an object, several as a list of objects.

    Characters beyond ASCII are escaped: a terminal would obey some, and some cannot be encoded.
    """
    return json.dumps(_documents(outcomes), indent=2).replace("\x7f", "\\u007f")


def as_yaml(outcomes: Sequence[Outcome]) -> str:
    """Return the same as YAML."""
    import yaml  # noqa: PLC0415 - only for this output

    text: str = yaml.safe_dump(_documents(outcomes), sort_keys=False, width=100)
    return text.rstrip("\n")


def _documents(outcomes: Sequence[Outcome]) -> Any:
    documents = [as_document(outcome) for outcome in outcomes]
    return documents[0] if len(documents) == 1 else documents


def _title(outcome: Outcome) -> str:
    document = outcome.document
    where = f"{document.namespace}/" if document.namespace else ""
    return f"{where}{document.name or '(no name)'} ({document.origin}) {_VERDICTS[outcome.code]}"


def _patch_command(outcome: Outcome, patch: dict[str, Any]) -> str:
    document = outcome.document
    namespace = f" -n {shlex.quote(document.namespace)}" if document.namespace else ""
    text = json.dumps(patch, separators=(",", ":"), ensure_ascii=False)
    return (
        f"kubectl patch {PLURAL}.{GROUP} {document.name}{namespace} --type merge "
        f"-p {shlex.quote(text)}"
    )


def _paragraphs(outcome: Outcome) -> list[str]:
    """Return what follows the steps."""
    lines = [f"problem: {problem}" for problem in outcome.problems]
    if outcome.plan is not None:
        lines += [
            f"{kind} {finding.status} ({finding.reason}): {finding.message}"
            for kind, finding in outcome.conditions
            if not (outcome.problems and _says_no_more(kind, finding))
        ]
        if outcome.plan.engine_args:
            lines.append("engine arguments: " + shlex.join(outcome.plan.engine_args))
        for remedy in outcome.plan.remedies:
            lines.append(f"remedy {remedy.name}: {remedy.description}")
            lines.append("    " + _patch_command(outcome, remedy.patch))
    return lines


def _says_no_more(kind: ConditionType, finding: Finding) -> bool:
    """Return whether a condition follows from the problems, which stand above it."""
    if finding.status is Status.UNKNOWN:
        return True
    repeats = kind in (ConditionType.SPEC_RESOLVED, ConditionType.CONFIGURED)
    return repeats and finding.status is Status.FALSE


def as_text(outcomes: Sequence[Outcome]) -> str:
    """Return the outcomes as plain lines."""
    blocks = []
    for outcome in outcomes:
        lines = [_title(outcome)]
        for step in outcome.plan.steps if outcome.plan is not None else ():
            formula = f" {step.formula} =" if step.formula else ""
            source = f"  [{step.source}]" if step.source else ""
            lines.append(f"  {step.title}:{formula} {step.value}{source}")
        lines += [f"  {line}" for line in _paragraphs(outcome)]
        blocks.append("\n".join(printable(line) for line in lines))
    return "\n\n".join(blocks)


def as_table(outcomes: Sequence[Outcome]) -> str:
    """Return the outcomes as tables for the terminal that standard output is."""
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415 - slow to import, only for terminals
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    console = Console(highlight=False)
    with console.capture() as drawn:
        for outcome in outcomes:
            console.print(Text(printable(_title(outcome)), style=_STYLES[outcome.code]))
            if outcome.plan is not None and outcome.plan.steps:
                table = Table("Step", "Arithmetic", "Result", "Source", box=SIMPLE_HEAD)
                for step in outcome.plan.steps:
                    cells = (step.title, step.formula, step.value, step.source)
                    table.add_row(*(Text(printable(cell)) for cell in cells))
                console.print(table)
            for line in _paragraphs(outcome):
                console.print(Text(printable(line)), soft_wrap=line.startswith("    "))
            console.print()
    return drawn.get().rstrip("\n")
