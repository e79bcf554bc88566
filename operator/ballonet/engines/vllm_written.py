"""What rendered arguments of vLLM say: the limits among them, and which configuration is left."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits by which an engine sizes its working memory, and so what is left for KV blocks."""

    max_model_tokens: int
    max_num_seqs: int
    max_batched_tokens: int

    def cover(self, other: Limits) -> bool:
        """Return whether an engine with these limits needs at least the memory of the other."""
        return (
            self.max_model_tokens >= other.max_model_tokens
            and self.max_num_seqs >= other.max_num_seqs
            and self.max_batched_tokens >= other.max_batched_tokens
        )


_KV_MEMORY: Final = "--kv-cache-memory-bytes"
_SIZING: Final = ("--max-model-len", "--max-num-seqs", "--max-num-batched-tokens")
# Limits of what is let in: no buffer is sized by them.
_ADMISSION: Final = ("--max-num-active-seqs", "--max-num-queued-reqs")


def written_limits(args: Sequence[str]) -> Limits:
    """Return the limits in arguments of ``engines.vllm.render_args``, which has them all."""
    values = dict(pairwise(args))
    return Limits(*(int(values[flag]) for flag in _SIZING))


def given_kv_bytes(args: Sequence[str]) -> int | None:
    """Return the KV memory of a rank that the engine is told; None where it works it out."""
    return int(args[args.index(_KV_MEMORY) + 1]) if _KV_MEMORY in args else None


def without_limits(args: Sequence[str]) -> tuple[str, ...]:
    """Return the arguments that are no limit and do not give memory."""
    return tuple(_without((*_SIZING, *_ADMISSION, _KV_MEMORY), args))


def _without(flags: Sequence[str], args: Sequence[str]) -> Iterator[str]:
    rest = iter(args)
    for argument in rest:
        if argument in flags:
            next(rest, None)
        else:
            yield argument
