"""The story of a pool on paper: blocks, requests, verdicts and events over one time axis."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import pairwise
from typing import Final

from ballonet.api.conditions import Reason
from ballonet.api.status import timestamp
from ballonet.cli.canvas import PLAIN, Canvas, Style, Table, markdown_table, printable
from ballonet.cli.formats import OutputFormat, as_json, as_yaml
from ballonet.cli.output import patch_command
from ballonet.cli.pool_story import History, Story
from ballonet.cluster.port import Json
from ballonet.diagnosis.observation import Observation
from ballonet.kv.units import counted, format_bytes

_MOST_CELLS: Final = 72
_NAMES: Final = 11
_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"
_FIGURES: Final = ("blocks", "running", "waiting", "preempted")


def document(story: Story) -> Json:
    """Return the story for programs."""
    return {
        "pool": f"{story.pool['metadata']['namespace']}/{story.pool['metadata']['name']}",
        "since": timestamp(story.since),
        "until": timestamp(story.until),
        **({"unready": story.unready} if story.unready else {}),
        "diagnosis": story.diagnosis,
        **({"offload": story.offload} if story.offload else {}),
        "timeline": [
            {"time": timestamp(e.at), "what": e.what, "text": e.text} for e in story.entries
        ],
        "samples": [
            {"time": timestamp(o.at), "pod": pod, **_figures(o)}
            for pod, seen in story.history.items()
            for o in seen
        ],
        "notes": list(story.notes),
    }


def shown(story: Story, output: OutputFormat, canvas: Canvas) -> str:
    """Return the story in the format that was asked for."""
    match output:
        case OutputFormat.JSON:
            return as_json(document(story))
        case OutputFormat.YAML:
            return as_yaml(document(story))
        case OutputFormat.MARKDOWN:
            return _page(story)
    parts = [
        _head(story, canvas),
        _offload(story, canvas),
        _chart(story, canvas),
        _timeline(story, canvas),
    ]
    parts.append([f"note: {printable(note)}" for note in story.notes])
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def _page(story: Story) -> str:
    """Return the story as Markdown: what is drawn as it is, what happened as a table."""
    title, *said = _head(story, PLAIN)
    rows = tuple((timestamp(entry.at), entry.what, entry.text) for entry in story.entries)
    drawn = [*said, *_offload(story, PLAIN), *_chart(story, PLAIN)]
    parts = [
        [f"## {title}"],
        ["```text", *drawn, "```"] if drawn else [],
        markdown_table(Table(("Time", "What", "Text"), rows)) if rows else [],
        [f"* {printable(note)}" for note in story.notes],
    ]
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def _head(story: Story, canvas: Canvas) -> list[str]:
    metadata, said = story.pool["metadata"], story.diagnosis
    verdict = said.get("verdict", str(Reason.NO_VERDICT))
    style = {0: Style.GOOD, 1: Style.BAD}.get(story.exit_code, Style.UNSURE)
    since = f" since {said['since']}" if "since" in said else ""
    lines = [f"{metadata['namespace']}/{metadata['name']}: {canvas.paint(verdict, style)}{since}"]
    if why := story.unready:
        ready = f"Ready {why['status']} ({why['reason']}): {why['message']}"
        lines += _wrapped(ready, canvas, "  ")
    for evidence in said.get("evidence", ()):
        lines += _wrapped(f"{evidence.get('name')}: {evidence.get('message')}", canvas, "  ")
    lever = said.get("lever")
    if lever:
        lines += _wrapped(f"{lever['name']}: {lever['description']}", canvas, "  ")
    if lever and "patch" in lever:
        command = patch_command(metadata["name"], metadata["namespace"], lever["patch"])
        lines.append(f"  {command}")
    return lines


def _offload(story: Story, canvas: Canvas) -> list[str]:
    """Return how full host memory is, and where prompt tokens were found; nothing without it."""
    use = story.offload
    if not use:
        return []
    given = story.pool["status"]["engine"]["hostCacheBytes"] * use["engines"]
    held, engines = use.get("hostBytesInUse"), counted(use["engines"], "engine")
    if held is None:
        words = f"what is in use of {format_bytes(given)} for {engines} is not reported"
    else:
        words = f"{format_bytes(held)} of {format_bytes(given)} in use by {engines}"
    found = [
        f"{use[field]:,} {where}"
        for field, where in (
            ("deviceHitTokens", "were on the device"),
            ("hostHitTokens", "in host memory"),
            ("externalHitTokens", "further away"),
        )
        if field in use
    ]
    if found and "queriedTokens" in use:
        words += (
            f"; of {use['queriedTokens']:,} prompt tokens looked for since the start, "
            f"{', '.join(found)}"
        )
    return _wrapped(f"host memory: {words} (read {use['readAt']})", canvas, "")


def _chart(story: Story, canvas: Canvas) -> list[str]:
    """Return blocks, requests, verdicts and events over the time, a character for each part."""
    if not any(story.history.values()):
        return []
    if all(len(seen) < 2 for seen in story.history.values()):
        return [
            f"{printable(pod)}: "
            + ", ".join(f"{name} {value:,}" for name, value in _figures(seen[-1]).items())
            for pod, seen in story.history.items()
        ]
    cells = max(10, min(_MOST_CELLS, canvas.columns - _NAMES - 24))
    span = (story.until - story.since) / cells

    def cell(at: datetime) -> int:
        return min(cells - 1, max(0, int((at - story.since) / span)))

    lines = []
    for name in _FIGURES:
        values = _peaks(story.history, name, cells, cell)
        most = max((value for value in values if value is not None), default=0)
        top = max(_capacity(story.history) if name == "blocks" else most, 1)
        note = f"up to {most:,}" + (f" of {top:,}" if name == "blocks" else "")
        lines.append(f"{name:<{_NAMES}}{canvas.levels(values, top)}  {note}")
    lines += _verdict_row(story, cells, cell)
    marks = {cell(entry.at) for entry in story.entries if not entry.what.startswith("verdict")}
    row = "".join("|" if n in marks else " " for n in range(cells))
    lines.append(f"{'events':<{_NAMES}}{row}".rstrip())
    begin, end = (f"{at:%H:%M:%S}" for at in (story.since, story.until))
    lines.append(f"{'UTC':<{_NAMES}}{begin}{end:>{cells - len(begin)}}")
    return lines


def _verdict_row(story: Story, cells: int, cell: Callable[[datetime], int]) -> list[str]:
    if not story.verdicts:
        return []
    words = list(dict.fromkeys(word for _, word in story.verdicts))
    letters = {word: _LETTERS[n % len(_LETTERS)] for n, word in enumerate(words)}
    row = ["."] * cells
    for at, word in story.verdicts:
        start = cell(at)
        row[start:] = [letters[word]] * (cells - start)
    legend = "  ".join(f"{letter} {word}" for word, letter in letters.items())
    return [f"{'verdict':<{_NAMES}}{''.join(row)}  {legend}"]


def _timeline(story: Story, canvas: Canvas) -> list[str]:
    lines = []
    for entry in story.entries:
        lines += _wrapped(f"{entry.at:%H:%M:%S}  {entry.what}: {entry.text}", canvas, "", "    ")
    return lines


def _wrapped(text: str, canvas: Canvas, indent: str, further: str = "    ") -> list[str]:
    return textwrap.wrap(
        printable(text),
        max(40, canvas.columns),
        initial_indent=indent,
        subsequent_indent=further,
        break_long_words=False,
    )


def _figures(sample: Observation) -> dict[str, int]:
    """Return what is drawn of a sample, as far as it is there."""
    values = zip(
        _FIGURES,
        (sample.used_blocks, sample.running, sample.waiting, sample.preemptions),
        strict=True,
    )
    return {name: value for name, value in values if value is not None}


def _capacity(history: History) -> int:
    """Return the most blocks that there were at one time: pods take the place of others."""
    return max((total for _, total in _totals(history, lambda o: o.usable_blocks)), default=0)


def _peaks(
    history: History, name: str, cells: int, cell: Callable[[datetime], int]
) -> list[int | None]:
    """Return the most of a figure in each part of the time, over all pods.

    Of what is counted since the start, what was added in it.
    """
    peaks: list[int | None] = [None] * cells
    if name == "preempted":
        for seen in history.values():
            counts = [(o.at, o.preemptions) for o in seen if o.preemptions is not None]
            for (_, before), (at, after) in pairwise([counts[0], *counts] if counts else []):
                peaks[cell(at)] = (peaks[cell(at)] or 0) + max(0, after - before)
        return peaks
    for at, total in _totals(history, lambda o: _figures(o).get(name)):
        peaks[cell(at)] = max(peaks[cell(at)] or 0, total)
    return peaks


def _totals(
    history: History, read: Callable[[Observation], int | None]
) -> Iterator[tuple[datetime, int]]:
    """Yield a figure over the pods that there were at each time that one of them was seen."""
    samples = sorted(
        ((o.at, pod, read(o)) for pod, seen in history.items() for o in seen),
        key=lambda sample: sample[:2],
    )
    ends = {pod: at for at, pod, _ in samples}
    newest: dict[str, int] = {}
    for at, pod, value in samples:
        newest = {other: kept for other, kept in newest.items() if ends[other] >= at}
        if value is not None:
            newest[pod] = value
        if newest:
            yield at, sum(newest.values())
