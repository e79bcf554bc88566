"""From names in a spec to what they stand for: model, device, engine version."""

from __future__ import annotations

from dataclasses import dataclass

from ballonet.api.conditions import Finding, Reason, Status
from ballonet.api.quantity import quantity_bytes
from ballonet.api.v1alpha1 import InferencePoolSpec, KvCacheType, Queue
from ballonet.catalog import (
    Accelerator,
    CatalogModel,
    accelerator,
    accelerator_names,
    model,
    similar_models,
    suggest,
)
from ballonet.engines import vllm
from ballonet.kv.geometry import (
    InvalidModelConfig,
    LayoutNotUnderstood,
    ModelGeometry,
    parse_config,
)
from ballonet.kv.layout import CacheLayout, cache_layout, element_bytes


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

    bytes: int
    source: str


@dataclass(frozen=True, slots=True)
class Resolved:
    """What a spec stands for.

    Attributes:
        geometry: the model's geometry; None when its layout is not understood.
        layout: cache layout of one rank; None with geometry.
        layout_problem: why the layout is not understood, and what the user can do.
        weights: size of the weights; None when unknown.
        block_tokens: tokens a block; None leaves the engine its own.
        source: where the geometry comes from.
    """

    device: Accelerator
    geometry: ModelGeometry | None
    layout: CacheLayout | None
    layout_problem: str | None
    weights: Weights | None
    block_tokens: int | None
    source: str


def resolve(spec: InferencePoolSpec, config_text: str | None) -> Resolved:
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
    device = _device(spec)
    _check_engine_can(spec, device)
    geometry, catalogued, problem, source = _geometry(spec, config_text)
    layout = None
    block_tokens = spec.sequence.block_tokens
    if geometry is not None:
        _check_model_can(spec, geometry)
        block_tokens = block_tokens or vllm.default_block_tokens(device.device)
        try:
            layout = _layout(spec, geometry, block_tokens)
        except LayoutNotUnderstood as error:
            problem = str(error)
    return Resolved(
        device=device,
        geometry=geometry,
        layout=layout,
        layout_problem=problem,
        weights=_weights(spec, geometry, catalogued),
        block_tokens=block_tokens,
        source=source,
    )


def _device(spec: InferencePoolSpec) -> Accelerator:
    name = spec.accelerator.type
    device = accelerator(name)
    if device is None:
        raise Unresolved(
            Reason.UNKNOWN_ACCELERATOR,
            f"spec.accelerator.type: {name} is not in the catalog: {_instead(name)}",
        )
    return device


def _instead(device: str) -> str:
    close = suggest(device, accelerator_names())
    if close:
        return f"did you mean {' or '.join(close)}?"
    return f"use one of {', '.join(accelerator_names())}"


def _check_engine_can(spec: InferencePoolSpec, device: Accelerator) -> None:
    problems = []
    version = spec.engine.version
    block = spec.sequence.block_tokens
    if device.device == "cpu" and block is not None and block % vllm.CPU_BLOCK_MULTIPLE_TOKENS:
        problems.append(
            f"spec.sequence.blockTokens: {block} is not a multiple of "
            f"{vllm.CPU_BLOCK_MULTIPLE_TOKENS}, which vLLM's CPU backend needs"
        )
    if spec.sequence.kv_cache_type is KvCacheType.FP8 and not device.fp8_kv_cache:
        problems.append(
            f"spec.sequence.kvCacheType: FP8 is not supported on {device.name}: use Auto or BF16"
        )
    if spec.admission.queue is Queue.BOUNDED and "--max-num-queued-reqs" not in vllm.flags(version):
        problems.append(
            f"spec.admission.queue: Bounded needs vLLM 0.29 or later and spec.engine.version is "
            f"{version}: use Unbounded"
        )
    ranks = spec.parallelism.tensor * spec.parallelism.pipeline
    if device.max_per_node is not None and ranks > device.max_per_node:
        problems.append(
            f"spec.parallelism: tensor {spec.parallelism.tensor} x pipeline "
            f"{spec.parallelism.pipeline} = {ranks} devices a pod, and a node with {device.name} "
            f"has at most {device.max_per_node}: lower one of them"
        )
    if problems:
        raise Unresolved(Reason.UNSUPPORTED_BY_ENGINE, "; ".join(problems))


def _geometry(
    spec: InferencePoolSpec, config_text: str | None
) -> tuple[ModelGeometry | None, CatalogModel | None, str | None, str]:
    """Return geometry, catalog entry, layout problem and source; the config goes first."""
    name = spec.model.name
    catalogued = model(name)
    config = spec.model.config
    if config is None:
        if catalogued is None:
            close = similar_models(name)
            raise Unresolved(
                Reason.UNKNOWN_MODEL,
                f"spec.model.name: {name} is not in the catalog"
                + (f": did you mean {' or '.join(close)}? If not, give " if close else ": give ")
                + "the text of its config.json in spec.model.config (inline or configMapRef). A "
                "model whose cache layout is not planned for is then Unknown, and is started.",
            )
        return catalogued.geometry, catalogued, None, "catalog"
    if config.config_map_ref is not None:
        where = "spec.model.config.configMapRef"
        ref = config.config_map_ref
        if config_text is None:
            raise Unresolved(
                Reason.CONFIG_NOT_FOUND,
                f"{where}: ConfigMap {ref.name} with key {ref.key} was not found: create it",
            )
        source = f"ConfigMap {ref.name}, key {ref.key}"
    else:
        where = "spec.model.config.inline"
        config_text = config.inline or ""
        source = where
    try:
        return parse_config(config_text), catalogued, None, source
    except InvalidModelConfig as error:
        raise Unresolved(Reason.INVALID_MODEL_CONFIG, f"{where}: {error}") from None
    except LayoutNotUnderstood as error:
        return None, catalogued, f"{where}: {error}", source


def _check_model_can(spec: InferencePoolSpec, geometry: ModelGeometry) -> None:
    longest = geometry.max_position_tokens
    if longest is not None and spec.sequence.max_tokens > longest:
        raise Unresolved(
            Reason.UNSUPPORTED_BY_ENGINE,
            f"spec.sequence.maxTokens: {spec.sequence.max_tokens} is above the {longest} tokens "
            f"that the model's config.json allows, and the engine would not start: give at most "
            f"{longest}",
        )


def _layout(spec: InferencePoolSpec, geometry: ModelGeometry, block_tokens: int) -> CacheLayout:
    try:
        return cache_layout(
            geometry,
            block_tokens=block_tokens,
            kv_element_bytes=element_bytes(geometry, spec.sequence.kv_cache_type),
            tensor=spec.parallelism.tensor,
            pipeline=spec.parallelism.pipeline,
        )
    except InvalidModelConfig as error:
        raise Unresolved(Reason.UNSUPPORTED_BY_ENGINE, f"spec.parallelism: {error}") from None


def _weights(
    spec: InferencePoolSpec, geometry: ModelGeometry | None, catalogued: CatalogModel | None
) -> Weights | None:
    if spec.model.weights is not None:
        return Weights(quantity_bytes(spec.model.weights.memory), "given")
    if catalogued is not None:
        return Weights(catalogued.weights_bytes, f"catalog: {catalogued.weights_source}")
    if geometry is None or geometry.weights_bytes is None:
        return None
    return Weights(geometry.weights_bytes, "computed from the shape, 16 bits a parameter")
