"""Outcomes as text: words and pictures for people, Markdown for pages, JSON or YAML."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ballonet.api.conditions import ConditionType, Finding, Status
from ballonet.api.v1alpha1 import GROUP, PLURAL
from ballonet.cli.canvas import PLAIN, Canvas, Style, Table, markdown_table, printable
from ballonet.cli.formats import OutputFormat, as_json, as_yaml
from ballonet.cli.outcome import ExitCode, Outcome, as_document
from ballonet.cli.pictures import pictures

VERDICTS: Final = {
    ExitCode.FITS: "fits",
    ExitCode.DOES_NOT_FIT: "does not fit",
    ExitCode.BAD_INPUT: "cannot be planned",
    ExitCode.UNKNOWN: "may fit or not",
}
STYLES: Final = {
    ExitCode.FITS: Style.GOOD,
    ExitCode.DOES_NOT_FIT: Style.BAD,
    ExitCode.BAD_INPUT: Style.BAD,
    ExitCode.UNKNOWN: Style.UNSURE,
}
_INDENT: Final = "  "


def _title(outcome: Outcome) -> str:
    document = outcome.document
    where = f"{document.namespace}/" if document.namespace else ""
    return f"{where}{document.name or '(no name)'} ({document.origin}) {VERDICTS[outcome.code]}"


@dataclass(frozen=True, slots=True)
class View:
    """How outcomes are shown to people.

    Attributes:
        canvas: where they are drawn.
        explain: whether each step of the arithmetic is shown.
        title: the answer in one line.
        fields: what fields of the resource are called where the pool was not written by hand;
            patches of it are of no use then.
    """

    canvas: Canvas = PLAIN
    explain: bool = False
    title: Callable[[Outcome], str] = _title
    fields: Mapping[str, str] = field(default_factory=dict)

    def words(self, text: str) -> str:
        """Return a text in the words of this view."""
        for path, name in self.fields.items():
            text = text.replace(path, name)
        return text


def shown(outcomes: Sequence[Outcome], output: OutputFormat, view: View) -> str:
    """Return outcomes in the format that was asked for."""
    match output:
        case OutputFormat.JSON:
            return as_json(documents(outcomes))
        case OutputFormat.YAML:
            return as_yaml(documents(outcomes))
        case OutputFormat.MARKDOWN:
            return as_markdown(outcomes, view)
        case OutputFormat.TABLE:
            return as_text(outcomes, view)


def documents(outcomes: Sequence[Outcome]) -> Any:
    """Return one pool as an object, several as a list of objects."""
    found = [as_document(outcome) for outcome in outcomes]
    return found[0] if len(found) == 1 else found


def as_text(outcomes: Sequence[Outcome], view: View) -> str:
    """Return the outcomes as lines, with colours where the canvas has them."""
    canvas = replace(view.canvas, columns=view.canvas.columns - len(_INDENT))
    blocks = []
    for outcome in outcomes:
        title = canvas.paint(printable(view.title(outcome)), STYLES[outcome.code])
        lines = [] if outcome.plan is None else pictures(outcome.plan, canvas)
        said = [*(_steps(outcome) if view.explain else ()), *_paragraphs(outcome, view)]
        lines += [printable(view.words(line)) for line in said]
        blocks.append("\n".join([title, *(_INDENT + line for line in lines)]))
    return "\n\n".join(blocks)


def as_markdown(outcomes: Sequence[Outcome], view: View) -> str:
    """Return the outcomes as a page; the pictures need no colours there."""
    pages = []
    for outcome in outcomes:
        lines = [f"## {printable(view.title(outcome))}", ""]
        if outcome.plan is not None and (drawn := pictures(outcome.plan, PLAIN)):
            lines += ["```text", *drawn, "```", ""]
        if view.explain and outcome.plan is not None and outcome.plan.steps:
            rows = tuple((s.title, s.formula, s.value, s.source) for s in outcome.plan.steps)
            lines += [*markdown_table(Table(("Step", "Arithmetic", "Result", "Source"), rows)), ""]
        for line in _paragraphs(outcome, view):
            text = printable(view.words(line.strip()))
            lines.append(f"  `{text}`" if line.startswith(_INDENT) else f"* {text}")
        pages.append("\n".join(lines))
    return "\n\n".join(pages)


def _steps(outcome: Outcome) -> list[str]:
    lines = []
    for step in () if outcome.plan is None else outcome.plan.steps:
        formula = f" {step.formula} =" if step.formula else ""
        source = f"  [{step.source}]" if step.source else ""
        lines.append(f"{step.title}:{formula} {step.value}{source}")
    return lines


def _paragraphs(outcome: Outcome, view: View) -> list[str]:
    """Return what is said in sentences; what belongs to the line above it is indented."""
    lines = [f"problem: {problem}" for problem in outcome.problems]
    if outcome.plan is None:
        return lines
    lines += [
        f"{kind} {finding.status} ({finding.reason}): {finding.message}"
        for kind, finding in outcome.conditions
        if not (outcome.problems and _says_no_more(kind, finding))
    ]
    if outcome.plan.engine_args:
        lines.append("engine arguments: " + shlex.join(outcome.plan.engine_args))
    for remedy in outcome.plan.remedies:
        lines.append(f"remedy {remedy.name}: {remedy.description}")
        if not view.fields:
            patch = json.dumps(remedy.patch, separators=(",", ":"), ensure_ascii=False)
            document = outcome.document
            lines.append(_INDENT + patch_command(document.name, document.namespace, patch))
    return lines


def _says_no_more(kind: ConditionType, finding: Finding) -> bool:
    """Return whether a condition follows from the problems, which stand above it."""
    if finding.status is Status.UNKNOWN:
        return True
    repeats = kind in (ConditionType.SPEC_RESOLVED, ConditionType.CONFIGURED)
    return repeats and finding.status is Status.FALSE


def patch_command(name: str, namespace: str | None, patch: str) -> str:
    """Return the command that applies a JSON merge patch to a pool."""
    where = f" -n {shlex.quote(namespace)}" if namespace else ""
    return f"kubectl patch {PLURAL}.{GROUP} {name}{where} --type merge -p {shlex.quote(patch)}"
