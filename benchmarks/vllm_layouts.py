"""Random layer mixes planned by vLLM's own KV planner, one JSON line each.

    <python with torch> benchmarks/vllm_layouts.py SOURCES --seed 1 --count 100 > layouts.jsonl

SOURCES is the folder of an unpacked wheel (any of 0.10.2 to 0.33, CPU builds are enough: only its
Python files are used). Nothing of this project is imported. Packages that the version wants and the
interpreter lacks are replaced by empty ones; the planner needs none of them.

A line has ``engine_version``, ``settings``, ``layers`` {``specs``, ``order_rle``} and ``plan``
{``num_blocks``, ``blocks_per_request``, ``max_concurrency``}, or ``error`` where vLLM refuses.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import importlib.abc
import importlib.machinery
import json
import logging
import random
import re
import sys
import types
from collections.abc import Sequence
from contextlib import suppress
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

GIB = 1024**3


class _EmptyPackages(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives empty modules for packages that some versions import and the planner never uses."""

    names = frozenset({"blake3", "diskcache", "gguf", "mistral_common", "outlines_core"})

    def find_spec(self, name: str, *_: object) -> Any:
        if name.split(".", maxsplit=1)[0] not in self.names:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        module.__path__ = []

        def anything(name: str) -> type:
            if name.startswith("__"):
                raise AttributeError(name)
            return type(name, (), {})

        module.__getattr__ = anything  # type: ignore[method-assign]
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass


