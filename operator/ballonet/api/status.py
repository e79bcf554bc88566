"""The status of an InferencePool: what was planned, what runs, what was measured."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field

from ballonet.api.conditions import Status
from ballonet.api.model import ATOMIC, Model, integer, list_map, text

# Bounds that whoever fills the status keeps. Each pass reads it, and each change is sent to all who
# watch: as a whole it stays smaller than its parts could add up to.
MAX_STATUS_BYTES: Final = 16 * 1024
MAX_MESSAGE_CHARACTERS: Final = 1024
MAX_ROLES: Final = 16
MAX_REMEDIES: Final = 8
MAX_DESCRIPTION_CHARACTERS: Final = 512
MAX_PATCH_CHARACTERS: Final = 1024
MAX_EVIDENCE: Final = 16
# Whole also where somebody reads JSON's numbers as floats.
MAX_INTEGER: Final = 2**53

Int32 = Annotated[int, integer(0, 2**31 - 1)]
Int64 = Annotated[int, integer(0, MAX_INTEGER, bits=64)]
Word = Annotated[str, text(63, low=0)]


def cut(text: str, length: int) -> str:
    """Return a text, cut short where it is longer."""
    return text if len(text) <= length else text[: length - 1] + "…"


def timestamp(at: datetime) -> str:
    """Return an instant as Kubernetes writes it: UTC, in whole seconds."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Source(StrEnum):
    """Where a number comes from."""

    GIVEN = "Given"
    PREDICTED = "Predicted"
    RECEIPT = "Receipt"
    MEASURED = "Measured"


class Verdict(StrEnum):
    """Whether the topologies fit the budget."""

    FITS = "Fits"
    DOES_NOT_FIT = "DoesNotFit"
    UNKNOWN = "Unknown"


class EnforcedBy(StrEnum):
    """Who holds sequences of a role to their ceiling."""

    SERVER = "Server"
    RUNTIME = "Runtime"


class ConditionStatus(Model):
    """One condition, as in the Kubernetes API conventions."""

    type: Annotated[str, text(63, r"^[A-Z][A-Za-z0-9]*$")] = Field(
        description="Type of the condition."
    )
    status: Status = Field(description="True, False or Unknown.")
    reason: Annotated[str, text(63, r"^[A-Z][A-Za-z0-9]*$")] = Field(
        description="Reason in one word."
    )
    message: Annotated[str, text(MAX_MESSAGE_CHARACTERS, low=0)] = Field(
        description="What a person should know."
    )
    last_transition_time: Annotated[
        str, text(64, low=0), Field(json_schema_extra={"format": "date-time"})
    ] = Field(description="When status changed last.")
    observed_generation: Int64 = Field(description="Generation of the spec that this speaks of.")


class PredictedBudget(Model):
    """The budget of one engine as planned: an interval unless the KV memory was given."""

    kv_cache_low_bytes: Int64 | None = Field(None, description="KV memory of a rank, low end.")
    kv_cache_high_bytes: Int64 | None = Field(None, description="KV memory of a rank, high end.")
    low_blocks: Int64 | None = Field(None, description="KV blocks of an engine, low end.")
    high_blocks: Int64 | None = Field(None, description="KV blocks of an engine, high end.")
    low_tokens: Int64 | None = Field(
        None,
        description="Tokens of an engine's sequences at the pool's ceiling, low end, as the engine "
        "prints them: the null block counts, and nothing is taken off for safety.",
    )
    high_tokens: Int64 | None = Field(None, description="The same, high end.")
    block_tokens: Int32 | None = Field(None, description="Tokens a block.")
    blocks_per_sequence: Int64 | None = Field(
        None, description="Blocks of one sequence at the pool's ceiling."
    )
    max_concurrent: Int64 | None = Field(
        None, description="Sequences at the pool's ceiling that surely fit one engine at once."
    )


class MeasuredBudget(Model):
    """The budget of one engine as the running engines report it; the lowest of them."""

    engines: Int32 = Field(description="Engines that reported.")
    blocks: Int64 = Field(description="KV blocks of an engine.")
    block_tokens: Int32 | None = Field(None, description="Tokens a block.")
    kv_cache_bytes: Int64 | None = Field(
        None,
        description="KV memory of a rank: as reported, or the blocks times the bytes of one.",
    )
    tokens: Int64 | None = Field(
        None,
        description="Tokens of an engine's sequences at the serving ceiling, as it prints them.",
    )
    blocks_per_sequence: Int64 | None = Field(
        None, description="Blocks of one sequence at the serving ceiling."
    )
    max_concurrent: Int64 | None = Field(
        None, description="Sequences at the serving ceiling that fit one engine at once."
    )


