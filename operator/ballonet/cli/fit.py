"""``ballonet fit``: one question on the command line, answered as a pool that asks it."""

from __future__ import annotations

from ballonet.catalog import Catalog
from ballonet.cli.canvas import Canvas
from ballonet.cli.formats import OutputFormat, as_yaml
from ballonet.cli.outcome import ExitCode, Outcome, plan_document
from ballonet.cli.output import VERDICTS, View, shown
from ballonet.cli.pools import ConfigMaps
from ballonet.cli.question import OPTIONS, EngineName, Question
from ballonet.kv.units import counted


def pool_text(question: Question) -> str:
    """Return the pool that asks the question as YAML."""
    return as_yaml(question.pool().body)


def answer(question: Question, catalog: Catalog, *, with_remedies: bool = True) -> Outcome:
    """Return what comes of planning the pool that asks a question."""
    return plan_document(
        question.pool(),
        ConfigMaps(()),
        None,
        catalog=catalog,
        with_remedies=with_remedies,
        on_sglang=question.engine.name is EngineName.SGLANG,
    )


def asked(
    question: Question, catalog: Catalog, output: OutputFormat, canvas: Canvas, *, explain: bool
) -> tuple[str, ExitCode]:
    """Return the answer as text, and the exit code that says the same."""
    outcome = answer(question, catalog)
    view = View(canvas, explain, lambda found: _answer(question, found), OPTIONS)
    return shown([outcome], output, view), outcome.code


def _answer(question: Question, outcome: Outcome) -> str:
    """Return the answer in one line."""
    devices = question.gpu if question.tensor == 1 else f"{question.tensor} x {question.gpu}"
    what = f"{question.model} on {devices} with {question.engine} {VERDICTS[outcome.code]}"
    plan = outcome.plan
    if plan is None or plan.available_slots is None:
        return what
    sequences = counted(plan.available_slots, "sequence")
    surely = "" if plan.blocks is not None and plan.blocks.exact else "surely "
    wanted = f", {plan.required_slots:,} are wanted" if plan.required_slots else ""
    source = "" if plan.source is None else f" ({plan.source.value.lower()})"
    return f"{what}: {sequences} {surely}at once{source}{wanted}"
