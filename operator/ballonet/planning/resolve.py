"""From names in a spec to what they stand for: model, device, engine settings, cache layout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Final

from ballonet.api.conditions import Finding, Reason, Status
from ballonet.api.quantity import quantity_bytes
from ballonet.api.v1alpha1 import (
    ExpertParallel,
    InferencePoolSpec,
    KvCacheType,
    PrefixCaching,
    Queue,
)
from ballonet.catalog import Accelerator, Catalog, CatalogModel
from ballonet.catalog.models import LEAST_WEIGHTS_BYTES
from ballonet.engines import vllm
from ballonet.engines.base import PlannedArguments
from ballonet.engines.vllm_abilities import (
    counts_yarn_positions_as_given,
    falls_back,
    least_compute,
    takes_bf16_cache,
    tries_all_backends,
)
from ballonet.engines.vllm_kernels import LayerKind, is_read, layer_without_kernel
from ballonet.engines.vllm_models import lacks, runs_in_one_stage, versions_with
from ballonet.kv.cache_types import AUTO, PLAIN_FP8, told_type
from ballonet.kv.config import InvalidModelConfig, LayoutNotUnderstood
from ballonet.kv.geometry import ModelGeometry, parse_config
from ballonet.kv.layers import Attention
from ballonet.kv.layout import CacheLayout, cache_layout
from ballonet.kv.settings import (
    CPU,
    ROCM,
    EngineRefuses,
    EngineSettings,
    Platform,
    Speculation,
    cuda_platform,
)
from ballonet.kv.units import Interval
from ballonet.planning import offload, probe
from ballonet.planning.batch import MAX_SLOTS, max_batched_tokens, ranks_per_pod
from ballonet.planning.topology import NO_SIZES, declared_sequences, pods, pool_need

_MODELOPT: Final = "modelopt"
# Remedies are found by planning again, most often with the same model and settings.
_parse_config = lru_cache(maxsize=16)(parse_config)
_cache_layout = lru_cache(maxsize=128)(cache_layout)


class Unresolved(Exception):  # noqa: N818 - an outcome, not a fault
    """The spec names something that is unknown, unusable or not supported."""

    def __init__(self, reason: Reason, message: str) -> None:
        self.reason = reason
        self.message = message
        super().__init__(message)

    @property
    def finding(self) -> Finding:
        """The outcome as a finding of SpecResolved."""
        return Finding(Status.FALSE, self.reason, self.message)


@dataclass(frozen=True, slots=True)
class Weights:
    """Bytes of all weights over all ranks, and where the figure comes from."""

    bytes: Interval
    source: str


@dataclass(frozen=True, slots=True)
class Resolved:
    """What a spec stands for.

    Attributes:
        arguments: what the user's own arguments change.
        geometry: the model's geometry; None when its layout is not understood.
        layout: cache layout of one engine; None where ``layout_problem`` says why.
        layout_problem: why the layout is not understood, and what the user can do.
        weights: size of the weights; None when unknown.
        speculation: how tokens are drafted, if they are.
        draft_weights: size of the drafting model's weights; None without one or when unknown.
        block_tokens: tokens a block as they are written; None leaves the engine its own.
        prefix_caching: as it is written; None leaves the engine its own.
        kv_cache_type: the engine's word for the format that layers are told; None without geometry.
        unread_backend: an attention backend that is asked for and may not keep the format.
        source: where the geometry comes from.
        evidence: the same, with where the catalog has it from.
    """

    device: Accelerator
    arguments: PlannedArguments
    geometry: ModelGeometry | None
    layout: CacheLayout | None
    layout_problem: str | None
    weights: Weights | None
    speculation: Speculation | None
    draft_weights: Interval | None
    block_tokens: int | None
    prefix_caching: bool | None
    kv_cache_type: str | None
    unread_backend: str | None
    source: str
    evidence: str


def resolve(
    spec: InferencePoolSpec,
    config_text: str | None,
    arguments: PlannedArguments,
    catalog: Catalog,
) -> Resolved:
    """Return what a spec stands for.

    Raises:
        Unresolved: with the reason of SpecResolved and a message that names the field, its value
            and what to write instead.
    """
    version = spec.engine.version
    if not vllm.is_known(version):
        raise Unresolved(
            Reason.UNKNOWN_ENGINE_VERSION,
            f"spec.engine.version: {version} is not known: use a vLLM version from {vllm.OLDEST} "
            f"to {vllm.NEWEST}",
        )
    device = named_device(spec, catalog)
    _check_engine_can(spec, device)
    found = named_model(spec, config_text, catalog)
    geometry, problem = found.geometry, found.problem
    settings = _settings(spec, device, geometry, arguments)
    layout = speculation = told = unread = None
    if geometry is not None:
        told = told_type(
            settings, declared=geometry.declared_kv_cache, method=geometry.quantization
        )
        _check_engine_knows(spec, geometry, arguments)
        check_model_can(spec, _longest(geometry, version))
        _check_device_can(spec, device, _stored_as(arguments.quantization, geometry))
        unread = _check_backend(spec, device, geometry, arguments, told)
        _check_kernels(spec, device, geometry, arguments, told)
        if spec.parallelism.expert is ExpertParallel.ENABLED and not geometry.mixture:
            raise Unresolved(
                Reason.UNSUPPORTED_BY_ENGINE,
                "spec.parallelism.expert: Enabled needs a model with experts, and the engine would "
                f"not start with {spec.model.name}: use Disabled",
            )
        try:
            speculation = _speculation(arguments, geometry, catalog)
            layout = _cache_layout(geometry, replace(settings, speculation=speculation))
        except EngineRefuses as error:
            raise Unresolved(Reason.UNSUPPORTED_BY_ENGINE, str(error)) from None
        except LayoutNotUnderstood as error:
            problem = str(error)
    if (broken := offload.layout_problem(spec, layout)) is not None:
        raise Unresolved(Reason.UNSUPPORTED_BY_ENGINE, broken)
    return Resolved(
        device=device,
        arguments=arguments,
        geometry=geometry,
        layout=layout,
        layout_problem=problem,
        weights=weights_of(spec, geometry, found.entry, arguments),
        speculation=speculation,
        draft_weights=_draft_weights(arguments, speculation, catalog),
        block_tokens=settings.block_tokens,
        prefix_caching=settings.prefix_caching,
        kv_cache_type=told,
        unread_backend=unread,
        source=found.source,
        evidence=found.evidence,
    )


def named_device(spec: InferencePoolSpec, catalog: Catalog) -> Accelerator:
    """Return the device of a spec.

    Raises:
        Unresolved: the catalog has none of this name.
    """
    name = spec.accelerator.type
    device = catalog.accelerator(name)
    if device is None:
        close = catalog.similar_accelerators(name)
        instead = (
            f"did you mean {' or '.join(close)}?"
            if close
            else "ballonet catalog gpus lists what is"
        )
        raise Unresolved(
            Reason.UNKNOWN_ACCELERATOR,
            f"spec.accelerator.type: {name} is not in the catalog: {instead}",
        )
    return device


def _check_engine_can(spec: InferencePoolSpec, device: Accelerator) -> None:
    problems = []
    version = spec.engine.version
    block = spec.sequence.block_tokens
    if device.device == "cpu" and block is not None and block % CPU.attention_multiple:
        problems.append(
            f"spec.sequence.blockTokens: {block} is not a multiple of {CPU.attention_multiple}, "
            "which vLLM's CPU backend needs"
        )
    if spec.sequence.kv_cache_type is KvCacheType.FP8 and _lacks_fp8(device):
        problems.append(
            f"spec.sequence.kvCacheType: FP8 is not supported on {device.name}: use Auto or BF16"
        )
    if spec.sequence.kv_cache_type is KvCacheType.BF16 and not takes_bf16_cache(version):
        problems.append(
            f"spec.sequence.kvCacheType: BF16 needs vLLM 0.11 or later and spec.engine.version is "
            f"{version}: use Auto"
        )
    if spec.admission.queue is Queue.BOUNDED and "--max-num-queued-reqs" not in vllm.flags(version):
        problems.append(
            f"spec.admission.queue: Bounded needs vLLM 0.29 or later and spec.engine.version is "
            f"{version}: use Unbounded"
        )
    problems += offload.device_problems(spec, device)
    problems += probe.version_problems(spec)
    ranks, parallel = ranks_per_pod(spec), spec.parallelism
    if device.max_per_node is not None and ranks > device.max_per_node:
        problems.append(
            f"spec.parallelism: tensor {parallel.tensor} x pipeline {parallel.pipeline} x data "
            f"{parallel.data} = {ranks} devices a pod, and a node with {device.name} has at most "
            f"{device.max_per_node}: lower one of them"
        )
    if problems:
        raise Unresolved(Reason.UNSUPPORTED_BY_ENGINE, "; ".join(problems))


def _lacks_fp8(device: Accelerator) -> bool:
    """Return whether no version stores an FP8 KV cache on it, where no kernels were read."""
    return device.device == "gpu" and device.compute is None and not device.fp8_kv_cache


def _check_engine_knows(
    spec: InferencePoolSpec, geometry: ModelGeometry, arguments: PlannedArguments
) -> None:
    """Check that the engine's version can run the model's architecture, in so many stages.

    Raises:
        Unresolved: it surely cannot, and nothing else is asked to.
    """
    version, named = spec.engine.version, geometry.architectures
    if arguments.foreign_code:
        return
    if lacks(named, version):
        raise Unresolved(
            Reason.UNSUPPORTED_BY_ENGINE,
            f"spec.engine.version: vLLM {version} does not have the architecture "
            f"{' or '.join(named)} of {spec.model.name}, and the engine would not start: use vLLM "
            f"{versions_with(named)}",
        )
    stages = spec.parallelism.pipeline
    if stages > 1 and runs_in_one_stage(named, version):
        raise Unresolved(
            Reason.UNSUPPORTED_BY_ENGINE,
            f"spec.parallelism.pipeline: {stages}: vLLM {version} does not divide "
            f"{' or '.join(named)} of {spec.model.name} into stages, and the engine would not "
            "start: use 1",
        )


def _is_own(asked: str, geometry: ModelGeometry) -> bool:
    """Return whether a quantization that is asked for is the checkpoint's own.

    ModelOpt's name stands for any of its formats, and the checkpoint says for which.
    """
    stored = geometry.quantization
    return asked == stored or (
        stored is not None and stored.startswith(_MODELOPT) and asked.startswith(_MODELOPT)
    )


def _stored_as(asked: str | None, geometry: ModelGeometry) -> str | None:
    """Return how weights are stored; None where it is not known."""
    if asked is None or _is_own(asked, geometry):
        return geometry.quantization
    return None if asked == _MODELOPT else asked


def _check_device_can(
    spec: InferencePoolSpec, device: Accelerator, quantization: str | None
) -> None:
    """Check that the device can compute with weights that are stored so.

    Raises:
        Unresolved: it cannot.
    """
    least = least_compute(quantization, spec.engine.version)
    if least is not None and device.compute is not None and device.compute < least:
        has, needs = (f"{major}.{minor}" for major, minor in (device.compute, least))
        raise Unresolved(
            Reason.UNSUPPORTED_BY_ENGINE,
            f"spec.accelerator.type: {device.name} has compute capability {has}, and vLLM "
            f"{spec.engine.version} needs {needs} for weights stored as {quantization}: use a "
            "newer GPU, or a model that is stored otherwise",
        )


def _without_kernel(
    device: Accelerator,
    geometry: ModelGeometry,
    arguments: PlannedArguments,
    version: vllm.Version,
) -> Callable[..., LayerKind | None]:
    """Return a function from a format to the kind of layers that no kernel keeps in it there."""
    return partial(
        layer_without_kernel,
        geometry=geometry,
        vendor=device.vendor,
        compute=device.compute,
        version=version,
        text_only=arguments.text_only,
    )


def _check_backend(
    spec: InferencePoolSpec,
    device: Accelerator,
    geometry: ModelGeometry,
    arguments: PlannedArguments,
    name: str,
) -> str | None:
    """Return the attention backend that is asked for where nobody knows whether it keeps a format.

    CPU engines leave such a wish aside, and what numbers a model has by itself is taken for kept.

    Raises:
        Unresolved: it does not keep the format that layers are told, and another one does.
    """
    backend = arguments.attention_backend
    if backend is None or device.device == "cpu":
        return None
    version = vllm.parse_version(spec.engine.version)
    if not is_read(
        backend, geometry, vendor=device.vendor, compute=device.compute, version=version
    ):
        return backend if name != AUTO else None
    without = _without_kernel(device, geometry, arguments, version)
    kind = without(name, backend=backend)
    if kind is None or without(name) is not None:
        return None
    otherwise = without(AUTO, backend=backend) is None
    raise Unresolved(
        Reason.UNSUPPORTED_BY_ENGINE,
        f"spec.engine: attention backend {backend}, which is asked for, does not keep the {kind} "
        f"of {spec.model.name}{f' in {name}' if otherwise else ''} on {device.name} with vLLM "
        f"{version}, and the engine would not start: leave it out"
        f"{', or use another KV cache' if otherwise else ''}",
    )


def _check_kernels(
    spec: InferencePoolSpec,
    device: Accelerator,
    geometry: ModelGeometry,
    arguments: PlannedArguments,
    name: str,
) -> None:
    """Check that the device keeps the model's cache in the format that layers are told.

    Raises:
        Unresolved: it does not, and the engine would not start.
    """
    version = vllm.parse_version(spec.engine.version)
    forced = arguments.attention_backend is not None
    if forced and not tries_all_backends(spec.engine.version):
        return  # it may take what the one that would be chosen does not
    without = _without_kernel(device, geometry, arguments, version)
    kind = without(name, shared=spec.parallelism.decode_context > 1 and not forced)
    if kind is None and not (name in PLAIN_FP8 and _lacks_fp8(device)):
        return
    where = f" on {device.name}"
    if without(AUTO) is not None:  # no format helps
        what, where, instead = f"spec.accelerator.type: {device.name}", "", "use another device"
        if without(AUTO, version=vllm.NEWEST) is None:
            instead += ", or a newer vLLM with spec.engine.version"
    elif kind is not None and without(name) is None:
        what = f"spec.parallelism.decodeContext: {spec.parallelism.decode_context}"
        instead = "use 1" if name == AUTO else f"use 1, or a KV cache other than {name}"
    elif arguments.kv_cache_type is not None:
        what, instead = f"spec.engine.args: --kv-cache-dtype {name}", "leave it out"
    elif spec.sequence.kv_cache_type is not KvCacheType.AUTO:
        what, instead = f"spec.sequence.kvCacheType: {spec.sequence.kv_cache_type}", "use Auto"
    else:
        what = f"spec.sequence.kvCacheType: Auto, {name} as the checkpoint declares,"
        sixteen = vllm.KV_CACHE_TYPES[KvCacheType.BF16]
        instead = "use a newer device" + (", or BF16" if without(sixteen) is None else "")
    if kind is None:
        why = ""
    elif falls_back(spec.engine.version) and without(name) is not None:
        why = f": vLLM {version} would run its older engine (V0) with it, which is not planned for"
    else:
        why = f": vLLM {version} has no kernel there for {kind}, and the engine would not start"
    raise Unresolved(
        Reason.UNSUPPORTED_BY_ENGINE, f"{what} is not supported{where}{why}: {instead}"
    )


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A named model.

    Attributes:
        entry: its catalog entry, which may know its weights also where the config is given.
        source: where the geometry comes from.
        evidence: the same, with where the catalog has it from.
        geometry: None where it is not understood.
        problem: why it is not.
    """

    entry: CatalogModel | None
    source: str
    evidence: str
    geometry: ModelGeometry | None = None
    problem: str | None = None


