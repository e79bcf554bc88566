"""What the pool says of live numbers: written when the verdict changes, and kept until then."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from pydantic import ValidationError

from ballonet.api.conditions import REASONS, ConditionType, Finding, Reason, Status
from ballonet.api.status import MAX_DESCRIPTION_CHARACTERS, DiagnosisStatus, cut
from ballonet.cluster.port import Json
from ballonet.diagnosis.diagnose import Courses, Diagnosis, Evidence, no_verdict, resumed
from ballonet.diagnosis.levers import Advice


@dataclass(frozen=True)
class Said:
    """A verdict as the pool says it.

    Attributes:
        since: when it came, as it stands in the status; None where it comes now.
        generation: of the spec that the lever is meant for; None for that of today.
    """

    verdict: Reason
    evidence: tuple[Evidence, ...]
    lever: Advice | None = None
    since: str | None = None
    generation: int | None = None

    @classmethod
    def of(cls, diagnosis: Diagnosis, lever: Advice | None = None) -> Said:
        """Return a diagnosis as it comes now, in words that status takes.

        They are read back from there, and must be the same then.
        """
        evidence = tuple(
            replace(e, text=cut(e.text, MAX_DESCRIPTION_CHARACTERS)) for e in diagnosis.evidence
        )
        return cls(diagnosis.verdict, evidence, lever)

    def conditions(self) -> dict[ConditionType, Finding]:
        """Return KVPressure and EngineHealthy."""
        words = self.evidence[0].text
        if self.lever is not None:
            words = f"{words}. {self.lever.text}"
        by_status = REASONS[ConditionType.KV_PRESSURE]
        pressure = next(status for status in by_status if self.verdict in by_status[status])
        healthy = {
            Reason.ENGINE_STUCK: Finding(Status.FALSE, Reason.ENGINE_STUCK, words),
            Reason.NO_VERDICT: Finding(Status.UNKNOWN, Reason.NO_VERDICT, words),
        }.get(self.verdict, Finding(Status.TRUE, Reason.HEALTHY, _PROGRESS))
        return {
            ConditionType.KV_PRESSURE: Finding(pressure, self.verdict, words),
            ConditionType.ENGINE_HEALTHY: healthy,
        }


_WORDS: Final = {str(reason): reason for reason in Reason}
_PROGRESS: Final = "engines that have work make progress"
NO_ENGINE: Final = no_verdict("no engine serves, so there is nothing to judge by")


def said_before(pool: Json) -> Said | None:
    """Return what the pool says now; None where it says nothing, or nothing that we wrote."""
    try:
        status = DiagnosisStatus.model_validate(pool.get("status", {}).get("diagnosis"))
        evidence = tuple(Evidence(_WORDS[e.name], e.message) for e in status.evidence)
        lever = status.lever
        return Said(
            _WORDS[status.verdict],
            evidence,
            Advice(lever.name, lever.description, _patch(lever.patch)) if lever else None,
            status.since,
            lever.generation if lever else None,
        )
    except (ValidationError, KeyError, ValueError):
        return None


def _patch(text: str | None) -> Any:
    return None if text is None else json.loads(text)


def courses_of(said: Said | None) -> Courses:
    """Return where a new process goes on from."""
    return resumed(said.evidence) if said is not None else {}


def told(
    pool: Json, diagnosis: Diagnosis, lever: Callable[[], Advice | None] = lambda: None
) -> Said:
    """Return what the pool is to say: what it says already where that stands, else the diagnosis.

    Numbers alone change nothing; why there is no verdict is no number.

    Args:
        pool: as it is now, with its status.
        diagnosis: of this pass.
        lever: what helps against it; asked only where the verdict is news.
    """
    before = said_before(pool)
    if before is not None and before.evidence and before.verdict is diagnosis.verdict:
        stands = before.verdict is not Reason.NO_VERDICT
        if stands or before.evidence == Said.of(diagnosis).evidence:
            return before
    return Said.of(diagnosis, lever())
