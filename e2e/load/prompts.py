"""Prompts as token ids: unrelated ones, and such that share a prefix or ought to."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from e2e.load.client import random_prompt

# Makes a prompt from a seed; equal seeds give equal prompts.
Prompt = Callable[[str], Sequence[int]]


def unrelated(tokens: int) -> Prompt:
    """Prompts of `tokens` tokens that share nothing."""
    return lambda seed: random_prompt(tokens, seed=seed)


def prefix_first(prefix_tokens: int, own_tokens: int, prefix: str = "prefix") -> Prompt:
    """The shared prefix, then the prompt's own tokens: what a prefix cache can use."""
    shared = random_prompt(prefix_tokens, seed=prefix)
    return lambda seed: [*shared, *random_prompt(own_tokens, seed=seed)]


def prefix_broken(
    prefix_tokens: int, own_tokens: int, head_tokens: int = 8, prefix: str = "prefix"
) -> Prompt:
    """Some tokens that always differ (a date, a user) before the shared prefix, the rest after."""
    shared = random_prompt(prefix_tokens, seed=prefix)

    def prompt(seed: str) -> Sequence[int]:
        head, tail = head_tokens, own_tokens - head_tokens
        own = random_prompt(own_tokens, seed=seed)
        return [*own[:head], *shared, *own[-tail:]]

    return prompt
