"""``ballonet gpus``: on which devices of the catalog a model fits, and on how many of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from ballonet.catalog import Accelerator, Catalog
from ballonet.cli.canvas import Canvas, Table
from ballonet.cli.fit import answer
from ballonet.cli.formats import OutputFormat, listing
from ballonet.cli.outcome import ExitCode, Outcome, as_document
from ballonet.cli.output import VERDICTS, View
from ballonet.cli.question import OPTIONS, Question
from ballonet.kv.units import gib

# The best answer first; of several sizes of an engine the first that gives it is shown.
_BEST_FIRST: Final = (
    ExitCode.FITS,
    ExitCode.UNKNOWN,
    ExitCode.DOES_NOT_FIT,
    ExitCode.BAD_INPUT,
)
_SIZES: Final = (1, 2, 4, 8, 16)
_HEADINGS: Final = (
    *("GPU", "GPUs", "memory, GiB", "verdict"),
    *("at once (predicted)", "KV memory of a GPU, GiB (predicted)", "why"),
)


@dataclass(frozen=True, slots=True)
class Fit:
    """How a model fits a number of devices of one type.

    Attributes:
        gpus: devices of an engine.
    """

    device: Accelerator
    gpus: int
    outcome: Outcome

    @property
    def order(self) -> tuple[int, int, int, str]:
        """What comes first: the better answer, fewer devices, less memory."""
        memory = self.device.memory_bytes
        return (
            _BEST_FIRST.index(self.outcome.code),
            self.gpus,
            0 if memory is None else memory.low,
            self.device.name,
        )

    def row(self) -> tuple[str, ...]:
        """Return the cells of the table."""
        plan = self.outcome.plan
        kv_cache = None if plan is None or plan.memory is None else plan.memory.kv_cache_bytes
        slots = None if plan is None else plan.available_slots
        return (
            self.device.name,
            str(self.gpus),
            self.device.memory_text,
            VERDICTS[self.outcome.code],
            "" if slots is None else f"{slots:,}",
            "" if kv_cache is None else gib(kv_cache),
            self._why(),
        )

    def _why(self) -> str:
        """Return why it is no clear yes, in a few words."""
        if self.outcome.code is ExitCode.FITS:
            return ""
        if self.outcome.problems:
            return self.outcome.problems[0]
        found = [finding for _, finding in self.outcome.conditions if finding.status != "True"]
        return str(found[0].reason) if found else ""

    def document(self) -> dict[str, Any]:
        """Return the same for programs; figures are of one engine, as in a plan."""
        plan = as_document(self.outcome)
        return {
            "gpu": self.device.name,
            "vendor": self.device.vendor,
            "gpus": self.gpus,
            **{name: plan[name] for name in _FIGURES},
            "why": self._why(),
        }


_FIGURES: Final = (
    "fits",
    "source",
    "requiredSlots",
    "availableSlots",
    "maxConcurrent",
    "kvCacheBlocks",
    "kvCacheBytes",
)


@dataclass(frozen=True, slots=True)
class Found:
    """What fits on what, the best first.

    Attributes:
        problem: what is wrong with the question, whatever the device; None when it can be asked.
    """

    fits: tuple[Fit, ...]
    problem: str | None = None

    @property
    def code(self) -> ExitCode:
        """The best answer of all devices."""
        codes = {fit.outcome.code for fit in self.fits}
        return next(code for code in _BEST_FIRST if code in codes)

    def text(self, output: OutputFormat, canvas: Canvas) -> str:
        """Return the list in the format that was asked for."""
        rows = tuple(fit.row() for fit in self.fits)
        table = Table(_HEADINGS, rows, frozenset({"GPUs", "at once (predicted)"}))
        return listing(output, canvas, table, [fit.document() for fit in self.fits])


def what_fits(question: Question, catalog: Catalog, *, vendor: str | None, most: int) -> Found:
    """Plan a question on every device of the catalog.

    Args:
        question: what is asked; its device is not looked at.
        catalog: devices and models that can be named.
        vendor: maker of the devices, or None for all.
        most: devices that an engine may have.
    """
    devices = [one for one in catalog.accelerators if one.device == "gpu"]
    if vendor is not None:
        makers = sorted({one.vendor for one in devices})
        devices = [one for one in devices if one.vendor == vendor.lower()]
        if not devices:
            return Found((), f"--vendor: {vendor} is not in the catalog: use {', '.join(makers)}")
    fits = tuple(
        sorted((_best(question, catalog, one, most) for one in devices), key=lambda one: one.order)
    )
    if all(one.outcome.code is ExitCode.BAD_INPUT for one in fits):
        return Found((), View(fields=OPTIONS).words(fits[0].outcome.problems[0]))
    return Found(fits)


def _best(question: Question, catalog: Catalog, device: Accelerator, most: int) -> Fit:
    """Return the fewest devices of a type that fit; else that may fit; else the most tried."""
    tried = list(_fits(question, catalog, device, most))
    for code in (ExitCode.FITS, ExitCode.UNKNOWN):
        for fit in tried:
            if fit.outcome.code is code:
                return fit
    possible = [one for one in tried if one.outcome.code is not ExitCode.BAD_INPUT]
    return (possible or tried)[-1]


def _fits(question: Question, catalog: Catalog, device: Accelerator, most: int) -> Iterator[Fit]:
    for gpus in _SIZES:
        if gpus > 1 and gpus > min(most, device.max_per_node or 1):
            return
        asked = replace(question, gpu=device.name, tensor=gpus)
        outcome = answer(asked, catalog, with_remedies=False)
        yield Fit(device, gpus, outcome)
        if outcome.code is ExitCode.FITS:
            return
