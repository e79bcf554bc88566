"""Laws of states and the blocks beside them, for shapes that nobody has built yet."""

from __future__ import annotations

from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from ballonet.kv.layers import Attention, Cache, Mechanism, State
from ballonet.kv.settings import CPU, CUDA, EngineSettings, Speculation
from ballonet.kv.specs import CacheSpec
from ballonet.kv.state_blocks import StateBlocks, align, state_spec

VERSIONS = ((0, 10, 2), (0, 14, 1), (0, 19, 1), (0, 27, 1), (0, 28, 0), (0, 32, 0), (0, 33, 0))
sizes = st.integers(1, 64)
states = st.builds(
    State,
    mechanism=st.sampled_from(Mechanism),
    recurrent=st.tuples(st.sampled_from((8, 16, 48)), sizes, sizes),
    recurrent_element=st.sampled_from((None, "float32", "bfloat16")),
    kernel=st.sampled_from((0, 2, 4)),
    channels=st.sampled_from((64, 512, 4096)),
    groups=st.sampled_from((0, 1, 8)),
    group_channels=st.sampled_from((16, 256)),
    chunk_tokens=st.sampled_from((64, 256)),
)
attentions = st.builds(
    lambda heads, dim: Attention(heads, dim, dim), st.sampled_from((1, 2, 8)), sizes
)
engines: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "version": st.sampled_from(VERSIONS),
        "platform": st.sampled_from((CUDA, CPU)),
        "max_model_tokens": st.sampled_from((4096, 131_072)),
        "max_batched_tokens": st.just(8192),
        "tensor": st.sampled_from((1, 2, 4, 8)),
        "prefix_caching": st.sampled_from((None, True, False)),
        "block_tokens": st.sampled_from((None, 16, 64, 256)),
    }
)


def aligned(
    state: State, attention: Attention, engine: EngineSettings
) -> tuple[StateBlocks, CacheSpec, int]:
    """Return the blocks, the spec of the state, and the bytes of a token of attention."""

    def bytes_of(cache: Cache, tokens: int) -> int:
        assert isinstance(cache, Attention)
        heads = max(1, cache.kv_heads // engine.tensor)
        return heads * (cache.head_dim + cache.value_dim) * 2 * tokens

    blocks = align(
        [state],
        [attention],
        engine,
        block_tokens=engine.block_tokens or engine.platform.block_tokens,
        bytes_of=bytes_of,
        element="bfloat16",
    )
    return blocks, state_spec(state, engine, blocks, "bfloat16"), bytes_of(attention, 1)


@given(states, attentions, engines)
def test_a_page_of_attention_holds_a_state_and_is_no_larger_than_needed(
    state: State, attention: Attention, engine: dict[str, Any]
) -> None:
    settings = EngineSettings(**engine)
    blocks, spec, token_bytes = aligned(state, attention, settings)
    assert spec.page_bytes == blocks.block_tokens * token_bytes
    assert spec.page_bytes >= spec.state_bytes
    least = settings.block_tokens or settings.platform.block_tokens
    assert blocks.block_tokens >= least
    step = 16 if settings.version < (0, 20, 0) else max(least, settings.platform.attention_multiple)
    if blocks.mode == "none" and blocks.block_tokens > least:
        assert (blocks.block_tokens - step) * token_bytes < spec.state_bytes


@given(states, attentions, engines)
def test_more_ranks_never_keep_larger_states(
    state: State, attention: Attention, engine: dict[str, Any]
) -> None:
    assume(engine["tensor"] > 1)
    _, alone, _ = aligned(state, attention, EngineSettings(**{**engine, "tensor": 1}))
    _, divided, _ = aligned(state, attention, EngineSettings(**engine))
    assert divided.state_bytes <= alone.state_bytes
    # Only what groups share is kept more than once.
    assert divided.state_bytes * engine["tensor"] >= alone.state_bytes


@given(states, attentions, engines, st.integers(1, 8))
def test_drafted_tokens_never_make_states_smaller(
    state: State, attention: Attention, engine: dict[str, Any], tokens: int
) -> None:
    assume(engine["version"] >= (0, 17, 0))
    settings = EngineSettings(**engine)
    drafting = EngineSettings(**engine, speculation=Speculation("mtp", tokens))
    _, plain, _ = aligned(state, attention, settings)
    _, drafted, _ = aligned(state, attention, drafting)
    assert drafted.state_bytes >= plain.state_bytes
    assert (plain.speculative_blocks, drafted.speculative_blocks) == (0, tokens)
