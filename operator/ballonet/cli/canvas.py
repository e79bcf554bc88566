"""Drawing with characters: coloured words, bars with a legend, tables with aligned columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

_LEAST_BAR_CELLS: Final = 10
_MOST_BAR_CELLS: Final = 100


class Style(StrEnum):
    """How a word looks in a terminal (ANSI SGR parameters)."""

    GOOD = "1;32"
    BAD = "1;31"
    UNSURE = "1;33"
    STRONG = "1"


# Segments of a bar take these in turn: without colours a character each, with colours a full block.
_GLYPHS: Final = "#=+*o%@&$x"
_COLOURS: Final = ("34", "33", "35", "36", "32", "31", "94", "93", "95", "96")
_FREE: Final = (".", "░", "90")
_PERHAPS: Final = ("?", "▒", "90")
_BLOCK: Final = "█"
# From nothing to all.
_LEVELS: Final = "·▁▂▃▄▅▆▇█"
_PLAIN_LEVELS: Final = "_.:-=+*#@"


def printable(text: str) -> str:
    """Return one line of text, without characters that a terminal would obey."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a bar.

    Attributes:
        size: its share of the bar, in any unit that all segments of the bar have.
        text: what the legend says of it.
        free: whether it is what nobody takes.
        perhaps: whether it may not be there.
    """

    size: int
    text: str
    free: bool = False
    perhaps: bool = False

    @property
    def marked(self) -> bool:
        """Whether it has a mark of its own and takes none of those in turn."""
        return self.free or self.perhaps


@dataclass(frozen=True, slots=True)
class Bar:
    """A row of segments.

    Attributes:
        label: what stands before it.
        note: what stands behind it.
    """

    segments: tuple[Segment, ...]
    label: str = ""
    note: str = ""

    @property
    def size(self) -> int:
        """The sum of its segments."""
        return sum(segment.size for segment in self.segments)


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells under headings.

    Attributes:
        numbers: headings of the columns whose cells are numbers, which are aligned to the right.
    """

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Canvas:
    """Where text is drawn.

    Attributes:
        columns: characters of a line.
        colour: whether colours and characters beyond ASCII may be used.
    """

    columns: int = 80
    colour: bool = False

    def paint(self, text: str, style: Style) -> str:
        """Return text in a style, where there are colours."""
        return self._sgr(text, style)

    def bars(self, bars: Sequence[Bar]) -> list[str]:
        """Return bars one below the other, all to one scale, and the legend of their segments."""
        scale = max((bar.size for bar in bars), default=0)
        label_width = max((len(bar.label) for bar in bars), default=0)
        note_width = max((len(bar.note) for bar in bars), default=0)
        cells = self.columns - label_width - note_width - len("[]  ")
        cells = min(_MOST_BAR_CELLS, max(_LEAST_BAR_CELLS, cells))
        lines, legend = [], []
        taken = 0
        for bar in bars:
            shares = _cells([segment.size for segment in bar.segments], scale, cells)
            drawn = ""
            for segment, share in zip(bar.segments, shares, strict=True):
                mark = self._mark(segment, taken)
                taken += not segment.marked
                drawn += self._painted(mark, share)
                if segment.size > 0:
                    legend.append((self._painted(mark, 1), segment.text))
            empty = " " * (cells - sum(shares))
            label = f"{bar.label:<{label_width}} " if label_width else ""
            lines.append(f"{label}[{drawn}{empty}] {bar.note}".rstrip())
        return [*lines, *self._legend(legend)]

    def table(self, table: Table) -> list[str]:
        """Return a table as lines of aligned columns."""
        rows = [tuple(printable(cell) for cell in row) for row in (table.headings, *table.rows)]
        widths = [max(len(row[n]) for row in rows) for n in range(len(table.headings))]

        def line(row: Sequence[str]) -> str:
            cells = (
                f"{cell:>{width}}" if heading in table.numbers else f"{cell:<{width}}"
                for cell, width, heading in zip(row, widths, table.headings, strict=True)
            )
            return "  ".join(cells).rstrip()

        return [self.paint(line(rows[0]), Style.STRONG), *(line(row) for row in rows[1:])]

    def levels(self, values: Sequence[int | None], top: int) -> str:
        """Return a character for each value, the fuller the nearer to the top; None is a blank."""
        # Rounded up by hand: --help draws with this module, and needs nothing of a plan.
        steps = _LEVELS if self.colour else _PLAIN_LEVELS
        most = len(steps) - 1
        return "".join(
            " " if value is None else steps[min(most, -(-value * most // max(1, top)))]
            for value in values
        )

    @staticmethod
    def _mark(segment: Segment, index: int) -> tuple[str, str, str]:
        """Return a segment's character, its block and that one's colour."""
        if segment.marked:
            return _PERHAPS if segment.perhaps else _FREE
        return _GLYPHS[index % len(_GLYPHS)], _BLOCK, _COLOURS[index % len(_COLOURS)]

    def _painted(self, mark: tuple[str, str, str], count: int) -> str:
        glyph, block, colour = mark
        return self._sgr(block * count, colour) if self.colour else glyph * count

    def _sgr(self, text: str, parameters: str) -> str:
        return f"\x1b[{parameters}m{text}\x1b[0m" if self.colour and text else text

    def _legend(self, entries: Iterable[tuple[str, str]]) -> Iterator[str]:
        """Yield the entries, as many on a line as its columns hold."""
        line, width = "", 0
        for glyph, text in entries:
            entry_width = len(text) + 2
            if line and width + 3 + entry_width > self.columns - 1:
                yield line
                line, width = "", 0
            gap = "   " if line else " "
            line += f"{gap}{glyph} {printable(text)}"
            width += len(gap) + entry_width
        if line:
            yield line


PLAIN: Final = Canvas()


def markdown_table(table: Table) -> list[str]:
    """Return a table as lines of Markdown."""
    rule = ("---:" if heading in table.numbers else "---" for heading in table.headings)
    rows = (table.headings, tuple(rule), *table.rows)
    return [f"| {' | '.join(_markdown_cell(cell) for cell in row)} |" for row in rows]


def _markdown_cell(text: str) -> str:
    return printable(text).replace("|", "\\|")


def _cells(sizes: Sequence[int], scale: int, cells: int) -> list[int]:
    """Return how many cells each size takes of a bar that is as long as the scale.

    What is more than nothing gets a cell as long as there are any; the rounding is carried along,
    so a bar as large as the scale fills its cells.
    """
    shares: list[int] = []
    end = drawn = 0
    later = sum(size > 0 for size in sizes)
    for size in sizes:
        if size <= 0:
            shares.append(0)
            continue
        end, later = end + size, later - 1
        upto = min((2 * end * cells + scale) // (2 * scale), cells - later)
        shares.append(max(upto - drawn, int(drawn < cells)))
        drawn += shares[-1]
    return shares
