"""The InferencePool resource, version v1alpha1, as pydantic models.

The models are the single source of the CRD (``make generate``): bounds, defaults, descriptions and
CEL rules stand here once. The API server enforces them; parsing here is lenient (unknown fields are
ignored) so that a newer CRD never crashes an older operator.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from pydantic.alias_generators import to_camel

from ballonet.api.quantity import MemoryQuantity

GROUP: Final = "ballonet.io"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "InferencePool"
PLURAL: Final = "inferencepools"
SINGULAR: Final = "inferencepool"
SHORT_NAMES: Final = ("kvpool",)

MAX_CONFIG_CHARACTERS: Final = 65_536
MAX_TOKENS: Final = 16_777_216
MAX_COUNT: Final = 10_000

NAME_PATTERN: Final = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
# A DNS-1123 subdomain: the names of ConfigMaps and PersistentVolumeClaims.
OBJECT_NAME_PATTERN: Final = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"


class Model(BaseModel):
    """Base of every part of the resource: immutable, camelCase on the wire."""

    model_config = ConfigDict(
        frozen=True, extra="ignore", alias_generator=to_camel, populate_by_name=True
    )


Name = Annotated[
    str, StringConstraints(min_length=1, max_length=63, pattern=NAME_PATTERN)
]
ObjectName = Annotated[
    str, StringConstraints(min_length=1, max_length=253, pattern=OBJECT_NAME_PATTERN)
]
Tokens = Annotated[int, Field(ge=1, le=MAX_TOKENS, json_schema_extra={"format": "int64"})]
Count = Annotated[int, Field(ge=1, le=MAX_COUNT, json_schema_extra={"format": "int32"})]


def rules(*pairs: tuple[str, str]) -> dict[str, Any]:
    """Return the schema extra that carries CEL rules as (rule, message) pairs."""
    return {
        "x-kubernetes-validations": [{"rule": rule, "message": message} for rule, message in pairs]
    }


def list_map(*keys: str) -> dict[str, Any]:
    """Return the schema extra of a list that is merged by the given keys."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}


ATOMIC: Final[dict[str, Any]] = {"x-kubernetes-list-type": "atomic"}
SET: Final[dict[str, Any]] = {"x-kubernetes-list-type": "set"}


# --- enums ---------------------------------------------------------------------------------------


class EngineType(StrEnum):
    VLLM = "VLLM"


class KvCacheType(StrEnum):
    AUTO = "Auto"
    BF16 = "BF16"
    FP8 = "FP8"


class PrefixCaching(StrEnum):
    AUTO = "Auto"
    ENABLED = "Enabled"
    DISABLED = "Disabled"


class PrefixCredit(StrEnum):
    NONE = "None"
    DECLARED = "Declared"


class HoldsSlot(StrEnum):
    ALWAYS = "Always"
    NEVER = "Never"


class WhenUnfit(StrEnum):
    REFUSE = "Refuse"
    WARN = "Warn"


class Queue(StrEnum):
    UNBOUNDED = "Unbounded"
    BOUNDED = "Bounded"


class RolloutStrategy(StrEnum):
    ROLLING_UPDATE = "RollingUpdate"
    RECREATE = "Recreate"


# --- spec ----------------------------------------------------------------------------------------


