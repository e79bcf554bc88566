"""How states and attention come to pages of one size, and what a sequence holds of states.

All layers draw pages from one pool, so a model with states gets attention blocks so long that a
block is at least as large as a state, and states are padded to that page. Source:
``_align_hybrid_block_size`` in platforms/interface.py (0.20 and later), ``models/config.py``
(before), ``MambaSpec`` in v1/kv_cache_interface.py and model_executor/layers/mamba (0.10.2 to
0.33.0).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import lcm
from typing import Final

from ballonet.kv.config import MAX_SIZE
from ballonet.kv.layers import Attention, Cache, Latent, Mechanism, State
from ballonet.kv.settings import EngineRefuses, EngineSettings, Version
from ballonet.kv.specs import CacheKind, CacheSpec, bytes_of_state
from ballonet.kv.units import ceil_div, round_up

NONE: Final = "none"
"""Mode without prefix caching: a sequence has one state a layer."""
ALIGN: Final = "align"
"""Prefix caching keeps the states at ends of blocks; a sequence holds the last two."""
ALL: Final = "all"
"""Prefix caching keeps a state for every block of tokens."""

# Prefix caching of models with states: possible; in two modes; on, and in mode align, by default;
# in no other mode.
_CACHING: Final = (0, 11, 1)
_MODES: Final = (0, 15, 0)
_CACHING_BY_DEFAULT: Final = (0, 28, 0)
_ALIGN_ONLY: Final = (0, 32, 0)
# Versions whose default mode depends on whether tokens are drafted.
_ALIGN_WITH_DRAFTS: Final = ((0, 20, 0), (0, 22, 0))
# Before it, drafts work with gated delta nets only, and not in mode align.
_DRAFTS: Final = (0, 17, 0)
# From here, blocks are multiples of the given block; before, of 16 tokens on any device.
_MULTIPLE_OF_BLOCK: Final = (0, 20, 0)
# Blocks of latent attention beside states are a multiple of at least this, from these versions.
_LATENT_MULTIPLES: Final[tuple[tuple[Version, int], ...]] = (
    ((0, 27, 0), 128),
    ((0, 20, 0), 1),
    ((0, 0, 0), 64),
)
# Heads of 256 elements had a multiple of their own on some devices.
_WIDE_HEAD: Final = 256
_WIDE_HEADS: Final = ((0, 11, 1), (0, 18, 0))
# From here the platform chooses the format of the matrix; from there 16 bits may be asked for where
# the state is that of a gated delta net.
_FORCED_ELEMENT: Final = (0, 26, 0)
_SHORT_ELEMENT: Final = (0, 29, 0)
_ALWAYS: Final = (0, 0, 0)
_NEVER: Final = (1_000_000, 0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rules:
    """Since which versions something holds for the states of one mechanism.

    Attributes:
        keeps_all: whether the layers can keep a state for every block.
        window_grows: the window of the convolution grows by the drafted tokens.
        type_asked: the number format of the matrix that the user asks for counts.
        type_declared: the one that the model declares counts.
        checkpoints: a prefill writes a checkpoint into a block of its own.
        checkpoint_tokens: blocks are a multiple of this where it does.
    """

    keeps_all: bool = False
    window_grows: Version = _NEVER
    type_asked: Version = _NEVER
    type_declared: Version = _NEVER
    checkpoints: Version = _NEVER
    checkpoint_tokens: int = 1


_RULES: Final[dict[Mechanism, _Rules]] = {
    Mechanism.MAMBA1: _Rules(keeps_all=True, type_asked=_ALWAYS),
    Mechanism.MAMBA2: _Rules(
        keeps_all=True,
        window_grows=(0, 17, 0),
        type_asked=_ALWAYS,
        type_declared=(0, 13, 0),
        checkpoints=(0, 32, 0),
    ),
    # Kernels that write checkpoints: FlashInfer's, FlashKDA's (Hopper and Blackwell).
    Mechanism.GATED_DELTA: _Rules(
        window_grows=_ALWAYS,
        type_asked=(0, 17, 0),
        type_declared=(0, 17, 0),
        checkpoints=(0, 33, 0),
        checkpoint_tokens=64,
    ),
    Mechanism.KIMI_DELTA: _Rules(
        window_grows=(0, 27, 0),
        type_asked=(0, 30, 0),
        type_declared=_ALWAYS,
        checkpoints=(0, 29, 0),
        checkpoint_tokens=16,
    ),
    Mechanism.LINEAR: _Rules(),
    Mechanism.SHORT_CONVOLUTION: _Rules(window_grows=(0, 29, 0)),
}
# Mechanisms whose checkpoints depend on the kernel.
_BY_KERNEL: Final = frozenset((Mechanism.GATED_DELTA, Mechanism.KIMI_DELTA))


@dataclass(frozen=True, slots=True)
class StateBlocks:
    """Blocks of a model that has states.

    Attributes:
        mode: what prefix caching keeps of states.
        block_tokens: tokens of a block of attention.
        state_block_tokens: tokens from one kept state to the next.
        padded_page_bytes: size that states are padded to; None where they have it already.
    """

    mode: str
    block_tokens: int
    state_block_tokens: int
    padded_page_bytes: int | None


def cache_mode(states: Sequence[State], settings: EngineSettings, *, hybrid: bool) -> str:
    """Return what prefix caching keeps of the states: NONE (it is off), ALIGN or ALL.

    Args:
        hybrid: whether the model has attention too; prefix caching is never on by default
            without.
    """
    version = settings.version
    caching = settings.prefix_caching
    if caching is None:
        caching = hybrid and version >= _CACHING_BY_DEFAULT
    if not caching or version < _CACHING:
        return NONE
    keeps_all = all(_RULES[state.mechanism].keeps_all for state in states)
    if version < _MODES:
        return ALL if keeps_all else NONE
    if not keeps_all or version >= _ALIGN_ONLY:
        return ALIGN
    if settings.state_cache_mode in (ALIGN, ALL):
        return settings.state_cache_mode
    first, end = _ALIGN_WITH_DRAFTS
    drafts = settings.speculation is not None and first <= version < end
    return ALIGN if drafts or version >= _CACHING_BY_DEFAULT else ALL


def align(
    states: Sequence[State],
    attention: Sequence[Attention | Latent],
    settings: EngineSettings,
    *,
    block_tokens: int,
    bytes_of: Callable[[Cache, int], int],
    element: str,
) -> StateBlocks:
    """Return blocks in which a page of attention has room for a state.

    Args:
        attention: the layers with attention; empty for a model of states alone, whose pages need
            no padding.
        block_tokens: tokens of a block as the user or else the platform wants them; a minimum.
        bytes_of: bytes that a layer keeps on a rank for so many tokens.
        element: number format that the model runs in.

    Raises:
        EngineRefuses: the engine would not start with these settings.
    """
    mode = cache_mode(states, settings, hybrid=bool(attention))
    _check(states, settings, mode)
    if not attention:
        unpadded = settings.max_model_tokens if mode == NONE else block_tokens
        return StateBlocks(mode, block_tokens, settings.state_block_tokens or unpadded, None)
    state_bytes = max(_state_bytes(state, settings, element) for state in states)
    # Layers that differ get blocks in which a whole number of each one's tokens fills the page.
    token_bytes = lcm(*(bytes_of(layer, 1) for layer in attention))
    kernel = _kernel_multiple(attention, settings, block_tokens)
    multiple = _block_multiple(states, kernel, settings, mode)
    needed = round_up(ceil_div(state_bytes, token_bytes), multiple)
    block = max(block_tokens, needed)
    if block > MAX_SIZE:
        raise EngineRefuses(
            "spec.model.config",
            f"{block:,} tokens a block",
            "is what the states of this config.json come to, more than any sequence has; give the "
            "file of the model itself",
        )
    platform = settings.platform
    if platform.latent_block_forced and _is_latent(attention) and block != block_tokens:
        raise EngineRefuses(
            "spec.accelerator.type",
            platform.name,
            f"the latent attention of this platform takes blocks of {block_tokens:,} tokens, and "
            f"the model's states need {block:,}; use a GPU",
        )
    page_bytes = block * token_bytes
    return StateBlocks(
        mode=mode,
        block_tokens=block,
        state_block_tokens={NONE: settings.max_model_tokens, ALIGN: block, ALL: needed}[mode],
        padded_page_bytes=None if page_bytes == state_bytes else page_bytes,
    )


def state_spec(
    state: State, settings: EngineSettings, blocks: StateBlocks, element: str
) -> CacheSpec:
    """Return what one layer with a state keeps on one rank.

    Args:
        element: number format that the model runs in.

    Raises:
        EngineRefuses: the state cannot be divided over the tensor ranks.
    """
    shapes, elements = _parts(state, settings, element)
    return CacheSpec(
        kind=CacheKind.STATE,
        block_tokens=blocks.state_block_tokens,
        padded_page_bytes=blocks.padded_page_bytes,
        variant=state.mechanism,
        state_shapes=shapes,
        state_elements=elements,
        state_mode=blocks.mode,
        speculative_blocks=_drafted_tokens(settings),
        checkpoint_blocks=int(_writes_checkpoints(state, settings)),
    )


def _check(states: Sequence[State], settings: EngineSettings, mode: str) -> None:
    if settings.state_block_tokens not in (None, settings.max_model_tokens) and mode == NONE:
        raise EngineRefuses(
            "spec.engine.args",
            f"--mamba-block-size={settings.state_block_tokens}",
            "the engine takes it with prefix caching only",
        )
    if settings.speculation is None or settings.version >= _DRAFTS:
        return
    if mode == ALIGN or any(state.mechanism is not Mechanism.GATED_DELTA for state in states):
        raise EngineRefuses(
            "spec.engine.args",
            f"--speculative-config ({settings.speculation.method})",
            "this version cannot draft tokens for a model with states; 0.17.0 and later can",
        )


def _block_multiple(
    states: Sequence[State], multiple: int, settings: EngineSettings, mode: str
) -> int:
    """Return the tokens that a block is a multiple of, from those that attention asks for."""
    if mode == ALL:
        return lcm(multiple, settings.state_block_tokens or states[0].chunk_tokens)
    if mode == ALIGN:
        writers = [state for state in states if _writes_checkpoints(state, settings)]
        return lcm(multiple, *(_RULES[state.mechanism].checkpoint_tokens for state in writers))
    return multiple


def _kernel_multiple(
    attention: Sequence[Attention | Latent], settings: EngineSettings, block_tokens: int
) -> int:
    """Return the tokens that the kernels of attention want blocks to be a multiple of."""
    version, platform = settings.version, settings.platform
    latent = _is_latent(attention)
    if version >= _MULTIPLE_OF_BLOCK:
        kernel = platform.latent_block_tokens if latent else platform.attention_multiple
        multiple = max(kernel, block_tokens)
    else:
        first, end = _WIDE_HEADS
        wide = first <= version < end and any(
            isinstance(layer, Attention) and layer.head_dim == _WIDE_HEAD for layer in attention
        )
        multiple = platform.wide_head_multiple if wide else 16
    if latent:
        least = next(tokens for since, tokens in _LATENT_MULTIPLES if version >= since)
        multiple = max(multiple, least)
    return multiple


def _is_latent(attention: Sequence[Attention | Latent]) -> bool:
    return any(isinstance(layer, Latent) for layer in attention)


def _writes_checkpoints(state: State, settings: EngineSettings) -> bool:
    if state.mechanism in _BY_KERNEL and not settings.platform.delta_checkpoints:
        return False
    if state.mechanism is Mechanism.KIMI_DELTA and not state.bounded_gate:
        return False
    return settings.version >= _RULES[state.mechanism].checkpoints


def _drafted_tokens(settings: EngineSettings) -> int:
    return 0 if settings.speculation is None else settings.speculation.tokens


def _state_bytes(state: State, settings: EngineSettings, element: str) -> int:
    return bytes_of_state(*_parts(state, settings, element))


def _parts(
    state: State, settings: EngineSettings, element: str
) -> tuple[tuple[tuple[int, ...], ...], tuple[str, ...]]:
    """Return shapes and number formats of the state's parts on one rank."""
    if settings.state_cache_type != "auto":
        element = settings.state_cache_type
    shapes: list[tuple[int, ...]] = []
    elements: list[str] = []
    if state.kernel:
        grows = settings.version >= _RULES[state.mechanism].window_grows
        window = state.kernel - 1 + (_drafted_tokens(settings) if grows else 0)
        channels = _share(state.channels, "channels of the states' convolution", settings)
        shapes.append((window, channels + _group_channels(state, settings)))
        elements.append(element)
    if state.recurrent:
        heads, *rest = state.recurrent
        shapes.append((_share(heads, "heads of the states", settings), *rest))
        elements.append(_matrix_element(state, settings, element))
    return tuple(shapes), tuple(elements)


