"""The InferencePool resource, version v1alpha1, as pydantic models.

The models are the single source of the CRD (``make generate``): bounds, defaults, descriptions and
rules stand here once. The API server enforces them, and parsing does where there is no API server.
Parsing ignores unknown fields, so that a newer CRD never crashes an older operator.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import AfterValidator, Field

from ballonet.api.model import ATOMIC, SET, Model, Problem, Rule, integer, list_map, text
from ballonet.api.quantity import MemoryQuantity
from ballonet.api.quoting import quoted

GROUP: Final = "ballonet.io"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "InferencePool"
PLURAL: Final = "inferencepools"
SINGULAR: Final = "inferencepool"
SHORT_NAMES: Final = ("kvpool",)
CATEGORIES: Final = ("ballonet",)

MAX_CONFIG_CHARACTERS: Final = 65_536
MAX_TOKENS: Final = 16_777_216
MAX_COUNT: Final = 10_000
MAX_REPLICAS: Final = 1000
# All topologies together: it keeps every sum of slots and blocks inside its integer in status.
MAX_SEQUENCES: Final = 1_000_000
MAX_NAME_CHARACTERS: Final = 63
# What is written out again (the record of what was applied) has to be walked.
MAX_TEMPLATE_LEVELS: Final = 100

NAME_PATTERN: Final = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
# A DNS-1123 subdomain: the names of ConfigMaps and PersistentVolumeClaims.
OBJECT_NAME_PATTERN: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
LABEL_KEY_PATTERN: Final = (
    r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
)
# An argument of its own after --served-model-name: no flag, no reference, nothing that would split.
SERVED_NAME_PATTERN: Final = r"^[A-Za-z0-9][^\x00-\x20\x7f,$]*$"
IMAGE_PATTERN: Final = r"^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9])[-A-Za-z0-9._:/@+]*$"
LABEL_VALUE_PATTERN: Final = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"
KEY_PATTERN: Final = r"^[-._a-zA-Z0-9]+$"
FOLDER_PATTERN: Final = r"^[A-Za-z0-9_][-A-Za-z0-9._]*(/[A-Za-z0-9_][-A-Za-z0-9._]*)*$"
HUB_NAME_PATTERN: Final = r"^[A-Za-z0-9][-A-Za-z0-9._/]*$"
VARIABLE_PATTERN: Final = r"^[A-Za-z_][A-Za-z0-9_.-]*$"
VERSION_PATTERN: Final = r"^[0-9]+\.[0-9]+\.[0-9]+([.+-]?[0-9A-Za-z.]+)?$"
DEVICE_PATTERN: Final = r"^[A-Za-z0-9][-A-Za-z0-9._]*$"
RESOURCE_PATTERN: Final = (
    r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9._]*[A-Za-z0-9])?$"
)

# What to write instead of a text that does not match, for whoever reads no regular expressions.
FORMS: Final = {
    NAME_PATTERN: "a-z, 0-9 and -, starting with a letter, for example research-1",
    OBJECT_NAME_PATTERN: "a-z, 0-9, - and ., for example tiny-model",
    SERVED_NAME_PATTERN: "a letter or digit first, and no blank, comma or $",
    IMAGE_PATTERN: "an image reference, for example registry.example/vllm:0.32.0",
    LABEL_VALUE_PATTERN: "letters, digits, -, _ and ., starting and ending with a letter or digit",
    KEY_PATTERN: "letters, digits, -, _ and ., for example config.json",
    FOLDER_PATTERN: "a path below the volume, for example models/tiny, with neither / first nor ..",
    HUB_NAME_PATTERN: "letters, digits, -, _, . and /, for example Qwen/Qwen3-32B",
    VARIABLE_PATTERN: "a name such as HF_HOME, of letters, digits, _, - and .",
    VERSION_PATTERN: "three numbers with dots and without v, for example 0.32.0",
    DEVICE_PATTERN: "letters, digits, -, _ and . without blanks, for example H100-80GB",
    RESOURCE_PATTERN: "domain/name, for example nvidia.com/gpu",
}


_DNS_LABEL: Final = "[a-z]([-a-z0-9]{0,61}[a-z0-9])?"


def _no_label(name: str) -> Iterator[Problem]:
    if not re.fullmatch(_DNS_LABEL, name):
        yield "", f"{NAME_RULE.message}; it is {quoted(name)}"


NAME_RULE: Final = Rule(
    f"self.metadata.name.matches('^{_DNS_LABEL}$')",
    f"metadata.name must be a DNS-1035 label of at most {MAX_NAME_CHARACTERS} characters (a-z, "
    "0-9 and -, starting with a letter), because the Service of the pool carries it",
    _no_label,
)


Name = Annotated[str, text(MAX_NAME_CHARACTERS, NAME_PATTERN)]
ObjectName = Annotated[str, text(253, OBJECT_NAME_PATTERN)]
Tokens = Annotated[int, integer(1, MAX_TOKENS, bits=64)]
Count = Annotated[int, integer(1, MAX_COUNT)]


# --- enums ---------------------------------------------------------------------------------------


class EngineType(StrEnum):
    """Inference engines."""

    VLLM = "VLLM"


class KvCacheType(StrEnum):
    """Number formats of the KV cache."""

    AUTO = "Auto"
    BF16 = "BF16"
    FP8 = "FP8"


class PrefixCaching(StrEnum):
    """Whether the engine keeps the blocks of prompt beginnings."""

    AUTO = "Auto"
    ENABLED = "Enabled"
    DISABLED = "Disabled"


class PrefixCredit(StrEnum):
    """Whether a shared prefix counts once per engine."""

    NONE = "None"
    DECLARED = "Declared"


class HoldsSlot(StrEnum):
    """Whether a sequence that waits for others keeps its slot."""

    ALWAYS = "Always"
    NEVER = "Never"


class Placement(StrEnum):
    """Where the sequences of one run go."""

    STICKY = "Sticky"
    SPREAD = "Spread"


class ExpertParallel(StrEnum):
    """Whether the experts of a mixture are divided instead of each expert."""

    DISABLED = "Disabled"
    ENABLED = "Enabled"


class WhenUnfit(StrEnum):
    """What happens to a pool whose topologies do not fit."""

    REFUSE = "Refuse"
    WARN = "Warn"


class Queue(StrEnum):
    """Whether the engine's queue has an end."""

    UNBOUNDED = "Unbounded"
    BOUNDED = "Bounded"


