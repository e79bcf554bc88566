"""What each layer keeps on one rank: specs of layers, divided over ranks, in the cache's format.

Heads are divided over tensor ranks and copied once there are more ranks than heads; latents and key
indexes are copied to every rank; layers are divided over pipeline stages. Sources:
``get_kv_cache_spec`` of the layers (model_executor/layers/attention, models/deepseek_v4),
``get_pp_indices`` (distributed/utils.py), ``verify_with_parallel_config`` (config/model.py),
``update_block_size_for_backend`` (platforms/interface.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, pairwise
from typing import Final, TypeVar

from ballonet.kv.cache_types import (
    AUTO,
    CACHE_TYPES,
    FP8_LATENT,
    LATENT_CELLS,
    CacheType,
    cache_type,
)
from ballonet.kv.drafts import drafted_layers
from ballonet.kv.geometry import ModelGeometry
from ballonet.kv.layers import (
    Attention,
    Cache,
    Compressor,
    CrossAttention,
    KeyIndex,
    Latent,
    Layer,
    PooledLatent,
    State,
)
from ballonet.kv.settings import Device, EngineRefuses, EngineSettings, Version
from ballonet.kv.specs import CacheKind, CacheSpec
from ballonet.kv.state_blocks import StateBlocks, align, state_spec
from ballonet.kv.units import ceil_div, round_up

_TENSOR: Final = "spec.parallelism.tensor"
_PIPELINE: Final = "spec.parallelism.pipeline"
_DECODE_CONTEXT: Final = "spec.parallelism.decodeContext"
_BLOCK: Final = "spec.sequence.blockTokens"

# Windows had blocks of their own, as small as the kernels take, in these versions.
_SMALL_WINDOW_BLOCKS: Final[tuple[Version, Version]] = ((0, 25, 0), (0, 30, 0))
_SMALL_WINDOW_BLOCK: Final = 16
# Blocks that the kernel of packed cells takes.
_PACKED_BLOCKS: Final = (16, 32, 64, 128)
# Blocks of the kernels behind a key index: MiniMax-M3's, DeepSeek-V4's and that of its windows.
_INDEXED_BLOCK: Final = 128
_POOLED_BLOCK: Final = 256
_POOLED_WINDOW_BLOCK: Final = 64
_POOLED_ALIGNMENT: Final = 576
# Tokens of a compressor's block by how many it pools.
_COMPRESSOR_BLOCKS: Final = {4: 4, 128: 8}
# From here the index of pooled keys asks for blocks that lie apart as a whole.
_BLOCKS_OUTERMOST: Final[Version] = (0, 29, 0)

# From here a window that excludes the token itself is one longer (commandr.py).
_COUNTS_SELF: Final[Version] = (0, 29, 0)
# From here all kernels are asked for blocks that they take, before it that of the first layer.
_ASKS_ALL_KERNELS: Final[Version] = (0, 31, 0)

# Tokens of a step at least where prompts are taken whole (platforms/cpu.py).
_LEAST_WHOLE_PROMPT: Final = 2048

_T = TypeVar("_T", bound=Cache)


def rank_specs(
    geometry: ModelGeometry, settings: EngineSettings
) -> tuple[tuple[CacheSpec, ...], ...]:
    """Return what one tensor rank of each pipeline stage keeps, layer by layer.

    Raises:
        EngineRefuses: the engine would not start: something cannot be divided as asked, or the
            platform cannot run the model; names the spec field to change.
        LayoutNotUnderstood: what a draft model keeps is not known.
    """
    _check(geometry, settings)
    speculation = settings.speculation
    drafted = () if speculation is None else drafted_layers(geometry, speculation, settings.version)
    maker = _Maker.of(geometry, settings, drafted)
    # Most layers are alike, and alike ones share one spec.
    made: dict[tuple[Cache, bool], CacheSpec] = {}

    def specs_of(first: int, layers: Sequence[Layer]) -> list[CacheSpec]:
        specs = []
        for index, layer in enumerate(layers, first):
            skipped = index in maker.skipped
            for cache in layer:
                if (cache, skipped) not in made:
                    made[cache, skipped] = maker.spec(cache, skipped=skipped)
                specs.append(made[cache, skipped])
        return specs

    stages = [
        specs_of(first, geometry.caches[first:last])
        for first, last in pairwise(stage_bounds(geometry.layers, settings.pipeline))
    ]
    stages[-1].extend(specs_of(geometry.layers, drafted))
    return tuple(tuple(stage) for stage in stages)


def settings_for(geometry: ModelGeometry, settings: EngineSettings) -> EngineSettings:
    """Return the settings with what the engine changes by itself for this model."""
    caches = geometry.caches
    latent = bool(_all(caches, Latent)) or bool(_all(caches, PooledLatent))
    if not (latent and settings.platform.latent_whole_prompts):
        return settings
    return replace(
        settings,
        max_batched_tokens=max(settings.max_model_tokens, _LEAST_WHOLE_PROMPT),
        prefix_caching=False,
    )


def stage_bounds(layers: int, stages: int) -> tuple[int, ...]:
    """Return the first layer of each pipeline stage, and the end.

    What is left over by an even division goes to the stages before the last, from the back.
    """
    least, over = divmod(layers, stages)
    sizes = [
        least + (1 if stages - 1 - over <= stage < stages - 1 else 0) for stage in range(stages)
    ]
    return (0, *accumulate(sizes))


def tensor_sizes(geometry: ModelGeometry, most: int) -> tuple[int, ...]:
    """Return the tensor parallel sizes up to ``most`` over which the heads can be divided."""
    return tuple(size for size in range(1, most + 1) if _divides(geometry, size))


def _divides(geometry: ModelGeometry, tensor: int) -> bool:
    kv_heads = {cache.kv_heads for cache in _all(geometry.caches, Attention)}
    return geometry.attention_heads % tensor == 0 and all(
        heads % tensor == 0 or tensor % heads == 0 for heads in kv_heads
    )


def _all(layers: Iterable[Layer], kind: type[_T]) -> list[_T]:
    return [cache for cache in chain.from_iterable(layers) if isinstance(cache, kind)]


def _check(geometry: ModelGeometry, settings: EngineSettings) -> None:
    """Refuse what the engine would refuse (config/model.py and the layers themselves)."""
    tensor, context = settings.tensor, settings.decode_context
    if not _divides(geometry, tensor):
        sizes = ", ".join(str(size) for size in tensor_sizes(geometry, 16))
        raise EngineRefuses(
            _TENSOR,
            tensor,
            f"{geometry.attention_heads:,} attention heads and {geometry.kv_heads:,} key/value "
            f"heads cannot be divided over {tensor:,} tensor ranks; set it to one of {sizes}",
        )
    if geometry.layers < settings.pipeline:
        raise EngineRefuses(
            _PIPELINE,
            settings.pipeline,
            f"the model has {geometry.layers:,} layers, fewer than pipeline stages",
        )
    if context > 1:
        _check_decode_context(geometry, tensor, context)
    _check_block(geometry, settings)
    latents = _all(geometry.caches, Latent)
    if not settings.platform.sparse_latent and any(latent.indexed for latent in latents):
        raise EngineRefuses(
            "spec.accelerator.type",
            settings.platform.name,
            "the engine has no sparse latent attention for this device; use a GPU",
        )


# Values of --block-size until it took any number (BlockSize of config/cache.py, 0.10.2 to 0.17.1).
_BLOCK_SIZES: Final = (16, 32, 64, 128, 256)
_ANY_BLOCK_SINCE: Final[Version] = (0, 18, 0)
_BLOCKS_OF_256_SINCE: Final[Version] = (0, 11, 1)


def _check_block(geometry: ModelGeometry, settings: EngineSettings) -> None:
    """Refuse blocks that no kernel takes; beside states a block is a minimum, and is raised.

    The CPU's kernels take the same for every model, so ``planning/resolve.py`` has their rule.
    """
    block, version = settings.block_tokens, settings.version
    if block is None:
        return
    if version < _ANY_BLOCK_SINCE:
        sizes = [n for n in _BLOCK_SIZES if n < 256 or version >= _BLOCKS_OF_256_SINCE]
        if block not in sizes:
            listed = ", ".join(map(str, sizes))
            raise EngineRefuses(_BLOCK, block, f"vLLM before 0.18 takes only {listed}")
    multiple = settings.platform.attention_multiple
    on_gpu = settings.platform.device is not Device.CPU
    if on_gpu and block % multiple and not _all(geometry.caches, State):
        raise EngineRefuses(
            _BLOCK, block, f"must be a multiple of {multiple}, as kernels of attention need"
        )


def _check_decode_context(geometry: ModelGeometry, tensor: int, context: int) -> None:
    if tensor % context:
        raise EngineRefuses(
            _DECODE_CONTEXT, context, f"must divide the {tensor:,} tensor ranks whose GPUs it uses"
        )
    attention = _all(geometry.caches, Attention)
    if not attention or _all(geometry.caches, Latent):
        return
    kv_heads = geometry.kv_heads
    if tensor <= kv_heads or context > tensor // kv_heads:
        raise EngineRefuses(
            _DECODE_CONTEXT,
            context,
            f"is possible up to tensor ranks over key/value heads, {tensor:,} over {kv_heads:,}; "
            f"set it to at most {max(1, tensor // kv_heads)}",
        )
    if geometry.attention_heads // kv_heads % context:
        raise EngineRefuses(
            _DECODE_CONTEXT,
            context,
            f"must divide the {geometry.attention_heads // kv_heads:,} query heads of each "
            "key/value head",
        )


def _block_tokens(layers: Sequence[Layer], settings: EngineSettings) -> int:
    """Return the tokens of a block before pages of several kinds are made equal."""
    platform = settings.platform
    latent = True
    if _all(layers, PooledLatent):
        own = _POOLED_BLOCK
    elif _all(layers, Latent):
        own = platform.latent_block_tokens
    else:
        latent = False
        asked = _all(layers, Attention)[: None if settings.version >= _ASKS_ALL_KERNELS else 1]
        indexed = any(cache.indexed for cache in asked)
        own = _INDEXED_BLOCK if indexed else platform.block_tokens
    if settings.block_tokens is None or (latent and platform.latent_block_forced):
        return own
    return settings.block_tokens


@dataclass(frozen=True, slots=True)
class _Maker:
    """What all layers of the model have in common on a rank.

    Attributes:
        kept_as: format of the cache.
        block_tokens: tokens of a block of attention.
        skipped: layers that stay in the model's own format.
        shared_page_bytes: size to which pages of windows are padded beside such layers.
        states: blocks of the layers with states.
    """

    settings: EngineSettings
    element: str
    kept_as: CacheType
    block_tokens: int
    skipped: frozenset[int] = frozenset()
    shared_page_bytes: int | None = None
    states: StateBlocks | None = None

    @classmethod
    def of(
        cls, geometry: ModelGeometry, settings: EngineSettings, drafted: Sequence[Layer]
    ) -> _Maker:
        layers = (*geometry.caches, *drafted)
        latents, states = _all(layers, Latent), _all(layers, State)
        kept_as = cache_type(
            settings,
            declared=geometry.declared_kv_cache,
            method=geometry.quantization,
            sparse_latent=any(latent.indexed for latent in latents),
        )
        element = settings.dtype or geometry.element
        maker = cls(settings, element, kept_as, _block_tokens(layers, settings))
        if states:
            # A draft model takes the blocks that the model itself asks for.
            own: list[Attention | Latent] = [
                *_all(geometry.caches, Attention),
                *_all(geometry.caches, Latent),
            ]
            aligned = align(
                states,
                own,
                settings,
                block_tokens=maker.block_tokens,
                bytes_of=maker.content_bytes,
                element=element,
            )
            return replace(maker, states=aligned, block_tokens=aligned.block_tokens)
        if kept_as.skips_ends:
            return maker._skipping_ends(geometry)
        return maker

    def _skipping_ends(self, geometry: ModelGeometry) -> _Maker:
        """Return the maker whose blocks are long enough for the layers that are not packed.

        A page of the packed layers must have room for a page of the others; windows are padded to
        that size (``_align_heterogeneous_kv_block_size``).
        """
        count = geometry.layers
        ends = min(self.kept_as.skips_ends, count // 2)
        first = next(iter(chain.from_iterable(geometry.caches)), None)
        shape = Attention(geometry.kv_heads, geometry.head_dim, geometry.head_dim)
        plain = replace(self, kept_as=CACHE_TYPES[AUTO])
        # The engine asks the backend of the first layer, and only that of packed ones knows the
        # packing: a first layer with a plain backend counts plain bytes.
        packed_first = isinstance(first, Attention) and first.chunk_tokens is not None
        byte_type = self.kept_as if packed_first else replace(self.kept_as, packed=False)
        packed_bytes = replace(self, kept_as=byte_type).content_bytes(shape, 1)
        smallest = self.settings.platform.attention_multiple
        multiple = max(smallest, self.block_tokens)
        needed = plain.content_bytes(shape, 1) * smallest
        block = max(self.block_tokens, multiple * ceil_div(needed, multiple * packed_bytes))
        return replace(
            self,
            block_tokens=block,
            skipped=frozenset((*range(ends), *range(count - ends, count))),
            shared_page_bytes=block * packed_bytes,
        )

    def content_bytes(self, cache: Cache, tokens: int) -> int:
        """Return the bytes that a cache takes on the rank for so many tokens."""
        return self.spec(cache).with_block(tokens).content_bytes

    def spec(self, cache: Cache, *, skipped: bool = False) -> CacheSpec:
        """Return what one cache of a layer takes on the rank.

        Args:
            skipped: whether the layer stays in the model's own format.
        """
        if skipped:
            return replace(self, kept_as=CACHE_TYPES[AUTO]).spec(cache)
        if isinstance(cache, CrossAttention):
            shape = Attention(cache.kv_heads, cache.head_dim, cache.head_dim)
            return replace(self._attention(shape), kind=CacheKind.CROSS)
        if isinstance(cache, State):
            assert self.states is not None
            return state_spec(cache, self.settings, self.states, self.element)
        return self._by_token(cache)

    def _by_token(
        self, cache: Attention | Latent | PooledLatent | KeyIndex | Compressor
    ) -> CacheSpec:
        match cache:
            case Attention():
                return self._attention(cache)
            case Latent():
                return self._latent(cache)
            case PooledLatent():
                return self._pooled_latent(cache)
            case KeyIndex():
                return self._key_index(cache)
            case Compressor():
                return self._compressor(cache)

    def _attention(self, cache: Attention) -> CacheSpec:
        kept_as = CACHE_TYPES[AUTO] if cache.native else self.kept_as
        spec = CacheSpec(
            kind=CacheKind.FULL,
            block_tokens=self.block_tokens,
            kv_heads=max(1, cache.kv_heads // self.settings.tensor),
            head_dim=cache.head_dim,
            value_dim=cache.value_dim,
            element=kept_as.element or self.element,
            cell_bytes=kept_as.cell_bytes(cache.head_dim, cache.value_dim),
            variant=kept_as.name,
            kernel_block_tokens=_INDEXED_BLOCK if cache.indexed else kept_as.kernel_block_tokens,
        )
        if cache.chunk_tokens is not None:
            return replace(spec, kind=CacheKind.CHUNKED, chunk_tokens=cache.chunk_tokens)
        if cache.window_tokens is None:
            return spec
        return replace(
            spec,
            kind=CacheKind.SLIDING,
            window_tokens=cache.window_tokens + self._own_token(cache),
            block_tokens=self._window_block(spec),
            padded_page_bytes=self.shared_page_bytes,
        )

    def _own_token(self, cache: Attention) -> int:
        return int(cache.window_excludes_self and self.settings.version >= _COUNTS_SELF)

    def _window_block(self, spec: CacheSpec) -> int:
        """Return the block of a window: the largest of the kernel that fits the shared page."""
        first, end = _SMALL_WINDOW_BLOCKS
        multiple = self.settings.platform.attention_multiple
        if self.shared_page_bytes is None:
            small = first <= self.settings.version < end
            return _SMALL_WINDOW_BLOCK if small else self.block_tokens
        fitting = self.shared_page_bytes // spec.with_block(1).content_bytes
        if self.kept_as.packed:
            return max((size for size in _PACKED_BLOCKS if size <= fitting), default=multiple)
        return max(multiple, fitting // multiple * multiple)

    def _latent(self, cache: Latent) -> CacheSpec:
        kept_as, settings = self.kept_as, self.settings
        dim = cache.rank + cache.rope_dim
        # Kernels of sparse attention read rows of one page, or blocks of their own where quantised.
        rows = cache.indexed and not kept_as.quantized
        spec = CacheSpec(
            kind=CacheKind.MLA,
            block_tokens=self.block_tokens,
            head_dim=dim,
            element=kept_as.element or self.element,
            cell_bytes=LATENT_CELLS.get(kept_as.name),
            variant=kept_as.name,
            kernel_block_tokens=None if rows else settings.platform.latent_block_tokens,
        )
        return (
            replace(spec, stride_alignment_bytes=spec.with_block(1).content_bytes) if rows else spec
        )

    def _pooled_latent(self, cache: PooledLatent) -> CacheSpec:
        """Elements without position as 8 bits with a scale for each 64, the others as 16 bits."""
        nope = cache.dim - cache.rope_dim
        spec = CacheSpec(
            kind=CacheKind.MLA,
            block_tokens=self.block_tokens,
            head_dim=cache.dim,
            element="uint8",
            cell_bytes=nope + 2 * cache.rope_dim + round_up(ceil_div(nope, 64), 8),
            tokens_per_cell=cache.pooled_tokens,
            page_alignment_bytes=_POOLED_ALIGNMENT,
            variant=FP8_LATENT,
            kernel_block_tokens=_POOLED_BLOCK,
        )
        if cache.window_tokens is None:
            return spec
        return replace(
            spec,
            kind=CacheKind.SLIDING_MLA,
            block_tokens=_POOLED_WINDOW_BLOCK,
            window_tokens=cache.window_tokens,
            kernel_block_tokens=None,
        )

    def _key_index(self, cache: KeyIndex) -> CacheSpec:
        platform = self.settings.platform
        if not cache.quantized:
            return CacheSpec(
                kind=CacheKind.MLA,
                block_tokens=self.block_tokens,
                head_dim=cache.dim,
                element=self.element,
                variant="indexer",
                kernel_block_tokens=_INDEXED_BLOCK,
            )
        pooled = cache.pooled_tokens > 1
        return CacheSpec(
            kind=CacheKind.MLA,
            block_tokens=self.block_tokens,
            head_dim=cache.dim + 4 * ceil_div(cache.dim, 128),
            element="uint8",
            tokens_per_cell=cache.pooled_tokens,
            page_alignment_bytes=_POOLED_ALIGNMENT if pooled else 1,
            variant="indexer",
            kernel_block_tokens=_POOLED_BLOCK if pooled else platform.latent_block_tokens,
            blocks_outermost=pooled and self.settings.version >= _BLOCKS_OUTERMOST,
        )

    def _compressor(self, cache: Compressor) -> CacheSpec:
        """Blocks as short as let their pages share memory with those of the pooled vectors."""
        return CacheSpec(
            kind=CacheKind.SLIDING_MLA,
            block_tokens=_COMPRESSOR_BLOCKS.get(cache.pooled_tokens, cache.pooled_tokens),
            head_dim=cache.dim,
            element="float32",
            window_tokens=cache.window_tokens,
            page_alignment_bytes=_POOLED_ALIGNMENT,
        )
