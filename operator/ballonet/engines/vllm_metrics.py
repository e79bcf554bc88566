"""The series of vLLM, 0.10.2 to 0.33 (v1/metrics/loggers.py and its connectors).

Between two versions series were added, and those of offloading also replaced; none changed its
meaning. A page therefore says by itself what its engine has, whatever version was declared.
"""

from __future__ import annotations

from typing import Final

from ballonet.engines.metrics import EngineMetrics, Figure
from ballonet.engines.vllm_versions import parse_version

_OLDEST: Final = "0.10.2"
_BLOCK_OF_ALL_RANKS: Final = (0, 31, 0)
# Endpoints that generate: a refused login or a missing page says nothing about the engine.
_GENERATES: Final = r"/v1/(chat/completions|completions|messages|responses)"


def _answers(status: str) -> tuple[Figure, ...]:
    """Return the answers of a class of status (prometheus-fastapi-instrumentator)."""
    where = {"handler": _GENERATES, "status": status}
    return (Figure("http_requests_total", _OLDEST, where=where),)


def _own(name: str, since: str = _OLDEST, **where: str) -> tuple[Figure, ...]:
    return (Figure(f"vllm:{name}", since, where=where),)


def _moved(kind: str, deprecated: str) -> tuple[Figure, ...]:
    """Return the bytes that an offload connector moved; before 0.24 under another name.

    The older name is still there in 0.33, with the same bytes.
    """
    older = _own("kv_offload_total_bytes_total", "0.16.0", transfer_type=deprecated)
    return (*_own(f"kv_offload_{kind}_bytes_total", "0.24.0"), *older)


METRICS: Final = EngineMetrics(
    prefix="vllm:",
    engine_label="engine",
    present=Figure("vllm:num_requests_running", _OLDEST),
    usage=Figure("vllm:kv_cache_usage_perc", _OLDEST),
    cache_info=Figure("vllm:cache_config_info", _OLDEST),
    awake=Figure("vllm:engine_sleep_state", "0.11.2", where={"sleep_state": "awake"}),
    started=Figure("process_start_time_seconds", _OLDEST),
    finished=Figure("vllm:request_success_total", _OLDEST),
    finished_label="finished_reason",
    sums={
        "running": _own("num_requests_running"),
        "waiting": _own("num_requests_waiting"),
        "waiting_capacity": _own("num_requests_waiting_by_reason", "0.20.0", reason="capacity"),
        # Only engines that take KV data from others have it.
        "fetching": _own(
            "num_requests_kv_fetch_by_stage", "0.32.0", stage="waiting_to_start|in_progress"
        ),
        "preemptions": _own("num_preemptions_total"),
        "prompt_tokens": _own("prompt_tokens_total"),
        "generation_tokens": _own("generation_tokens_total"),
        "iterations": _own("iteration_tokens_total_count"),
        "rejections": _own("admission_rejections_total", "0.32.0"),
        "http_4xx": _answers("4xx"),
        "http_5xx": _answers("5xx"),
        "finished_prompt_tokens": _own("request_prompt_tokens_sum"),
        "finished_generation_tokens": _own("request_generation_tokens_sum"),
        "finished_requests": _own("request_prompt_tokens_count"),
        "computed_prompt_tokens": _own("request_prefill_kv_computed_tokens_sum", "0.13.0"),
        "prefix_queried_tokens": _own("prefix_cache_queries_total"),
        "prefix_hit_tokens": _own("prefix_cache_hits_total"),
        "external_queried_tokens": _own("external_prefix_cache_queries_total", "0.11.2"),
        "external_hit_tokens": _own("external_prefix_cache_hits_total", "0.11.2"),
        # All of its sources together are the hits of the two caches (its help text, 0.32.0).
        "host_hit_tokens": _own("prompt_tokens_cached_by_source_total", "0.32.0", source="host"),
    },
    offload={
        "stored_bytes": _moved("store", "GPU_to_CPU"),
        "loaded_bytes": _moved("load", "CPU_to_GPU"),
        "allocation_failures": _own("kv_offload_allocation_failure_total", "0.26.0"),
    },
)


def reports_block_of_all_ranks(version: str) -> bool:
    """Return whether ``block_size`` of cache_config_info spans decode context parallelism.

    Before, it is the block of one of the ranks that share the cache of a sequence.
    """
    return parse_version(version) >= _BLOCK_OF_ALL_RANKS