class MetricsSourceKind(StrEnum):
    """Where live numbers of engines are read."""

    PODS = "Pods"
    PROMETHEUS = "Prometheus"


class PerSequence(StrEnum):
    """Whether the probe tells of each sequence."""

    DISABLED = "Disabled"
    ENABLED = "Enabled"


class OffloadMode(StrEnum):
    """Whether host memory keeps KV blocks that leave the device."""

    DISABLED = "Disabled"
    ENABLED = "Enabled"


class Pin(StrEnum):
    """Which measured KV memory is given to the engine."""

    NONE = "None"
    RECEIPT = "Receipt"


class RolloutStrategy(StrEnum):
    """How pods are replaced."""

    ROLLING_UPDATE = "RollingUpdate"
    RECREATE = "Recreate"


# --- spec ----------------------------------------------------------------------------------------


class ConfigMapKeyRef(Model):
    """A key of a ConfigMap in the pool's namespace."""

    name: ObjectName = Field(description="Name of the ConfigMap in the pool's namespace.")
    key: Annotated[str, text(253, KEY_PATTERN)] = Field(
        description="Key that holds the text of the model's config.json."
    )


def _not_one_source(config: ModelConfig) -> Iterator[Problem]:
    if (config.inline is None) == (config.config_map_ref is None):
        found = "neither" if config.inline is None else "both"
        yield "", f"has {found} of inline and configMapRef: give exactly one"