class ConfigMapKeyRef(Model):
    """A key of a ConfigMap in the pool's namespace."""

    name: ObjectName = Field(description="Name of the ConfigMap in the pool's namespace.")
    key: Annotated[
        str, StringConstraints(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")
    ] = Field(description="Key that holds the text of the model's config.json.")


class ModelConfig(Model):
    """Where the model's own config.json is read from."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                "has(self.inline) != has(self.configMapRef)",
                "give exactly one of inline and configMapRef",
            )
        )
    )

    inline: Annotated[
        str, StringConstraints(min_length=1, max_length=MAX_CONFIG_CHARACTERS)
    ] | None = Field(None, description="The text of config.json itself.")
    config_map_ref: ConfigMapKeyRef | None = Field(
        None,
        description="ConfigMap key that holds the text of config.json. Read at each pass; a change "
        "is planned and reported at once and applied with the next spec change.",
    )


class Weights(Model):
    """What is known about the model's weights."""

    memory: MemoryQuantity = Field(
        description="Bytes of all weights as loaded, over all ranks, for models that the catalog "
        "does not know."
    )


class ModelClaim(Model):
    """A PersistentVolumeClaim that holds the model's files."""

    name: ObjectName = Field(
        description="Name of the PersistentVolumeClaim in the pool's namespace; mounted read-only "
        "at /model."
    )
    path: Annotated[
        str,
        StringConstraints(
            min_length=1, max_length=255, pattern=r"^[A-Za-z0-9_][-A-Za-z0-9._]*(/[A-Za-z0-9_][-A-Za-z0-9._]*)*$"
        ),
    ] | None = Field(
        None, description="Folder of the model inside the volume; absent means its root."
    )


class ModelSpec(Model):
    """The model that the pool serves."""

    name: Annotated[
        str, StringConstraints(min_length=1, max_length=253, pattern=r"^[A-Za-z0-9][-A-Za-z0-9._/]*$")
    ] = Field(
        description="Hub name of the model. Its geometry comes from the catalog by this name, or "
        "from config. Without claim the engine loads the model by this name."
    )
    config: ModelConfig | None = Field(
        None, description="The model's own config.json; it goes before the catalog."
    )
    weights: Weights | None = Field(
        None, description="Size of the weights; it goes before the catalog."
    )
    served_names: list[
        Annotated[str, StringConstraints(min_length=1, max_length=253, pattern=r"^[^\s,]+$")]
    ] = Field(
        default_factory=list,
        max_length=16,
        json_schema_extra=SET,
        description="Names by which clients ask for the model; empty means name.",
    )
    revision: Annotated[
        str, StringConstraints(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][-A-Za-z0-9._/]*$")
    ] | None = Field(None, description="Hub revision to load.")
    claim: ModelClaim | None = Field(
        None, description="Volume that holds the model's files; absent means the engine fetches it."
    )


class EnvVar(Model):
    """One plain environment variable. Secrets belong into podTemplate as references."""

    name: Annotated[
        str, StringConstraints(min_length=1, max_length=253, pattern=r"^[A-Za-z_][A-Za-z0-9_.-]*$")
    ] = Field(description="Name of the variable; variables that Ballonet owns are refused.")
    value: Annotated[str, StringConstraints(max_length=4096)] = Field(
        "", description="Value of the variable."
    )


class EngineSpec(Model):
    """The inference engine that runs in the pods."""

    type: EngineType = Field(EngineType.VLLM, description="Engine.")
    version: Annotated[
        str,
        StringConstraints(
            min_length=1, max_length=32, pattern=r"^[0-9]+\.[0-9]+\.[0-9]+([.+-]?[0-9A-Za-z.]+)?$"
        ),
    ] = Field(description="Version of the engine in the image, for example 0.32.0.")
    image: Annotated[
        str, StringConstraints(min_length=1, max_length=512, pattern=r"^[^\s]+$")
    ] | None = Field(
        None, description="Container image; absent means the engine's public image of that version."
    )
    args: list[Annotated[str, StringConstraints(min_length=1, max_length=4096)]] = Field(
        default_factory=list,
        max_length=64,
        json_schema_extra=ATOMIC,
        description="Further arguments of the engine. Flags that Ballonet owns are refused in every "
        "spelling; flags that change layout or memory and are not planned for make the plan Unknown.",
    )
    env: list[EnvVar] = Field(
        default_factory=list,
        max_length=64,
        json_schema_extra=list_map("name"),
        description="Further environment variables of the engine.",
    )
    pod_template: dict[str, Any] | None = Field(
        None,
        description="Partial pod template, merged into the rendered one by name of container, "
        "volume and variable; what Ballonet owns wins.",
        json_schema_extra={"x-kubernetes-preserve-unknown-fields": True},
    )
    startup_timeout_seconds: Annotated[
        int, Field(ge=30, le=21_600, json_schema_extra={"format": "int32"})
    ] = Field(1800, description="Longest time from container start to a served model, in seconds.")


class AcceleratorSpec(Model):
    """The device that one rank of the engine runs on."""

    type: Annotated[
        str, StringConstraints(min_length=1, max_length=63, pattern=r"^[A-Za-z0-9][-A-Za-z0-9._]*$")
    ] = Field(description="Device by catalog name, for example H100-80GB, or CPU.")
    memory_percent: Annotated[
        int, Field(ge=10, le=98, json_schema_extra={"format": "int32"})
    ] = Field(90, description="Share of the device memory that the engine may use.")
    resource_name: Annotated[
        str,
        StringConstraints(
            min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9._]*[A-Za-z0-9])?$"
        ),
    ] | None = Field(
        None, description="Kubernetes resource of the device; absent means the catalog's."
    )
    node_selector: dict[str, Annotated[str, StringConstraints(max_length=63)]] = Field(
        default_factory=dict,
        max_length=16,
        description="Node labels that the pods need.",
    )