class ReceiptUse(StrEnum):
    """Whether plans begin from a receipt."""

    USABLE = "Usable"
    OUTSIDE_PREDICTION = "OutsidePrediction"


class ReceiptStatus(Model):
    """What starts of the serving configuration measured, those of other pools among them."""

    boots: Int32 = Field(description="Starts of engines that were counted.")
    kv_cache_low_bytes: Int64 = Field(description="Least KV memory of a rank.")
    kv_cache_high_bytes: Int64 = Field(description="Most KV memory of a rank.")
    low_blocks: Int64 = Field(description="Fewest KV blocks of an engine.")
    high_blocks: Int64 = Field(description="Most KV blocks of an engine.")
    use: ReceiptUse = Field(
        description="Usable: the next plan of this configuration begins from it. "
        "OutsidePrediction: it is more or less than was thought possible, and is only shown."
    )


class BudgetStatus(Model):
    """KV block budget of one engine."""

    source: Source | None = Field(None, description="Where the number that decides comes from.")
    predicted: PredictedBudget | None = Field(None, description="As planned.")
    measured: MeasuredBudget | None = Field(None, description="As reported by running engines.")
    receipt: ReceiptStatus | None = Field(
        None, description="As measured at the starts of engines of this configuration."
    )
    error_per_mille: Annotated[int, integer(-1_000_000, 1_000_000)] | None = Field(
        None,
        description="Planned low end less measured blocks, in thousandths of measured; absent "
        "where the memory was given.",
    )


class RoleStatus(Model):
    """What one role takes."""

    topology: Word = Field(description="Name of the topology.")
    role: Word = Field(description="Name of the role.")
    max_tokens: Int64 = Field(description="Ceiling of the role.")
    blocks: Int64 | None = Field(None, description="Blocks of one sequence at that ceiling.")
    enforced_by: EnforcedBy = Field(
        description="Server where the engine's own limit is the role's ceiling, else Runtime."
    )


class TopologyStatus(Model):
    """Need and budget, for one engine."""

    required_slots: Int64 | None = Field(None, description="Sequences needed at once.")
    need_blocks: Int64 | None = Field(None, description="Blocks that these need.")
    available_slots: Int64 | None = Field(None, description="Sequences that fit at once.")
    budget_blocks: Int64 | None = Field(None, description="Blocks that are promised.")
    verdict: Verdict = Field(Verdict.UNKNOWN, description="Whether the topologies fit.")
    roles: list[RoleStatus] = Field(
        default_factory=list,
        max_length=MAX_ROLES,
        json_schema_extra=list_map("topology", "role"),
        description=f"What each role takes; the first {MAX_ROLES}.",
    )


class RemedyStatus(Model):
    """One change that makes the plan fit."""

    name: Annotated[str, text(63, r"^[A-Z][A-Za-z0-9]*$")] = Field(
        description="Kind of the remedy."
    )
    description: Annotated[str, text(MAX_DESCRIPTION_CHARACTERS, low=0)] = Field(
        description="What it changes, what it costs, and the plan that follows."
    )
    patch: Annotated[str, text(MAX_PATCH_CHARACTERS, low=0)] = Field(
        description="JSON merge patch for the pool."
    )
    generation: Int64 = Field(description="Generation of the spec that the patch is meant for.")


class EngineStatus(Model):
    """What was really written into the pods."""

    version: Word = Field(description="Version of the engine that was planned for.")
    slots: Int64 | None = Field(
        None, description="Sequences that the engine runs at once: the number in every gate."
    )
    host_cache_bytes: Int64 | None = Field(
        None, description="Host memory of an engine for KV blocks; absent without offload."
    )
    args: list[Annotated[str, text(256, low=0)]] = Field(
        default_factory=list,
        max_length=64,
        json_schema_extra=ATOMIC,
        description="Arguments that Ballonet wrote.",
    )