def named_model(spec: InferencePoolSpec, config_text: str | None, catalog: Catalog) -> NamedModel:
    """Return the model; a config that is given goes before the catalog's.

    Raises:
        Unresolved: nothing is known of it, or its config cannot be used.
    """
    entry = catalog.model(spec.model.name)
    config = spec.model.config
    if config is None:
        if entry is None:
            raise _unknown_model(spec.model.name, catalog.similar_models(spec.model.name))
        where, text = f"spec.model.name: {entry.name}", None
        source, evidence = "catalog", f"catalog entry, {entry.source}"
    elif config.config_map_ref is not None:
        where, ref = "spec.model.config.configMapRef", config.config_map_ref
        if config_text is None:
            raise Unresolved(
                Reason.CONFIG_NOT_FOUND,
                f"{where}: ConfigMap {ref.name} with key {ref.key} was not found: create it",
            )
        source = evidence = f"ConfigMap {ref.name}, key {ref.key}"
        text = config_text
    else:
        where = source = evidence = "spec.model.config.inline"
        text = config.inline or ""
    try:
        if text is not None:
            return NamedModel(entry, source, evidence, _parse_config(text))
        assert entry is not None
        return NamedModel(entry, source, evidence, entry.geometry)
    except InvalidModelConfig as error:
        raise Unresolved(Reason.INVALID_MODEL_CONFIG, f"{where}: {error}") from None
    except LayoutNotUnderstood as error:
        return NamedModel(entry, source, evidence, problem=f"{where}: {error}")


