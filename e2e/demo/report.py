"""The closing tables of the demo."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from e2e.demo.story import Outcome, Run

NOT_SAMPLED = "not sampled"


def show(outcome: Outcome, console: Console) -> None:
    """Print what was measured."""
    console.print()
    console.print(_planned_and_measured(outcome))
    console.print(_fan_outs(outcome))


def _planned_and_measured(outcome: Outcome) -> Table:
    table = Table(title="Planned and measured, remedied pool, one engine", title_justify="left")
    table.add_column("")
    table.add_column("planned", justify="right")
    table.add_column("measured by the engine", justify="right")
    predicted, measured = outcome.serving.predicted, outcome.serving.measured
    for label, planned_key, measured_key in (
        ("KV blocks", "lowBlocks", "blocks"),
        ("tokens a block", "blockTokens", "blockTokens"),
        ("blocks per sequence at the ceiling", "blocksPerSequence", "blocksPerSequence"),
        ("sequences at once", "maxConcurrent", "maxConcurrent"),
    ):
        table.add_row(
            label, str(predicted.get(planned_key, "-")), str(measured.get(measured_key, "-"))
        )
    return table


def _fan_outs(outcome: Outcome) -> Table:
    table = Table(
        title="Planner + 5 workers, each grown to its ceiling, on 128 KV blocks",
        title_justify="left",
    )
    table.add_column("engine", no_wrap=True)
    for heading in ("ceiling", "slots", "finished", "preemptions"):
        table.add_column(heading, justify="right", no_wrap=True)
    for heading in ("peak running", "peak waiting", "peak KV blocks", "samples", "time"):
        table.add_column(heading, justify="right", no_wrap=True)
    for run in outcome.runs:
        table.add_row(*_cells(run))
    return table


def _cells(run: Run) -> list[str]:
    load = run.load
    blocks = f"{load.peak_blocks} of {load.usable_blocks} ({load.peak_usage or 0:.0%})"
    return [
        run.title,
        str(run.ceiling_tokens),
        "none" if run.slots is None else str(run.slots),
        f"{load.finished} of {load.requests}",
        str(load.preemptions),
        _sampled(load.peak_running),
        _sampled(load.peak_waiting),
        NOT_SAMPLED if load.peak_blocks is None else blocks,
        str(load.samples),
        f"{load.wall_seconds:.1f} s",
    ]


def _sampled(peak: int | None) -> str:
    return NOT_SAMPLED if peak is None else str(peak)