class ParallelismSpec(Model):
    """How one engine is spread over devices. Devices a pod = tensor x pipeline."""

    tensor: Annotated[int, Field(ge=1, le=64, json_schema_extra={"format": "int32"})] = Field(
        1, description="Tensor parallel size."
    )
    pipeline: Annotated[int, Field(ge=1, le=64, json_schema_extra={"format": "int32"})] = Field(
        1, description="Pipeline parallel size."
    )


class SequenceSpec(Model):
    """Limits of one sequence."""

    max_tokens: Tokens = Field(
        description="Ceiling: the most tokens (prompt and output) that one sequence may hold."
    )
    kv_cache_type: KvCacheType = Field(
        KvCacheType.AUTO, description="Number format of the KV cache; Auto is the model's own."
    )
    prefix_caching: PrefixCaching = Field(
        PrefixCaching.AUTO, description="Prefix caching; Auto is on where the engine supports it."
    )
    block_tokens: Annotated[
        int, Field(ge=1, le=4096, json_schema_extra={"format": "int32"})
    ] | None = Field(
        None, description="Tokens a block; absent means 16, on the CPU backend 32."
    )
    max_batched_tokens: Annotated[
        int, Field(ge=1, le=1_048_576, json_schema_extra={"format": "int32"})
    ] | None = Field(
        None, description="Most tokens in one engine step; absent means chosen by device."
    )


class SharedPrefix(Model):
    """A prompt beginning that several roles have in common."""

    name: Name = Field(description="Name that roles refer to.")
    tokens: Tokens = Field(description="Length of the prefix.")
    credit: PrefixCredit = Field(
        PrefixCredit.NONE,
        description="Declared counts the prefix once per engine instead of once per sequence: a "
        "promise that every sharer starts with the same tokens.",
    )


class Role(Model):
    """One kind of sequence in an agent run."""

    name: Name = Field(description="Name of the role, for example planner.")
    count: Count = Field(1, description="Sequences of this role at once in one run.")
    max_tokens: Tokens | None = Field(
        None, description="Ceiling of this role; absent means the pool's."
    )
    shared_prefix: Name | None = Field(
        None, description="Shared prefix that sequences of this role start with."
    )
    holds_slot_while_waiting: HoldsSlot = Field(
        HoldsSlot.ALWAYS,
        description="Always: a sequence of this role keeps its slot while it waits for the others. "
        "Never: it lets go of it, so it and the others are not held at the same time.",
    )


class Topology(Model):
    """The shape of one kind of agent run."""

    name: Name = Field(description="Name of the topology.")
    concurrent_runs: Count = Field(
        1, description="Runs at once over all replicas; a run stays on one engine."
    )
    roles: list[Role] = Field(
        min_length=1,
        max_length=8,
        json_schema_extra=list_map("name"),
        description="Roles of one run.",
    )


