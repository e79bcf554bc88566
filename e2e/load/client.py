"""A completion request with an exact number of tokens, and the gauges that the load watches."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp

# A bound on any single request: nothing here may hang for ever, and a queued request takes minutes.
REQUEST_TIMEOUT = aiohttp.ClientTimeout(total=900, connect=10)
# A page that comes late is worth more than none: an engine that computes may answer after seconds.
SCRAPE_TIMEOUT = aiohttp.ClientTimeout(total=30)
BUSY_STATUSES = frozenset({429, 503})
LONGEST_PAUSE_SECONDS = 10.0


class RequestFailedError(Exception):
    """A request got no complete answer; the text says how it ended."""


@dataclass(frozen=True)
class Answer:
    """A completed request."""

    generated_tokens: int
    retries: int


@dataclass(frozen=True)
class Gauges:
    """What the engines behind the given pages report at one moment, summed over engines."""

    running: int
    waiting: int
    preemptions: int
    usage: float  # highest of the engines, 0 to 1
    usable_blocks: int  # of one engine: the blocks without the null block


def random_prompt(tokens: int, *, seed: str, vocabulary: int = 4096) -> list[int]:
    """Token ids that share no prefix with those of another seed (special tokens left out)."""
    source = random.Random(seed)
    return [source.randrange(8, vocabulary) for _ in range(tokens)]


async def complete(
    session: aiohttp.ClientSession,
    base_url: str,
    *,
    model: str,
    prompt: Sequence[int],
    output_tokens: int,
    max_retries: int = 0,
) -> Answer:
    """Ask for exactly `output_tokens` tokens after `prompt`.

    A busy engine (429, 503) is asked again after its Retry-After, as an agent runtime would do.

    Raises:
        RequestFailedError: refused, failed, cut, or still busy after `max_retries`.
    """
    body = {
        "model": model,
        "prompt": list(prompt),
        "max_tokens": output_tokens,
        "ignore_eos": True,
        "temperature": 0,
    }
    for retries in range(max_retries + 1):
        try:
            async with session.post(
                f"{base_url}/v1/completions", json=body, timeout=REQUEST_TIMEOUT
            ) as response:
                if response.status == 200:
                    usage = (await response.json())["usage"]
                    return Answer(generated_tokens=usage["completion_tokens"], retries=retries)
                text = (await response.text())[:300]
                if response.status not in BUSY_STATUSES or retries == max_retries:
                    raise RequestFailedError(f"HTTP {response.status}: {text}")
                pause = _retry_after_seconds(response.headers.get("Retry-After"))
        except (aiohttp.ClientError, TimeoutError) as error:
            raise RequestFailedError(f"{type(error).__name__}: {error}") from error
        await asyncio.sleep(pause)
    raise AssertionError("unreachable: the last retry returns or raises")


async def read_gauges(session: aiohttp.ClientSession, metrics_urls: Sequence[str]) -> Gauges:
    """Read vLLM's scheduler gauges from the given pages.

    Raises:
        aiohttp.ClientError, TimeoutError: a page could not be read.
    """
    pages = await asyncio.gather(*(_page(session, url) for url in metrics_urls))
    lines = [line for page in pages for line in page.splitlines()]
    # One pod's engines all carry the label, and it is their sum.
    infos = [line for line in pages[0].splitlines() if _is_cache_config(line)]
    return Gauges(
        running=int(sum(_values(lines, "vllm:num_requests_running"))),
        waiting=int(sum(_values(lines, "vllm:num_requests_waiting"))),
        preemptions=int(sum(_values(lines, "vllm:num_preemptions_total"))),
        usage=max(_values(lines, "vllm:kv_cache_usage_perc"), default=math.nan),
        usable_blocks=int(_label(infos[0], "num_gpu_blocks")) // len(infos) - 1 if infos else 0,
    )


async def _page(session: aiohttp.ClientSession, url: str) -> str:
    async with session.get(url, timeout=SCRAPE_TIMEOUT) as response:
        response.raise_for_status()
        return await response.text()


def _values(lines: Sequence[str], name: str) -> list[float]:
    return [float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"{name}{{")]


def _is_cache_config(line: str) -> bool:
    return line.startswith("vllm:cache_config_info{")


def _label(line: str, name: str) -> str:
    return line.split(f'{name}="', 1)[1].split('"', 1)[0]


def _retry_after_seconds(header: str | None) -> float:
    try:
        wanted = float(header) if header else 1.0
    except ValueError:  # the other legal form is a date
        wanted = 1.0
    return min(max(wanted, 0.1), LONGEST_PAUSE_SECONDS)