class OffloadStatus(Model):
    """How host memory and the caches beside it are used; numbers alone write no status.

    Those of this moment are metrics: ballonet_pool_host_cache_bytes and
    ballonet_pool_prefix_hit_tokens.
    """

    read_at: Annotated[str, text(64, low=0), Field(json_schema_extra={"format": "date-time"})] = (
        Field(description="When the engines said so.")
    )
    engines: Int32 = Field(description="Engines that these numbers are of.")
    host_bytes_in_use: Int64 | None = Field(
        None,
        description="KV data in host memory over these engines: what went there, at most the "
        "hostCacheBytes of each.",
    )
    queried_tokens: Int64 | None = Field(
        None, description="Prompt tokens that were looked for since the engines started."
    )
    device_hit_tokens: Int64 | None = Field(
        None, description="Those of them that the prefix cache on the device had."
    )
    host_hit_tokens: Int64 | None = Field(
        None, description="Those of them that host memory had, and not the device."
    )
    external_hit_tokens: Int64 | None = Field(
        None, description="Those of them that came from further away."
    )


class EvidenceStatus(Model):
    """One finding with its numbers, as they were when the verdict came."""

    name: Annotated[str, text(63, r"^[A-Z][A-Za-z0-9]*$")] = Field(description="Finding.")
    message: Annotated[str, text(MAX_DESCRIPTION_CHARACTERS, low=0)] = Field(
        description="Numbers that it rests on."
    )


class LeverStatus(Model):
    """What would help."""

    name: Annotated[str, text(63, r"^[A-Z][A-Za-z0-9]*$")] = Field(description="Kind of the lever.")
    description: Annotated[str, text(MAX_DESCRIPTION_CHARACTERS, low=0)] = Field(
        description="What to do, and why it helps."
    )
    patch: Annotated[str, text(MAX_PATCH_CHARACTERS, low=0)] | None = Field(
        None, description="JSON merge patch for the pool, where one edit of it does that."
    )
    generation: Int64 = Field(description="Generation of the spec that the patch is meant for.")


class DiagnosisStatus(Model):
    """What live numbers say; written when the verdict changes, and frozen until it changes."""

    verdict: Annotated[str, text(63, r"^[A-Z][A-Za-z0-9]*$")] = Field(
        description="First finding of the chain in docs/diagnosis.md that holds."
    )
    since: Annotated[str, text(64, low=0), Field(json_schema_extra={"format": "date-time"})] = (
        Field(description="When the verdict came.")
    )
    evidence: list[EvidenceStatus] = Field(
        default_factory=list,
        max_length=MAX_EVIDENCE,
        json_schema_extra=list_map("name"),
        description="All findings that held when the verdict came, the verdict's first.",
    )
    lever: LeverStatus | None = Field(None, description="What would help.")


class InferencePoolStatus(Model):
    """What was planned, what runs, what was measured."""

    observed_generation: Int64 | None = Field(None, description="Generation that was looked at.")
    installation: Annotated[str, text(320, low=0)] | None = Field(
        None,
        description="Installation of the operator that looks after the pool: namespace/lease. "
        "Another installation leaves the pool alone while that lease is renewed.",
    )
    conditions: list[ConditionStatus] = Field(
        default_factory=list,
        max_length=32,
        json_schema_extra=list_map("type"),
        description="Conditions; docs/conditions.md lists types and reasons.",
    )
    replicas: Int32 | None = Field(None, description="Engine pods that exist.")
    ready_replicas: Int32 | None = Field(None, description="Engine pods that serve.")
    selector: Annotated[str, text(256, low=0)] | None = Field(
        None, description="Label selector of the engine pods, for the scale subresource."
    )
    gpus_per_pod: Int32 | None = Field(None, description="Devices that one pod asks for.")
    budget: BudgetStatus | None = Field(None, description="KV block budget of one engine.")
    topology: TopologyStatus | None = Field(None, description="Need and budget of one engine.")
    remedies: list[RemedyStatus] = Field(
        default_factory=list,
        max_length=MAX_REMEDIES,
        json_schema_extra=list_map("name"),
        description="Changes that make the topologies fit, cheapest first.",
    )
    engine: EngineStatus | None = Field(None, description="What was written into the pods.")
    offload: OffloadStatus | None = Field(
        None,
        description="How host memory and the caches beside it are used, as read when the status "
        "was last written for another reason; absent without offload.",
    )
    diagnosis: DiagnosisStatus | None = Field(None, description="What live numbers say.")