class ModelConfig(Model):
    """Where the model's own config.json is read from."""

    RULES = (
        Rule(
            "has(self.inline) != has(self.configMapRef)",
            "give exactly one of inline and configMapRef",
            _not_one_source,
        ),
    )

    inline: Annotated[str, text(MAX_CONFIG_CHARACTERS)] | None = Field(
        None, description="The text of config.json itself."
    )
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
    path: Annotated[str, text(255, FOLDER_PATTERN)] | None = Field(
        None, description="Folder of the model inside the volume; absent means its root."
    )


class ModelSpec(Model):
    """The model that the pool serves."""

    name: Annotated[str, text(253, HUB_NAME_PATTERN)] = Field(
        description="Hub name of the model. Its geometry comes from the catalog by this name, or "
        "from config. Without claim the engine loads the model by this name."
    )
    config: ModelConfig | None = Field(
        None, description="The model's own config.json; it goes before the catalog."
    )
    weights: Weights | None = Field(
        None, description="Size of the weights; it goes before the catalog."
    )
    served_names: list[Annotated[str, text(253, SERVED_NAME_PATTERN)]] = Field(
        default_factory=list,
        max_length=16,
        json_schema_extra=SET,
        description="Names by which clients ask for the model; empty means name. They begin with a "
        "letter or digit and hold no blank, comma or $.",
    )
    revision: Annotated[str, text(128, HUB_NAME_PATTERN)] | None = Field(
        None, description="Hub revision to load."
    )
    claim: ModelClaim | None = Field(
        None, description="Volume that holds the model's files; absent means the engine fetches it."
    )


class EnvVar(Model):
    """One plain environment variable. Secrets belong into podTemplate as references."""

    name: Annotated[str, text(253, VARIABLE_PATTERN)] = Field(
        description="Name of the variable; variables that Ballonet owns are refused."
    )
    value: Annotated[str, text(4096, low=0)] = Field("", description="Value of the variable.")


def _not_too_deep(template: dict[str, Any]) -> dict[str, Any]:
    layer: list[Any] = [template]
    for _ in range(MAX_TEMPLATE_LEVELS):
        layer = [item for value in layer for item in _items(value)]
        if not layer:
            return template
    raise ValueError(f"is nested deeper than {MAX_TEMPLATE_LEVELS} levels; no pod template is")


