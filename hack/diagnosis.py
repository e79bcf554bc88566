"""The tables of docs/diagnosis.md, written from the chain, the levers and the thresholds."""

from __future__ import annotations

from collections.abc import Iterator

from ballonet.api.v1alpha1 import DiagnosisSpec
from ballonet.diagnosis.findings import CHAIN, Rule
from ballonet.diagnosis.levers import LEVERS
from ballonet.engines.metrics import Figure
from ballonet.engines.vllm_metrics import METRICS
from ballonet.engines.vllm_versions import OLDEST, parse_version


def chain_part() -> str:
    """Return the table of findings in their order."""
    lines = [
        "| # | finding | what holds | levers | series (vLLM) |",
        "|---|---|---|---|---|",
    ]
    for number, rule in enumerate(CHAIN, start=1):
        levers = ", ".join(lever.name for lever in LEVERS.get(rule.name, ())) or "none needed"
        series = ", ".join(_series(rule))
        lines.append(f"| {number} | `{rule.name}` | {_words(rule)} | {levers} | {series} |")
    return "\n".join(lines) + "\n"


def thresholds_part() -> str:
    """Return the table of thresholds."""
    lines = ["| field | default | meaning |", "|---|---|---|"]
    for field in DiagnosisSpec.model_fields.values():
        default = f"{field.default:,}"
        lines.append(f"| `{field.alias}` | {default} | {field.description} |")
    return "\n".join(lines) + "\n"


def _words(rule: Rule) -> str:
    return " ".join((rule.look.__doc__ or "").split())


def _series(rule: Rule) -> Iterator[str]:
    """Yield the series that a finding reads, each once, with its first version where it is new."""
    told: dict[str, None] = {}
    for field in rule.reads:
        for figure in _figures(field):
            since = "" if parse_version(figure.since) == OLDEST else f" ({figure.since})"
            told[f"`{figure.name.removeprefix(METRICS.prefix)}`{since}"] = None
        if field == "sequences":
            told["the probe"] = None
    yield from told


def _figures(field: str) -> Iterator[Figure]:
    # Blocks in use are the usage of all blocks.
    fields = ("usage_per_mille", "blocks") if field == "used_blocks" else (field,)
    for name, figure in METRICS.figures():
        if name in fields or name.split(".")[0] in fields:
            yield figure