def _unknown_model(name: str, close: list[str]) -> Unresolved:
    return Unresolved(
        Reason.UNKNOWN_MODEL,
        f"spec.model.name: {name} is not in the catalog"
        + (f": did you mean {' or '.join(close)}? If not, give " if close else ": give ")
        + "the text of its config.json in spec.model.config (inline or configMapRef)",
    )


def _longest(geometry: ModelGeometry, version: str) -> int | None:
    """Return the longest sequence that a version accepts for a model."""
    if geometry.yarn_position_tokens and not counts_yarn_positions_as_given(version):
        return geometry.yarn_position_tokens
    return geometry.max_position_tokens


def check_model_can(spec: InferencePoolSpec, longest: int | None) -> None:
    """Check that the model, which takes sequences of so many tokens, takes the ceiling.

    Raises:
        Unresolved: it does not.
    """
    if longest is not None and spec.sequence.max_tokens > longest:
        raise Unresolved(
            Reason.UNSUPPORTED_BY_ENGINE,
            f"spec.sequence.maxTokens: {spec.sequence.max_tokens:,} is above the {longest:,} "
            "tokens that the model's config.json allows, and the engine would not start: give at "
            f"most {longest}",
        )


_PREFIX_CACHING: Final = {PrefixCaching.ENABLED: True, PrefixCaching.DISABLED: False}