def _items(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


class EngineSpec(Model):
    """The inference engine that runs in the pods."""

    type: EngineType = Field(EngineType.VLLM, description="Engine.")
    version: Annotated[str, text(32, VERSION_PATTERN)] = Field(
        description="Version of the engine in the image, for example 0.32.0."
    )
    image: Annotated[str, text(512, IMAGE_PATTERN)] | None = Field(
        None, description="Container image; absent means the engine's public image of that version."
    )
    args: list[Annotated[str, text(4096)]] = Field(
        default_factory=list,
        max_length=64,
        json_schema_extra=ATOMIC,
        description="Further arguments of the engine. Flags that Ballonet owns are refused in "
        "every spelling; flags that change layout or memory and are not planned for make the plan "
        "Unknown.",
    )
    env: list[EnvVar] = Field(
        default_factory=list,
        max_length=64,
        json_schema_extra=list_map("name"),
        description="Further environment variables of the engine.",
    )
    pod_template: Annotated[dict[str, Any], AfterValidator(_not_too_deep)] | None = Field(
        None,
        description="Partial pod template, merged into the rendered one by name of container, "
        "volume and variable; what Ballonet owns wins.",
        json_schema_extra={"x-kubernetes-preserve-unknown-fields": True},
    )
    startup_timeout_seconds: Annotated[int, integer(30, 21_600)] = Field(
        1800, description="Longest time from container start to a served model, in seconds."
    )


def _no_label_keys(accelerator: AcceleratorSpec) -> Iterator[Problem]:
    for key in accelerator.node_selector:
        if not re.fullmatch(LABEL_KEY_PATTERN.removesuffix("$"), key):
            text = f"{quoted(key)} is not a label key: write for example example.com/gpu or gpu"
            yield ".nodeSelector", text


class AcceleratorSpec(Model):
    """The device that one rank of the engine runs on."""

    RULES = (
        Rule(
            f"!has(self.nodeSelector) || self.nodeSelector.all(k, "
            f"k.matches(r'{LABEL_KEY_PATTERN}'))",
            "keys of nodeSelector must be label keys, for example example.com/gpu or gpu",
            _no_label_keys,
            field=".nodeSelector",
        ),
    )

    type: Annotated[str, text(63, DEVICE_PATTERN)] = Field(
        description="Device by catalog name, for example H100-80GB, or CPU."
    )
    memory_percent: Annotated[int, integer(10, 98)] = Field(
        90, description="Share of the device memory that the engine may use."
    )
    resource_name: Annotated[str, text(253, RESOURCE_PATTERN)] | None = Field(
        None, description="Kubernetes resource of the device; absent means the catalog's."
    )
    node_selector: dict[str, Annotated[str, text(63, LABEL_VALUE_PATTERN, low=0)]] = Field(
        default_factory=dict,
        max_length=16,
        description="Node labels that the pods need.",
    )


def _undivided_tensor(parallelism: ParallelismSpec) -> Iterator[Problem]:
    tensor, context = parallelism.tensor, parallelism.decode_context
    if tensor % context:
        text = f"{context} does not divide tensor {tensor}, whose devices it uses: give a divisor"
        yield ".decodeContext", text


class ParallelismSpec(Model):
    """How a pod is spread over devices. Devices a pod = tensor x pipeline x data."""

    RULES = (
        Rule(
            # The default of the whole object is checked before its fields have theirs.
            "!has(self.tensor) || self.tensor % self.decodeContext == 0",
            "decodeContext must divide tensor, whose devices it uses",
            _undivided_tensor,
            field=".decodeContext",
        ),
    )

    tensor: Annotated[int, integer(1, 64)] = Field(1, description="Tensor parallel size.")
    pipeline: Annotated[int, integer(1, 64)] = Field(1, description="Pipeline parallel size.")
    data: Annotated[int, integer(1, 64)] = Field(
        1,
        description="Data parallel size: engines a pod. Each has its own slots and KV blocks, and "
        "the pod spreads its requests over them.",
    )
    decode_context: Annotated[int, integer(1, 64)] = Field(
        1,
        description="Decode context parallel size: ranks among those of tensor that share the KV "
        "cache of each sequence. It takes no further device.",
    )
    expert: ExpertParallel = Field(
        ExpertParallel.DISABLED,
        description="Enabled gives each rank of tensor and data whole experts of a mixture instead "
        "of a part of each.",
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
    block_tokens: Annotated[int, integer(1, 4096)] | None = Field(
        None, description="Tokens a block; absent means 16, on the CPU backend 32."
    )
    max_batched_tokens: Annotated[int, integer(1, 1_048_576)] | None = Field(
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
    compact_at_tokens: Tokens | None = Field(
        None,
        description="Tokens at which the agent compacts its context, by its own promise. With "
        "metrics.perSequence the sequences past it are counted.",
    )
    shared_prefix: Name | None = Field(
        None, description="Shared prefix that sequences of this role start with."
    )
    holds_slot_while_waiting: HoldsSlot = Field(
        HoldsSlot.ALWAYS,
        description="Always: a sequence of this role keeps its slot while it waits for the others. "
        "Never: it lets go of it, so it and the others are not held at the same time.",
    )
    starts_with: Name | None = Field(
        None,
        description="Another role of the topology that is held at the same time as this one, "
        "although one of them lets go of its slot while it waits.",
    )


def _no_other_role(topology: Topology) -> Iterator[Problem]:
    names = {role.name for role in topology.roles}
    for index, role in enumerate(topology.roles):
        if role.starts_with is not None and role.starts_with not in names - {role.name}:
            others = ", ".join(sorted(names - {role.name})) or "there is none"
            text = f"{role.starts_with} is not another role of the topology ({others})"
            yield f".roles[{index}].startsWith", text


class Topology(Model):
    """The shape of one kind of agent run."""

    RULES = (
        Rule(
            "self.roles.all(r, !has(r.startsWith) || (r.startsWith != r.name && "
            "self.roles.exists(o, o.name == r.startsWith)))",
            "a role's startsWith must be the name of another role of the topology",
            _no_other_role,
            field=".roles",
        ),
    )

    name: Name = Field(description="Name of the topology.")
    concurrent_runs: Count = Field(1, description="Runs at once over all replicas.")
    placement: Placement = Field(
        Placement.STICKY,
        description="Sticky: all sequences of a run go to one pod. Spread: they go to any engine, "
        "and a router sends each to the one that has fewest.",
    )
    roles: list[Role] = Field(
        min_length=1,
        max_length=8,
        json_schema_extra=list_map("name"),
        description="Roles of one run.",
    )


class BudgetSpec(Model):
    """How the KV block budget is worked out."""

    safety_percent: Annotated[int, integer(1, 100)] = Field(
        90, description="Share of the usable blocks that is promised."
    )
    kv_cache_memory_per_rank: MemoryQuantity | None = Field(
        None,
        description="Exact KV cache memory given to each rank; absent means predicted from the "
        "device. It bypasses the engine's own memory check.",
    )
    pin: Pin = Field(
        Pin.NONE,
        description="Receipt gives each rank the least KV memory that starts of this configuration "
        "measured, less 0.3 GiB or 1 %, so that every start has the same blocks. It goes out with "
        "the next roll-out and never causes one. kvCacheMemoryPerRank goes before it.",
    )


class AdmissionSpec(Model):
    """What happens to requests beyond the slots."""

    queue: Queue = Field(
        Queue.UNBOUNDED,
        description="Bounded refuses requests that would wait behind twice the required slots "
        "(vLLM 0.29 or later).",
    )


# Of each pod the observations of 15 minutes are surely kept (telemetry/ring.py): no look is longer.
WatchedSeconds = Annotated[int, integer(5, 900)]
Percent = Annotated[int, integer(1, 100)]


class DiagnosisSpec(Model):
    """When live numbers count as a finding; docs/diagnosis.md says which finding uses which."""

    pressure_seconds: WatchedSeconds = Field(
        60, description="How long requests must wait before that is pressure, in seconds."
    )
    trend_seconds: WatchedSeconds = Field(
        300, description="Over how long growth, hits and ended requests are looked at, in seconds."
    )
    release_seconds: Annotated[int, integer(0, 86_400)] = Field(
        120, description="How long a finding must have ended before it is dropped, in seconds."
    )
    stuck_seconds: WatchedSeconds = Field(
        30, description="How long an engine with work may stand still, in seconds."
    )
    idle_seconds: Annotated[int, integer(5, 86_400)] = Field(
        600, description="How long no request may have come before a pool is idle, in seconds."
    )
    spare_seconds: Annotated[int, integer(5, 2_592_000)] = Field(
        86_400, description="How long usage must stay low before memory is to spare, in seconds."
    )
    tight_usage_percent: Percent = Field(
        60,
        description="Usage from which memory is tight: below it requests that wait for a slot wait "
        "needlessly, and growth is no concern.",
    )
    spare_usage_percent: Percent = Field(40, description="Usage under which memory is no concern.")
    growth_percent: Annotated[int, integer(1, 1000)] = Field(
        25, description="Growth within trendSeconds that counts as growth."
    )
    prefix_hit_percent: Percent = Field(
        50, description="Share of the hits that declared prefixes would give that is a miss below."
    )
    ceiling_percent: Percent = Field(
        95, description="Share of the ceiling from which a sequence counts as at its ceiling."
    )


class PrometheusSource(Model):
    """A Prometheus that the operator knows."""

    connection: Name = Field(
        description="Name of one of the connections in the operator's settings."
    )


def _not_its_source(metrics: MetricsSpec) -> Iterator[Problem]:
    from_prometheus = metrics.source is MetricsSourceKind.PROMETHEUS
    if from_prometheus != (metrics.prometheus is not None):
        does = "needs" if from_prometheus else "takes no"
        yield ".prometheus", f"source {metrics.source} {does} prometheus.connection"


class MetricsSpec(Model):
    """Where live numbers of the engines are read, and which."""

    RULES = (
        Rule(
            # The API server tries rules on the field's default too, in which source is not yet set.
            "(has(self.source) && self.source == 'Prometheus') == has(self.prometheus)",
            "give prometheus with source Prometheus, and only then",
            _not_its_source,
            field=".prometheus",
        ),
    )

    source: MetricsSourceKind = Field(
        MetricsSourceKind.PODS,
        description="Pods: the engine pods are asked themselves. Prometheus: what has already "
        "scraped them is asked, with one query a metric for all pools of a connection.",
    )
    prometheus: PrometheusSource | None = Field(
        None, description="The Prometheus of source Prometheus."
    )
    per_sequence: PerSequence = Field(
        PerSequence.DISABLED,
        description="Enabled loads the probe into the engines, which tells how many KV blocks and "
        "tokens each sequence holds (vLLM 0.17 or later).",
    )

    @property
    def connection(self) -> str | None:
        """Name of the Prometheus connection; None where the pods are asked."""
        return None if self.prometheus is None else self.prometheus.connection


def _no_host_memory(offload: OffloadSpec) -> Iterator[Problem]:
    if offload.mode is OffloadMode.ENABLED and offload.host_memory is None:
        yield ".hostMemory", "mode Enabled needs it: give for example 64Gi"


class OffloadSpec(Model):
    """KV blocks in host memory."""

    RULES = (
        Rule(
            # The default of the whole object is checked before its fields have theirs.
            "!has(self.mode) || self.mode != 'Enabled' || has(self.hostMemory)",
            "mode Enabled needs hostMemory",
            _no_host_memory,
            field=".hostMemory",
        ),
    )

    mode: OffloadMode = Field(
        OffloadMode.DISABLED,
        description="Enabled copies KV blocks to host memory, from where a prompt that comes again "
        "is loaded instead of computed. Needs vLLM 0.11 or later, GPUs and one pipeline stage.",
    )
    host_memory: MemoryQuantity | None = Field(
        None,
        description="Host memory of each engine for KV blocks. A pod takes it once for each of its "
        "data-parallel engines; its slots stay the same.",
    )


class RolloutSpec(Model):
    """How pods are replaced."""

    drain_seconds: Annotated[int, integer(0, 3600)] = Field(
        60, description="Longest time a pod may take to finish its requests."
    )
    strategy: RolloutStrategy = Field(
        RolloutStrategy.ROLLING_UPDATE,
        description="RollingUpdate replaces one pod at a time without a further device; Recreate "
        "stops all first.",
    )


def _roles(spec: InferencePoolSpec) -> Iterator[tuple[int, int, Role]]:
    for t, topology in enumerate(spec.topologies):
        for r, role in enumerate(topology.roles):
            yield t, r, role


def _of_role(t: int, r: int, field: str) -> str:
    return f".topologies[{t}].roles[{r}].{field}"


def _prefix_tokens(spec: InferencePoolSpec) -> dict[str, int]:
    return {prefix.name: prefix.tokens for prefix in spec.shared_prefixes}


def _roles_above_ceiling(spec: InferencePoolSpec) -> Iterator[Problem]:
    ceiling = spec.sequence.max_tokens
    for t, r, role in _roles(spec):
        if role.max_tokens is not None and role.max_tokens > ceiling:
            text = f"is above spec.sequence.maxTokens {ceiling:,}: lower it or raise that"
            yield _of_role(t, r, "maxTokens"), f"{role.max_tokens:,} {text}"


def _compacted_above_ceilings(spec: InferencePoolSpec) -> Iterator[Problem]:
    for t, r, role in _roles(spec):
        ceiling = spec.ceiling_of(role)
        if role.compact_at_tokens is not None and role.compact_at_tokens > ceiling:
            text = f"is above the role's ceiling of {ceiling}: lower it or raise that"
            yield _of_role(t, r, "compactAtTokens"), f"{role.compact_at_tokens} {text}"


def _unknown_prefixes(spec: InferencePoolSpec) -> Iterator[Problem]:
    prefixes = _prefix_tokens(spec)
    known = ", ".join(prefixes) or "none is declared"
    for t, r, role in _roles(spec):
        if role.shared_prefix is not None and role.shared_prefix not in prefixes:
            text = f"{role.shared_prefix} is not one of spec.sharedPrefixes ({known})"
            yield _of_role(t, r, "sharedPrefix"), text


def _prefixes_above_roles(spec: InferencePoolSpec) -> Iterator[Problem]:
    prefixes = _prefix_tokens(spec)
    for t, r, role in _roles(spec):
        tokens = prefixes.get(role.shared_prefix or "", 0)
        if role.max_tokens is not None and tokens > role.max_tokens:
            text = f"has {tokens:,} tokens, more than the role's maxTokens {role.max_tokens:,}"
            problem = f"{role.shared_prefix} {text}: shorten it or raise that"
            yield _of_role(t, r, "sharedPrefix"), problem


def _too_many_sequences(spec: InferencePoolSpec) -> Iterator[Problem]:
    needed = spec.sequences_of_runs
    if needed > MAX_SEQUENCES:
        yield (
            ".topologies",
            f"{needed:,} sequences at once are needed together, more than {MAX_SEQUENCES:,}: lower "
            "concurrentRuns or counts",
        )


def _prefixes_above_ceiling(spec: InferencePoolSpec) -> Iterator[Problem]:
    ceiling = spec.sequence.max_tokens
    for index, prefix in enumerate(spec.shared_prefixes):
        if prefix.tokens > ceiling:
            text = f"is above spec.sequence.maxTokens {ceiling:,}: shorten it or raise that"
            yield f".sharedPrefixes[{index}].tokens", f"{prefix.tokens:,} {text}"


def _on_cpu(spec: InferencePoolSpec) -> bool:
    return spec.accelerator.type.lower() == "cpu"


def _cpu_without_memory(spec: InferencePoolSpec) -> Iterator[Problem]:
    if _on_cpu(spec) and spec.budget.kv_cache_memory_per_rank is None:
        text = "accelerator.type CPU needs it: give for example 8Gi"
        yield ".budget.kvCacheMemoryPerRank", text


def _cpu_without_image(spec: InferencePoolSpec) -> Iterator[Problem]:
    if _on_cpu(spec) and spec.engine.image is None:
        text = "accelerator.type CPU needs one, because the public image is for GPUs: name yours"
        yield ".engine.image", text


class InferencePoolSpec(Model):
    """What the user wants."""

    RULES = (
        Rule(
            "!has(self.topologies) || self.topologies.all(t, t.roles.all(r, !has(r.maxTokens) "
            "|| r.maxTokens <= self.sequence.maxTokens))",
            "a role's maxTokens must not exceed sequence.maxTokens",
            _roles_above_ceiling,
            field=".topologies",
        ),
        Rule(
            "!has(self.topologies) || self.topologies.all(t, t.roles.all(r, "
            "!has(r.compactAtTokens) || r.compactAtTokens <= "
            "(has(r.maxTokens) ? r.maxTokens : self.sequence.maxTokens)))",
            "a role's compactAtTokens must not exceed its ceiling",
            _compacted_above_ceilings,
            field=".topologies",
        ),
        Rule(
            "!has(self.topologies) || self.topologies.all(t, t.roles.all(r, "
            "!has(r.sharedPrefix) || (has(self.sharedPrefixes) && "
            "self.sharedPrefixes.exists(p, p.name == r.sharedPrefix))))",
            "a role's sharedPrefix must be the name of one of sharedPrefixes",
            _unknown_prefixes,
            field=".topologies",
        ),
        Rule(
            "!has(self.topologies) || !has(self.sharedPrefixes) || self.topologies.all(t, "
            "t.roles.all(r, !has(r.sharedPrefix) || !has(r.maxTokens) || "
            "self.sharedPrefixes.all(p, p.name != r.sharedPrefix || p.tokens <= r.maxTokens)))",
            "a role's sharedPrefix must not be longer than the role's maxTokens",
            _prefixes_above_roles,
            field=".topologies",
        ),
        Rule(
            f"!has(self.topologies) || self.topologies.map(t, t.concurrentRuns * "
            f"t.roles.map(r, r.count).sum()).sum() <= {MAX_SEQUENCES}",
            f"all topologies together must not need more than {MAX_SEQUENCES:,} sequences at once",
            _too_many_sequences,
            field=".topologies",
        ),
        Rule(
            "!has(self.sharedPrefixes) || self.sharedPrefixes.all(p, p.tokens <= "
            "self.sequence.maxTokens)",
            "a shared prefix must not be longer than sequence.maxTokens",
            _prefixes_above_ceiling,
            field=".sharedPrefixes",
        ),
        Rule(
            "self.accelerator.type.lowerAscii() != 'cpu' || has(self.budget.kvCacheMemoryPerRank)",
            "accelerator.type CPU needs budget.kvCacheMemoryPerRank",
            _cpu_without_memory,
            field=".budget.kvCacheMemoryPerRank",
        ),
        Rule(
            "self.accelerator.type.lowerAscii() != 'cpu' || has(self.engine.image)",
            "accelerator.type CPU needs engine.image, because the public image is for GPUs",
            _cpu_without_image,
            field=".engine.image",
        ),
    )

    replicas: Annotated[int, integer(0, MAX_REPLICAS)] = Field(
        1, description="Engine pods; the scale subresource may own it."
    )
    model: ModelSpec = Field(description="The model that the pool serves.")
    engine: EngineSpec = Field(description="The inference engine that runs in the pods.")
    accelerator: AcceleratorSpec = Field(description="The device that one rank runs on.")
    parallelism: ParallelismSpec = Field(
        default_factory=ParallelismSpec, description="How a pod is spread over devices."
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
    reserved_slots: Annotated[int, integer(0, MAX_COUNT)] = Field(
        0, description="Slots of each engine kept for traffic that is no agent run."
    )
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
    offload: OffloadSpec = Field(
        default_factory=OffloadSpec, description="KV blocks in host memory."
    )
    rollout: RolloutSpec = Field(default_factory=RolloutSpec, description="How pods are replaced.")
    metrics: MetricsSpec = Field(
        default_factory=MetricsSpec, description="Where live numbers of the engines are read."
    )
    diagnosis: DiagnosisSpec = Field(
        default_factory=DiagnosisSpec, description="When live numbers count as a finding."
    )

    def ceiling_of(self, role: Role) -> int:
        """Return the most tokens that a sequence of a role may hold: its own or the pool's."""
        return role.max_tokens or self.sequence.max_tokens

    @property
    def sequences_of_runs(self) -> int:
        """All sequences of all runs at once, whichever of them wait for others."""
        return sum(t.concurrent_runs * sum(r.count for r in t.roles) for t in self.topologies)
