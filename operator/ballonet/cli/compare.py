"""``ballonet plan --compare``: two plans side by side, and what differs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from ballonet.cli.canvas import Canvas, Table
from ballonet.cli.formats import OutputFormat, listing
from ballonet.cli.outcome import Outcome, as_document
from ballonet.cli.output import VERDICTS
from ballonet.kv.units import Interval
from ballonet.planning.explain import amount, span

# A whole config.json may stand in a field; a column of it would be wider than any screen.
_MOST_CHARACTERS: Final = 48


def compared(first: Outcome, second: Outcome, output: OutputFormat, canvas: Canvas) -> str:
    """Return two outcomes side by side: every figure, and each field of the spec that differs."""
    documents = as_document(first), as_document(second)
    one, other = (_leaves(outcome.document.body.get("spec")) for outcome in (first, second))
    rows = [
        ("verdict", VERDICTS[first.code], VERDICTS[second.code]),
        *((name, show(documents[0][name]), show(documents[1][name])) for name, show in _ROWS),
        *(
            (path, _plain(one.get(path)), _plain(other.get(path)))
            for path in dict.fromkeys([*one, *other])
            if one.get(path) != other.get(path)
        ),
    ]
    shown = tuple(
        (name, *_short(before, after), "" if before == after else "differs")
        for name, before, after in rows
    )
    names = [_name(outcome, n) for n, outcome in enumerate((first, second), start=1)]
    table = Table(("figure of an engine", *names, ""), shown)
    differences = [
        {"name": name, "first": before, "second": after}
        for name, before, after in rows
        if before != after
    ]
    return listing(output, canvas, table, {"plans": list(documents), "differences": differences})


def _name(outcome: Outcome, number: int) -> str:
    return f"{number}: {outcome.document.name or '(no name)'} ({outcome.document.origin})"


def _short(before: str, after: str) -> tuple[str, str]:
    """Return two texts; where one is too long for a column, both from shortly before they part."""
    if max(len(before), len(after)) <= _MOST_CHARACTERS:
        return before, after
    pairs = enumerate(zip(before, after, strict=False))
    parting = next((n for n, (a, b) in pairs if a != b), min(len(before), len(after)))
    start = max(0, parting - _MOST_CHARACTERS // 4)
    return _part(before, start), _part(after, start)


def _part(text: str, start: int) -> str:
    part = text[start : start + _MOST_CHARACTERS]
    cut_off = start + _MOST_CHARACTERS < len(text)
    return f"{'... ' if start else ''}{part}{' ...' if cut_off else ''}"


def _plain(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _interval(value: Any) -> str:
    return "-" if value is None else span(Interval(value["low"], value["high"]))


def _bytes(value: Any) -> str:
    return "-" if value is None else amount(Interval(value["low"], value["high"]))


# Figures by their names in the document, and how each is written for people.
_ROWS: Final[tuple[tuple[str, Callable[[Any], str]], ...]] = (
    ("source", _plain),
    ("requiredSlots", _plain),
    ("availableSlots", _plain),
    ("maxConcurrent", _plain),
    ("slots", _plain),
    ("needBlocks", _plain),
    ("budgetBlocks", _plain),
    ("blocksPerSequence", _plain),
    ("blockTokens", _plain),
    ("kvCacheBlocks", _interval),
    ("kvCacheBytes", _bytes),
    ("gpusPerPod", _plain),
)


def _leaves(spec: Any) -> dict[str, Any]:
    """Return the values of a spec by their paths; elements of lists by name where they have one."""
    return dict(_walk(spec, "spec"))


def _walk(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _walk(inner, f"{path}.{key}")
    elif isinstance(value, list) and value:
        for n, inner in enumerate(value):
            name = inner.get("name", n) if isinstance(inner, Mapping) else n
            yield from _walk(inner, f"{path}[{name}]")
    else:
        yield path, value