def _platform(device: Accelerator) -> Platform:
    if device.device == "cpu":
        return CPU
    if device.vendor == "amd":
        return ROCM
    return cuda_platform(None if device.compute is None else device.compute[0])


def _settings(
    spec: InferencePoolSpec,
    device: Accelerator,
    geometry: ModelGeometry | None,
    arguments: PlannedArguments,
) -> EngineSettings:
    """Return what is written to the engine and decides its layout, but for speculation.

    Where every layer keeps keys and values, block and prefix caching are written, so that plan and
    engine agree whichever kernels are chosen. Latents and states leave them to the engine: their
    kernels and pages decide.
    """
    sequence, parallelism = spec.sequence, spec.parallelism
    plain = geometry is not None and all(
        isinstance(cache, Attention) and not cache.indexed
        for layer in geometry.caches
        for cache in layer
    )
    platform = _platform(device)
    return EngineSettings(
        version=vllm.parse_version(spec.engine.version)[:3],
        platform=platform,
        max_model_tokens=sequence.max_tokens,
        max_batched_tokens=step_tokens(spec, device),
        tensor=parallelism.tensor,
        pipeline=parallelism.pipeline,
        decode_context=parallelism.decode_context,
        block_tokens=sequence.block_tokens or (platform.attention_multiple if plain else None),
        kv_cache_type=arguments.kv_cache_type or vllm.KV_CACHE_TYPES[sequence.kv_cache_type],
        prefix_caching=_PREFIX_CACHING.get(sequence.prefix_caching, True if plain else None),
        hybrid_manager=arguments.hybrid_manager,
        state_cache_type=arguments.state_cache_type,
        state_ssm_cache_type=arguments.state_ssm_cache_type,
        state_cache_mode=arguments.state_cache_mode,
        state_block_tokens=arguments.state_block_tokens,
    )


