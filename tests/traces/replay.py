"""Play observations to the diagnosis as the operator would see them, one after the other."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ballonet.api.conditions import Reason
from ballonet.diagnosis.diagnose import Courses, Diagnosis, diagnose
from ballonet.diagnosis.facts import Facts
from ballonet.diagnosis.observation import Observation


@dataclass
class Replay:
    """A pool whose engines are watched.

    Attributes:
        verdicts: each verdict with the seconds since the first sample at which it came.
    """

    facts: Facts
    verdicts: list[tuple[int, Reason]] = field(default_factory=list)
    last: Diagnosis | None = None
    pods: dict[str, list[Observation]] = field(default_factory=dict)
    courses: Courses = field(default_factory=dict)

    def see(self, pod: str, sample: Observation) -> Diagnosis:
        """Add a sample of a pod, and diagnose."""
        self.pods.setdefault(pod, []).append(sample)
        earlier = self.last.verdict if self.last is not None else Reason.NO_VERDICT
        self.last = diagnose(self.pods, self.facts, self.courses, earlier=earlier)
        self.courses = self.last.courses
        if not self.verdicts or self.verdicts[-1][1] is not self.last.verdict:
            began = min(seen[0].at for seen in self.pods.values())
            self.verdicts.append((round((sample.at - began).total_seconds()), self.last.verdict))
        return self.last

    @property
    def words(self) -> list[str]:
        """The verdicts in their order."""
        return [str(verdict) for _, verdict in self.verdicts]


def replay(samples: Iterable[tuple[str, Observation]], facts: Facts) -> Replay:
    """Play samples to the diagnosis."""
    played = Replay(facts)
    for pod, sample in samples:
        played.see(pod, sample)
    return played