class Planner:
    """The planner of the vLLM version that is on the path."""

    def __init__(self, version: str) -> None:
        self.version = tuple(map(int, re.findall(r"\d+", version)[:3]))
        self.specs: Any = importlib.import_module("vllm.v1.kv_cache_interface")
        self.utils: Any = importlib.import_module("vllm.v1.core.kv_cache_utils")
        if self.version >= (0, 33, 0):
            self.planning: Any = importlib.import_module("vllm.v1.core.kv_cache_planning")

    def plan(self, layers: Sequence[dict[str, Any]], settings: dict[str, Any]) -> dict[str, Any]:
        """Return the plan of a model's layers; raises what vLLM raises."""
        specs = {f"layers.{i}": self.spec(fields, settings) for i, fields in enumerate(layers)}
        names = list(specs)
        cuts = settings["worker_layer_cuts"] or [0, len(names)]
        workers = [
            {name: specs[name] for name in names[start:end]} for start, end in pairwise(cuts)
        ]
        config, memory = _config(settings), settings["kv_bytes_per_worker"]
        if self.version < (0, 11, 0):
            configs = self.utils.unify_kv_cache_configs(
                [
                    self.utils.get_kv_cache_config(config, worker, kv_bytes)
                    for worker, kv_bytes in zip(workers, memory, strict=True)
                ]
            )
        elif self.version < (0, 33, 0):
            configs = self.utils.get_kv_cache_configs(config, workers, memory)
        else:
            groups = self.planning.get_global_kv_cache_groups(config, workers)
            configs = self.planning.get_kv_cache_configs(config, workers, memory, groups)
        concurrency = self.utils.get_max_concurrency_for_kv_cache_config(config, configs[0])
        groups = (group.kv_cache_spec for group in configs[0].kv_cache_groups)
        return {
            "num_blocks": configs[0].num_blocks,
            "blocks_per_request": sum(
                -(-group.max_memory_usage_bytes(config) // group.page_size_bytes)
                for group in groups
            ),
            "max_concurrency": round(concurrency, 6),
        }

    def spec(self, fields: dict[str, Any], settings: dict[str, Any]) -> Any:
        """Return vLLM's spec of a layer, without the fields that the version does not know."""
        torch = importlib.import_module("torch")

        values = {
            **fields,
            "head_size_v": fields.get("head_size_v"),
            "use_mla": fields["kind"] == "mla_attention",
            "indexes_kv_by_block_stride": settings["strided_pages"],
        }
        if "state_shapes" in fields:
            values["shapes"] = tuple(map(tuple, fields["state_shapes"]))
            values["dtypes"] = tuple(getattr(torch, name) for name in fields["state_dtypes"])
        else:
            values["dtype"] = getattr(torch, fields["dtype"])
        kinds = {
            "full_attention": "FullAttentionSpec",
            "mla_attention": "MLAAttentionSpec",
            "sliding_window": "SlidingWindowSpec",
            "sliding_window_mla": "SlidingWindowMLASpec",
            "chunked_local_attention": "ChunkedLocalAttentionSpec",
            "mamba": "MambaSpec",
            "cross_attention": "CrossAttentionSpec",
        }
        kind = getattr(self.specs, kinds[fields["kind"]], self.specs.FullAttentionSpec)
        known = {field.name for field in dataclasses.fields(kind)}
        if "mla" in fields["kind"]:
            del values["head_size_v"]
        return kind(**{name: value for name, value in values.items() if name in known})


def _config(settings: dict[str, Any]) -> Any:
    """Return as much of a vLLM config as the planner reads."""
    tokens = settings["max_model_len"]
    layout = types.SimpleNamespace(
        name="BLHNC" if settings["supported_layouts"][0][0] == "B" else "LBNHC"
    )
    with suppress(ModuleNotFoundError):
        layout = importlib.import_module("vllm.v1.kv_cache_layout").KVCacheLayout[layout.name]
    part = types.SimpleNamespace
    return part(
        model_config=part(
            max_model_len=tokens,
            original_max_model_len=-1 if settings["auto_fit"] else tokens,
            supports_kv_cache_grouping=False,
        ),
        scheduler_config=part(
            max_num_batched_tokens=settings["max_num_batched_tokens"],
            max_num_encoder_input_tokens=settings["max_num_encoder_input_tokens"],
            disable_hybrid_kv_cache_manager=settings["disable_hybrid"],
        ),
        cache_config=part(
            block_size=16,
            num_gpu_blocks_override=None,
            mamba_cache_mode=settings["mamba_cache_mode"],
            prefix_cache_retention_interval=None,
            get_resolved_kv_cache_layout=lambda: layout,
        ),
        parallel_config=part(
            tensor_parallel_size=1,
            pipeline_parallel_size=len(settings["kv_bytes_per_worker"]),
            decode_context_parallel_size=settings["dcp"],
            prefill_context_parallel_size=1,
        ),
        attention_config=part(hisparse_config=None),
        device_config=part(device_type="cuda"),
        speculative_config=None,
        kv_transfer_config=None,
        max_in_flight_tokens=settings["max_in_flight_tokens"],
        num_prefill_lookahead_tokens=0,
    )


# --- random models

Layer = dict[str, Any]
WINDOWS, CHUNKS = (128, 512, 1024, 4096), (2048, 8192)


class Mixes:
    """Random models. Each public method gives the layers of one."""

    def __init__(self, rng: random.Random, mode: str) -> None:
        self._rng = rng
        self._mode = mode

    def uniform(self) -> list[Layer]:
        return [self._full()] * self._rng.randint(1, 60)

    def two_numbers_of_heads(self) -> list[Layer]:
        full = self._full()
        return self._interleaved(full, {**full, "num_kv_heads": 2 * full["num_kv_heads"]})

    def windows(self) -> list[Layer]:
        full = self._full()
        heads = full["num_kv_heads"]
        other = self._rng.choice([heads, heads, 2 * heads, 4 * heads, heads + 1, heads + 3])
        block = self._rng.choice([16, 16, 32])
        changed = {"num_kv_heads": other, "block_size": block}
        return self._interleaved(full, self._windowed({**full, **changed}))

    def chunks(self) -> list[Layer]:
        full = self._full()
        return self._interleaved(full, self._chunked(full))

    def two_windows(self) -> list[Layer]:
        full = self._full()
        return self._interleaved(full, self._windowed(full), self._windowed(full))

    def remembered_windows(self) -> list[Layer]:
        full = self._full()
        remembered = {**full, "sliding_window": self._rng.choice(WINDOWS)}
        return self._interleaved(full, remembered, self._windowed(full))

    def states(self) -> list[Layer]:
        heads = {"num_kv_heads": 8, "head_size": 128, "head_size_v": 128}
        full = {**self._full(), **heads, "block_size": self._rng.choice([528, 784, 1056])}
        page = 2048 * full["block_size"] * (1 if full["dtype"] == "uint8" else 2)
        state = {**self._state(padded_to=page), "block_size": full["block_size"]}
        layers = self._interleaved(full, state)
        return [*layers, self._windowed(full)] if self._rng.random() < 0.3 else layers

    def states_of_other_pages(self) -> list[Layer]:
        return self._interleaved(self._full(), self._state())

    def two_states(self) -> list[Layer]:
        parts = [self._state(), self._state()]
        return self._interleaved(*parts, *self._rng.choice([[], [self._full()]]))

    def replicated_drafts(self) -> list[Layer]:
        full = self._full()
        draft = {**self._rng.choice([full, self._full()]), "dcp_sharded": False}
        return self._interleaved(full, self._rng.choice([draft, self._windowed(draft)]))

    def aligned_latents(self) -> list[Layer]:
        aligned = {**self._latent(), "block_stride_alignment": self._rng.choice([4096, 10000])}
        return self._interleaved(aligned, self._latent(), self._windowed(self._full()))

    def latents(self) -> list[Layer]:
        return [self._latent()] * self._rng.randint(1, 61)

    def latents_with_index(self) -> list[Layer]:
        index = {"head_size": 132, "dtype": "uint8", "cache_dtype_str": None}
        return self._interleaved(self._latent(), {**self._latent(), **index})

    def windowed_latents(self) -> list[Layer]:
        latent = self._latent()
        window = {**latent, "kind": "sliding_window_mla", "sliding_window": 128}
        window["block_size"] = self._rng.choice([64, 64, 32, 16])
        small = {"head_size": 132, "dtype": "uint8"}
        more = [
            {**latent, **small},
            {**window, **small},
            {**window, "block_size": 4, "sliding_window": 8, "head_size": 256},
        ]
        return self._interleaved(latent, window, *(p for p in more if self._rng.random() < 0.4))

    def latents_beside_windows(self) -> list[Layer]:
        window = self._windowed({**self._full(), "block_size": 64})
        return self._interleaved(self._latent(), window)

    def cross_attention(self) -> list[Layer]:
        full = self._full()
        return [full, {**full, "kind": "cross_attention"}] * self._rng.randint(1, 32)

    def anything(self) -> list[Layer]:
        parts = [self._full(), self._windowed(self._full()), self._state()]
        return self._interleaved(*self._rng.sample(parts, self._rng.randint(2, 3)), self._full())

    def _full(self) -> Layer:
        size = self._rng.choice([64, 96, 128, 192, 256])
        return {
            "kind": "full_attention",
            "block_size": 16,
            "num_kv_heads": self._rng.choice([1, 2, 4, 5, 8]),
            "head_size": size,
            "head_size_v": size,
            "dtype": self._rng.choice(["bfloat16", "bfloat16", "uint8"]),
        }

    def _windowed(self, layer: Layer) -> Layer:
        return {**layer, "kind": "sliding_window", "sliding_window": self._rng.choice(WINDOWS)}

    def _chunked(self, layer: Layer) -> Layer:
        chunk = self._rng.choice(CHUNKS)
        return {**layer, "kind": "chunked_local_attention", "attention_chunk_size": chunk}

    def _latent(self) -> Layer:
        return {
            "kind": "mla_attention",
            "block_size": 64,
            "num_kv_heads": 1,
            "head_size": self._rng.choice([576, 512]),
            "dtype": self._rng.choice(["bfloat16", "uint8"]),
            "cache_dtype_str": "auto",
        }

    def _state(self, padded_to: int = 0) -> Layer:
        heads, element = self._rng.choice([8, 16, 32]), self._rng.choice(["bfloat16", "float32"])
        layer = {
            "kind": "mamba",
            "block_size": 16,
            "state_shapes": [[3, 64 * heads], [heads, 64, 64]],
            "state_dtypes": ["bfloat16", element],
            "mamba_cache_mode": self._mode,
            "num_speculative_blocks": self._rng.choice([0, 0, 0, 2]),
        }
        size = 2 * 3 * 64 * heads + (4 if element == "float32" else 2) * heads * 64 * 64
        return {**layer, "page_size_padded": padded_to} if size <= padded_to else layer

    def _interleaved(self, *parts: Layer) -> list[Layer]:
        """Return layers of each part, in a regular order mostly."""
        pattern = [part for part in parts for _ in range(self._rng.choice([1, 1, 2, 3, 5]))]
        layers = pattern * self._rng.randint(1, 16)
        layers += [self._rng.choice(parts) for _ in range(self._rng.choice([0, 0, 1, 3]))]
        if self._rng.random() < 0.2:
            self._rng.shuffle(layers)
        return layers


# The version that knows the layers, and the weight.
FAMILIES = {
    Mixes.uniform: ((0, 10), 1),
    Mixes.two_numbers_of_heads: ((0, 10), 1),
    Mixes.windows: ((0, 10), 3),
    Mixes.chunks: ((0, 10), 1),
    Mixes.two_windows: ((0, 10), 1),
    Mixes.remembered_windows: ((0, 11), 1),
    Mixes.states: ((0, 10), 2),
    Mixes.two_states: ((0, 11), 1),
    Mixes.states_of_other_pages: ((0, 10), 1),
    Mixes.latents: ((0, 10), 1),
    Mixes.latents_with_index: ((0, 11), 1),
    Mixes.windowed_latents: ((0, 20), 2),
    Mixes.latents_beside_windows: ((0, 11), 1),
    Mixes.cross_attention: ((0, 11), 1),
    Mixes.replicated_drafts: ((0, 31), 1),
    Mixes.aligned_latents: ((0, 31), 1),
    Mixes.anything: ((0, 12), 2),
}
# How often tokens are dealt to ranks, where not seldom.
_SHARDED = {Mixes.replicated_drafts: 0.8}


def random_case(rng: random.Random, version: tuple[int, ...]) -> tuple[list[Layer], dict[str, Any]]:
    """Return the layers of a random model and the settings it is planned with."""
    mode = rng.choice(["none", "align", "all"] if version < (0, 32, 0) else ["none", "align"])
    known = {f: weight for f, (least, weight) in FAMILIES.items() if version[:2] >= least}
    (family,) = rng.choices(list(known), list(known.values()))
    layers = family(Mixes(rng, mode))
    # Up to 0.28 windowed latents work on one pipeline rank with the hybrid manager only: elsewhere
    # the planner mixes up layers of different sizes, or counts those of ranks that have none. Ranks
    # of 0.10 may disagree in the number of groups.
    plain = family is not Mixes.windowed_latents or version >= (0, 29, 0)
    ranks = plain and (version >= (0, 11, 0) or family is Mixes.uniform) and len(layers) > 8
    workers, cuts = 1, None
    if ranks and rng.random() < 0.15:
        workers = rng.choice([2, 4])
        cuts = [len(layers) * i // workers for i in range(workers + 1)]
    step = rng.choice([512, 2048, 8192])
    batches = rng.choice([1, 2]) if version >= (0, 26, 0) else 1
    packs = version >= (0, 29, 0) and rng.random() < 0.3
    memory = rng.choice([1, 2, 4, 8, 24, 40, 80]) * GIB + rng.choice([0, 7654321])
    return layers, {
        "max_model_len": rng.choice([1024, 8192, 32768, 131072, 262144]),
        "max_num_batched_tokens": step,
        "max_in_flight_tokens": step * batches,
        "max_num_encoder_input_tokens": 1500 if family is Mixes.cross_attention else None,
        "mamba_cache_mode": mode,
        "dcp": rng.choice([2, 4]) if rng.random() < _SHARDED.get(family, 0.1) else 1,
        "disable_hybrid": plain and rng.random() < 0.12,
        "auto_fit": version >= (0, 14, 0) and rng.random() < 0.1,
        "override": None,
        "supported_layouts": ["BLHNC"] if packs else ["LBNHC"],
        "strided_pages": rng.random() < 0.7,
        "worker_layer_cuts": cuts,
        "kv_bytes_per_worker": [memory] * workers,
    }


def main() -> None:
    """Print the lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sources", type=Path, help="folder that holds the package vllm")
    parser.add_argument("--version", help="version of the sources; the folder's name if left out")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    arguments = parser.parse_args()
    version = arguments.version or arguments.sources.name
    sys.path.insert(0, str(arguments.sources))
    sys.meta_path.append(_EmptyPackages())
    logging.disable(logging.CRITICAL)
    planner = Planner(version)
    rng = random.Random(f"{version} {arguments.seed}")
    for _ in range(arguments.count):
        layers, settings = random_case(rng, planner.version)
        distinct = [fields for i, fields in enumerate(layers) if fields not in layers[:i]]
        order = [distinct.index(fields) for fields in layers]
        line: dict[str, Any] = {
            "engine_version": ".".join(map(str, planner.version)),
            "settings": settings,
            "layers": {
                "specs": distinct,
                "order_rle": [[i, len(list(run))] for i, run in groupby(order)],
            },
        }
        try:
            line["plan"] = planner.plan(layers, settings)
        except Exception as error:
            line["error"] = f"{type(error).__name__}: {error}"[:160]
        print(json.dumps(line, separators=(",", ":")))


if __name__ == "__main__":
    main()