def step_tokens(spec: InferencePoolSpec, device: Accelerator) -> int:
    """Return the tokens of a step with the most sequences that are tried.

    One layout serves every number of them: up to the tokens of a step, which only more required
    slots than that raise, it is the same, and beyond no larger.
    """
    tokens = max_batched_tokens(spec, device.device, MAX_SLOTS)
    if declared_sequences(spec) <= tokens:
        return tokens
    slots = pool_need(spec, NO_SIZES).shared_among(pods(spec)).slots
    return max_batched_tokens(spec, device.device, max(MAX_SLOTS, slots))


def engine_part(spec: InferencePoolSpec) -> InferencePoolSpec:
    """Return a spec without its runs: what it says of each engine.

    Specs of which it is the same, and ``step_tokens`` too, stand for the same.
    """
    no_runs = {"replicas": 1, "shared_prefixes": [], "topologies": [], "reserved_slots": 0}
    return spec.model_copy(update=no_runs)


def _speculation(
    arguments: PlannedArguments, geometry: ModelGeometry, catalog: Catalog
) -> Speculation | None:
    """Return the drafting as the layout takes it; a model that drafts is one of the catalog.

    Raises:
        LayoutNotUnderstood: what that model keeps is not known.
    """
    asked = arguments.speculation
    if asked is None:
        return None
    if asked.layers_of is not None and not geometry.draft:
        # Some have their MTP layers in a repository of their own, as Gemma 4's assistants.
        raise LayoutNotUnderstood(
            "--speculative-config",
            f"what layers of {asked.layers_of} keep that draft tokens (MTP) is not known: leave it "
            "out, or start it and let the engine report",
        )
    if asked.model is None:
        return Speculation(asked.method, asked.tokens)
    entry = catalog.model(asked.model)
    if entry is None:
        raise LayoutNotUnderstood(
            "--speculative-config",
            f"the drafting model {asked.model} is not in the catalog, so what it keeps is not "
            "known: add it to a catalog of yours, or start it and let the engine report",
        )
    return Speculation(asked.method, asked.tokens, entry.geometry)