class BudgetSpec(Model):
    """How the KV block budget is worked out."""

    safety_percent: Annotated[
        int, Field(ge=1, le=100, json_schema_extra={"format": "int32"})
    ] = Field(90, description="Share of the usable blocks that is promised.")
    kv_cache_memory_per_rank: MemoryQuantity | None = Field(
        None,
        description="Exact KV cache memory given to each rank; absent means predicted from the "
        "device. It bypasses the engine's own memory check.",
    )


class AdmissionSpec(Model):
    """What happens to requests beyond the slots."""

    queue: Queue = Field(
        Queue.UNBOUNDED,
        description="Bounded refuses requests that would wait behind twice the required slots "
        "(vLLM 0.29 or later).",
    )


class RolloutSpec(Model):
    """How pods are replaced."""

    drain_seconds: Annotated[
        int, Field(ge=0, le=3600, json_schema_extra={"format": "int32"})
    ] = Field(60, description="Longest time a pod may take to finish its requests.")
    strategy: RolloutStrategy = Field(
        RolloutStrategy.ROLLING_UPDATE,
        description="RollingUpdate replaces one pod at a time without a further device; Recreate "
        "stops all first.",
    )


class InferencePoolSpec(Model):
    """What the user wants."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                "!has(self.topologies) || self.topologies.all(t, t.roles.all(r, !has(r.maxTokens) "
                "|| r.maxTokens <= self.sequence.maxTokens))",
                "a role's maxTokens must not exceed sequence.maxTokens",
            ),
            (
                "!has(self.topologies) || self.topologies.all(t, t.roles.all(r, "
                "!has(r.sharedPrefix) || (has(self.sharedPrefixes) && "
                "self.sharedPrefixes.exists(p, p.name == r.sharedPrefix))))",
                "a role's sharedPrefix must be the name of one of sharedPrefixes",
            ),
            (
                "!has(self.sharedPrefixes) || self.sharedPrefixes.all(p, p.tokens <= "
                "self.sequence.maxTokens)",
                "a shared prefix must not be longer than sequence.maxTokens",
            ),
            (
                "self.accelerator.type != 'CPU' || has(self.budget.kvCacheMemoryPerRank)",
                "accelerator.type CPU needs budget.kvCacheMemoryPerRank",
            ),
            (
                "self.accelerator.type != 'CPU' || has(self.engine.image)",
                "accelerator.type CPU needs engine.image",
            ),
        )
    )

    replicas: Annotated[int, Field(ge=0, le=1000, json_schema_extra={"format": "int32"})] = Field(
        1, description="Engine pods; the scale subresource may own it."
    )
    model: ModelSpec = Field(description="The model that the pool serves.")
    engine: EngineSpec = Field(description="The inference engine that runs in the pods.")
    accelerator: AcceleratorSpec = Field(description="The device that one rank runs on.")
    parallelism: ParallelismSpec = Field(
        default_factory=ParallelismSpec, description="How one engine is spread over devices."
    )
    sequence: SequenceSpec = Field(description="Limits of one sequence.")
    shared_prefixes: list[SharedPrefix] = Field(
        default_factory=list,
        max_length=8,
        json_schema_extra=list_map("name"),
        description="Prompt beginnings that several roles have in common.",
    )
    topologies: list[Topology] = Field(
        default_factory=list,
        max_length=8,
        json_schema_extra=list_map("name"),
        description="Shapes of agent runs; all of them may run at the same time.",
    )
    reserved_slots: Annotated[
        int, Field(ge=0, le=MAX_COUNT, json_schema_extra={"format": "int32"})
    ] = Field(0, description="Slots of each engine kept for traffic that is no agent run.")
    when_unfit: WhenUnfit = Field(
        WhenUnfit.REFUSE,
        description="Refuse starts no pods for topologies that do not fit; Warn starts them with "
        "the number of sequences that fits.",
    )
    budget: BudgetSpec = Field(
        default_factory=BudgetSpec, description="How the KV block budget is worked out."
    )
    admission: AdmissionSpec = Field(
        default_factory=AdmissionSpec, description="What happens to requests beyond the slots."
    )
    rollout: RolloutSpec = Field(
        default_factory=RolloutSpec, description="How pods are replaced."
    )