def _matrix_element(state: State, settings: EngineSettings, element: str) -> str:
    rules, asked = _RULES[state.mechanism], _asked_element(state, settings)
    if asked != "auto" and settings.version >= rules.type_asked:
        return asked
    if state.recurrent_element is not None and settings.version >= rules.type_declared:
        return state.recurrent_element
    return element


def _asked_element(state: State, settings: EngineSettings) -> str:
    """Return the format of the matrix that the user asks for, or else the platform."""
    asked, forced = settings.state_ssm_cache_type, settings.platform.state_element
    if forced is None or settings.version < _FORCED_ELEMENT:
        return asked
    may_be_short = state.mechanism is Mechanism.GATED_DELTA and settings.version >= _SHORT_ELEMENT
    return asked if may_be_short and asked != "auto" else forced


def _group_channels(state: State, settings: EngineSettings) -> int:
    """Return the channels of groups on one rank; a single group is on every rank."""
    if state.groups == 1:
        return state.group_channels
    return _share(state.groups, "groups of the states' heads", settings) * state.group_channels


def _share(count: int, what: str, settings: EngineSettings) -> int:
    if count % settings.tensor:
        raise EngineRefuses(
            "spec.parallelism.tensor",
            settings.tensor,
            f"{count:,} {what} cannot be divided by {settings.tensor:,} tensor ranks",
        )
    return count // settings.tensor