def _draft_weights(
    arguments: PlannedArguments, speculation: Speculation | None, catalog: Catalog
) -> Interval | None:
    """Return the weights of a model that drafts; layers of the model itself are no such model."""
    asked = arguments.speculation
    if asked is None or asked.model is None or speculation is None or speculation.draft is None:
        return None
    entry = catalog.model(asked.model)
    if entry is not None and entry.weights_bytes is not None:
        return Interval.point(entry.weights_bytes)
    return speculation.draft.stored_weights


def weights_of(
    spec: InferencePoolSpec,
    geometry: ModelGeometry | None,
    entry: CatalogModel | None,
    arguments: PlannedArguments,
) -> Weights | None:
    """Return the weights: given, of the catalog, or worked out; None where nobody knows.

    Raises:
        Unresolved: no model is as small as what is given; most likely its unit was left out.
    """
    if spec.model.weights is not None:
        memory = spec.model.weights.memory
        given = quantity_bytes(memory)
        if given < LEAST_WEIGHTS_BYTES:
            raise Unresolved(
                Reason.INVALID_SPEC,
                f"spec.model.weights.memory: {memory} is {given:,} bytes, less than any model "
                "takes: write it with its unit, for example 61Gi",
            )
        return Weights(Interval.point(given), "given")
    asked = arguments.quantization
    if asked is not None and (geometry is None or not _is_own(asked, geometry)):
        return None  # what quantizing at loading makes of the weights is not known
    if entry is not None and entry.weights_bytes is not None:
        return Weights(Interval.point(entry.weights_bytes), f"catalog: {entry.weights_source}")
    if geometry is None or geometry.stored_weights is None:
        return None
    stored = geometry.quantization or "16 bits a parameter"
    return Weights(geometry.stored_weights, f"computed from the shape, {stored}")
