"""What a scheduler holds at one instant. Call with the scheduler's lock held; it does no I/O."""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass
from typing import Any

from ballonet_probe.settings import MAX_NAME_CHARACTERS

PHASES = ("prefill", "decode", "waiting", "preempted")

# Numbers beyond are no names, and the largest cannot even be written.
_MOST_NUMBER = 2**63

_references = operator.attrgetter("ref_cnt")
_is_null = operator.attrgetter("is_null")
# What vLLM puts around a client's request id: the number of the completion, the kind of request
# (entrypoints/openai/*/serving.py), and behind it eight random digits (v1/engine/input_processor).
_ID = re.compile(r"(?:\d+_)?(?:cmpl-|chatcmpl-|resp_)?([^.]+)\.([^.-]+)[.-]")


@dataclass(frozen=True)
class Sequence:
    """One request that the engine knows.

    Attributes:
        exclusive_blocks: blocks that no other sequence uses.
        held_blocks: blocks it uses, shared ones among them, over all KV cache groups.
        tokens: prompt and output so far.
    """

    id: str
    run: str
    role: str
    phase: str
    exclusive_blocks: int
    held_blocks: int
    tokens: int


@dataclass(frozen=True)
class Snapshot:
    """All sequences and the block pool.

    ``shared_blocks`` are used blocks that no sequence has for itself, so that
    ``total = free + shared + the exclusive blocks of all sequences`` holds exactly. The null block
    counts nowhere.
    """

    total_blocks: int
    free_blocks: int
    shared_blocks: int
    sequences: tuple[Sequence, ...]


def take(scheduler: Any) -> Snapshot:
    """Return what the scheduler holds.

    A block that a connector pins or that is freed a step later belongs to no sequence and counts
    as shared.
    """
    manager = scheduler.kv_cache_manager
    pool = manager.block_pool
    # A group may draw from a pool of its own (a sparse cache on the host); it is not ours to count.
    tables = [
        table.req_to_blocks
        for table in manager.coordinator.single_type_managers
        if getattr(table, "block_pool", pool) is pool
    ]
    sequences = tuple(_sequence(request, tables) for request in scheduler.requests.values())
    total = pool.num_gpu_blocks - 1
    free = pool.get_num_free_blocks()
    exclusive = sum(sequence.exclusive_blocks for sequence in sequences)
    return Snapshot(total, free, total - free - exclusive, sequences)


def _sequence(request: Any, tables: list[Any]) -> Sequence:
    held = exclusive = 0
    for table in tables:
        blocks = table.get(request.request_id)
        if not blocks:
            continue
        # Windows and states put the null block in place of what they gave back; nobody counts its
        # references. C loops: a pool has up to a million blocks, and the engine waits meanwhile.
        nulls = sum(map(_is_null, blocks))
        held += len(blocks) - nulls
        if nulls:
            exclusive += sum(block.ref_cnt == 1 for block in blocks if not block.is_null)
        else:
            exclusive += list(map(_references, blocks)).count(1)
    run, role = tags(request)
    return Sequence(
        id=request.request_id,
        run=run,
        role=role,
        phase=phase(request),
        exclusive_blocks=exclusive,
        held_blocks=held,
        tokens=request.num_tokens,
    )


def tags(request: Any) -> tuple[str, str]:
    """Return the run and the role of a request, empty where it says none.

    ``vllm_xargs`` (ballonet_run, ballonet_role) first, then the session id as the run, then a
    request id of the form ``run.role.anything``. All of it is a client's text: cut, never trusted.
    """
    extra = getattr(getattr(request, "sampling_params", None), "extra_args", None) or {}
    run = _name(extra.get("ballonet_run")) or _name(getattr(request, "session_id", None))
    role = _name(extra.get("ballonet_role"))
    match = _ID.match(request.request_id[: 4 * MAX_NAME_CHARACTERS])
    if match is not None:
        run, role = run or match[1], role or match[2]
    return run[:MAX_NAME_CHARACTERS], role[:MAX_NAME_CHARACTERS]


def _name(value: object) -> str:
    """Return what a client gave as a name; a list, of any length, is none to be written out."""
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int) and abs(value) < _MOST_NUMBER else ""


def phase(request: Any) -> str:
    """Return which of PHASES a request is in.

    vLLM has no phases and counts a step's tokens as computed before the step runs, so a request
    is in prefill while it has no output, and again while what a preemption took is worked out anew.
    """
    status = request.status.name
    if status != "RUNNING":
        return "preempted" if status == "PREEMPTED" else "waiting"
    computed = request.num_computed_tokens - request.num_output_placeholders
    whole = request.num_tokens > request.num_prompt_tokens and computed >= request.num_tokens - 1
    return "decode" if whole else "prefill"
