"""Reads the probes in engine pods: what each live sequence holds.

A probe that is absent is told from one that says 0: without it there are no numbers at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from ballonet.api.conditions import Reason
from ballonet.diagnosis.observation import Sequences
from ballonet.telemetry.pages import PodClient, UnreachableError, series_of
from ballonet.telemetry.port import EngineSample, PodTarget, ProbeSilence, ScrapeFailure
from ballonet.telemetry.reading import InvalidPageError, Page, counted_value, sums_by
from ballonet.telemetry.tries import Tries

TIMEOUT_SECONDS: Final = 3.0
# Names of roles and runs are clients' text. A page with 256 sequences and 64 roles, every name as
# long as is kept and of characters that take four bytes, has half of this.
MAX_PAGE_BYTES: Final = 4 * 1024 * 1024
_MAX_REASON_CHARACTERS: Final = 200

_UP: Final = "ballonet_probe_up"
_COUNT: Final = "ballonet_kv_sequences"
_TOKENS: Final = "ballonet_kv_sequence_tokens"
_LONGEST: Final = "ballonet_kv_sequence_longest_tokens"
_BLOCKS: Final = "ballonet_kv_blocks_in_use"
_PAST_CEILING: Final = "ballonet_seq_past_ceiling"
_PAST_COMPACTION: Final = "ballonet_seq_past_compaction"
_ENDED_PAST_CEILING: Final = "ballonet_seq_ended_past_ceiling_total"
_WANTED: Final = (
    *(_UP, _COUNT, _TOKENS, _LONGEST, _BLOCKS),
    *(_PAST_CEILING, _PAST_COMPACTION, _ENDED_PAST_CEILING),
)
# Phases in which a sequence holds blocks.
_HOLDING: Final = ("prefill", "decode")


class ProbeOffError(Exception):
    """A probe that switched itself off, with its reason."""


class ProbeReader:
    """Adds what probes say to samples of the engines that load them."""

    def __init__(self, *, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self._pods = PodClient()
        self._tries: Tries[Sequences | ProbeSilence] = Tries(
            self._ask,
            lambda _: _absent(f"no answer within {timeout_seconds:g} s"),
            timeout_seconds=timeout_seconds,
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._tries.close()
        await self._pods.close()

    async def join(
        self, readings: Sequence[EngineSample | ScrapeFailure]
    ) -> list[EngineSample | ScrapeFailure]:
        """Return the readings in their order; what cannot be had of a probe is said in them."""
        return await asyncio.gather(*(self._joined(reading) for reading in readings))

    async def _joined(self, reading: EngineSample | ScrapeFailure) -> EngineSample | ScrapeFailure:
        if isinstance(reading, ScrapeFailure) or not reading.target.probe_ports:
            return reading
        said = await self._tries.newest(reading.target)
        if isinstance(said, ProbeSilence):
            return replace(reading, silence=said)
        return replace(reading, observation=replace(reading.observation, sequences=said))

    async def _ask(self, target: PodTarget, _: object) -> Sequences | ProbeSilence:
        try:
            # One after the other: a pod that hangs takes one connection.
            return read_probes(
                [
                    await self._pods.get(target, "/metrics", MAX_PAGE_BYTES, port=port)
                    for port in target.probe_ports
                ]
            )
        except UnreachableError as error:
            return _absent(str(error))
        except ProbeOffError as error:
            return ProbeSilence(Reason.PROBE_OFF, f"the probe is off: {error}")
        except InvalidPageError as error:
            return ProbeSilence(Reason.INVALID_METRICS, f"the probe: {error}")


def _absent(cause: str) -> ProbeSilence:
    return ProbeSilence(Reason.PROBE_ABSENT, f"the probe cannot be read: {cause}")


def read_probes(pages: Sequence[str]) -> Sequences:
    """Return what the probes of one pod say together, an engine a page.

    Raises:
        ProbeOffError: one of them switched itself off.
        InvalidPageError: a page is not a probe's, or says what cannot be.
    """
    read = [_checked(series_of(page, _WANTED)) for page in pages]

    def values(name: str, **labels: str) -> list[int]:
        return [
            int(value)
            for page in read
            for found, value in page[name]
            if all(found.get(key) == text for key, text in labels.items())
        ]

    def holding(name: str) -> list[int]:
        return [value for phase in _HOLDING for value in values(name, phase=phase)]

    return Sequences(
        count=sum(holding(_COUNT)),
        tokens=sum(holding(_TOKENS)),
        longest_tokens=max(holding(_LONGEST), default=0),
        shared_blocks=sum(values(_BLOCKS, sequence_id="_shared")),
        past_ceiling=_by_role(read, _PAST_CEILING),
        past_compaction=_by_role(read, _PAST_COMPACTION),
        ended_past_ceiling=_by_role(read, _ENDED_PAST_CEILING),
    )


def _checked(page: Page) -> Page:
    """Return a page whose probe works and whose values can be."""
    up = page.get(_UP, ())
    if not up:
        raise InvalidPageError(f"there is no {_UP}: is it the probe's port?")
    for labels, value in up:
        if value != 1:
            reason = labels.get("reason", "no reason given")[:_MAX_REASON_CHARACTERS]
            raise ProbeOffError("".join(c if c.isprintable() else " " for c in reason))
    for name in (_COUNT, _TOKENS, _LONGEST, _BLOCKS):
        if name not in page:
            raise InvalidPageError(f"there is no {name}")
    for name, series in page.items():
        for _, value in series:
            counted_value(value, name)
    return page


def _by_role(pages: Iterable[Page], name: str) -> dict[str, int]:
    """Return a sum a role; only the roles that the spec declares have series."""
    return sums_by("role", (one for page in pages for one in page.get(name, ())), name)
