"""Runs in vLLM's own Python: the real scheduler with the probe in it, and no model.

    step_scheduler.py MODEL_FOLDER --groups full|sliding [--asynchronous] [--unreadable]

A bounded, seeded load of an agent fan-out is stepped through; after each schedule and each update
the page is compared with a count over all blocks of all requests that shares no code with it.
Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections import Counter

import torch

from ballonet_probe import plugin

plugin.serve = lambda *_: None  # Pages are read from the object; the server has its own test.


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--groups", choices=("full", "sliding"), default="full")
    parser.add_argument("--asynchronous", action="store_true")
    parser.add_argument("--blocks", type=int, default=128)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--unreadable", action="store_true", help="halfway, so is the block pool")
    options = parser.parse_args()
    plugin.register()
    plugin.register()
    print(json.dumps(Run(options).result()))


def engine_config(options):
    from vllm.engine.arg_utils import EngineArgs

    config = EngineArgs(
        model=options.model,
        skip_tokenizer_init=True,
        block_size=32,
        max_model_len=1024,
        max_num_seqs=16,
        max_num_batched_tokens=256,
        enable_prefix_caching=True,
    ).create_engine_config()
    config.scheduler_config.async_scheduling = options.asynchronous
    config.cache_config.num_gpu_blocks = options.blocks
    return config


def cache_config(options):
    from vllm.v1.kv_cache_interface import (
        FullAttentionSpec,
        KVCacheConfig,
        KVCacheGroupSpec,
        SlidingWindowSpec,
    )

    shape = {"block_size": 32, "num_kv_heads": 2, "head_size": 64, "dtype": torch.bfloat16}
    groups = [KVCacheGroupSpec(["layer.0"], FullAttentionSpec(**shape))]
    if options.groups == "sliding":
        window = SlidingWindowSpec(**shape, sliding_window=128)
        groups += [KVCacheGroupSpec([f"layer.{n}"], window) for n in (1, 2)]
    return KVCacheConfig(options.blocks, [], groups)


class Run:
    def __init__(self, options):
        from vllm.v1.structured_output import StructuredOutputManager

        self.options = options
        self.random = random.Random(7)
        config = engine_config(options)
        chosen = config.scheduler_config.get_scheduler_cls()
        self.scheduler = chosen(
            vllm_config=config,
            kv_cache_config=cache_config(options),
            structured_output_manager=StructuredOutputManager(config),
            block_size=32,
            hash_block_size=32,
            log_stats=True,
        )
        self.probe = self.scheduler._ballonet
        self.expected = Counter()
        self.differing = []
        self.checks = 0
        self.peak_used = 0
        self.preempted = Counter()
        self.nulls = 0

    def result(self):
        waiting = [self.request(run, role) for run in range(6) for role in ROLES]
        self.random.shuffle(waiting)
        in_flight = []
        for step in range(self.options.steps):
            if self.options.unreadable and step == 100:
                self.probe._scheduler = object()
            while waiting and self.random.random() < 0.3:
                request = waiting.pop()
                self.scheduler.add_request(request)
                self.expected["arrived"] += 1
            if self.random.random() < 0.004 and self.scheduler.requests:
                self.abort(self.random.choice(sorted(self.scheduler.requests)))
            in_flight.append(self.scheduler.schedule())
            self.check()
            if len(in_flight) > self.options.asynchronous:
                self.update(in_flight.pop(0))
            if not waiting and not self.scheduler.requests:
                break
        while in_flight:
            self.update(in_flight.pop(0))
        page = self.probe.page()
        return {
            "class": type(self.scheduler).__name__,
            "steps": step,
            "checks": self.checks,
            "differing": self.differing[:5],
            "peak_used": self.peak_used,
            "null_blocks_seen": self.nulls,
            "expected": dict(self.expected),
            "preemptions": sum(self.preempted.values()),
            "page": page,
        }

    def request(self, run, role):
        from vllm import SamplingParams
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.request import Request

        init_none_hash(sha256)
        number = self.random.randrange(10**8)
        prefix = list(range(3, 3 + 160))
        own = [self.random.randrange(3, 500) for _ in range(self.random.randrange(40, 300))]
        parameters = SamplingParams(max_tokens=self.random.randrange(20, 300), ignore_eos=True)
        if role == "planner":
            parameters.extra_args = {"ballonet_run": f"run{run}", "ballonet_role": role}
        request_id = f"cmpl-run{run}.{role}.{number}-0-{number:08x}"
        return Request(
            request_id=request_id,
            prompt_token_ids=prefix + own,
            sampling_params=parameters,
            pooling_params=None,
            block_hasher=get_request_block_hasher(32, sha256),
        )

    def abort(self, request_id):
        from vllm.v1.request import RequestStatus

        self.scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)
        self.expected["aborted"] += 1
        self.check()

    def update(self, output):
        from vllm.v1.outputs import ModelRunnerOutput

        ids = list(output.num_scheduled_tokens)
        live = self.scheduler.requests
        tokens = []
        for one in ids:
            request = live.get(one)
            # A prefill that is not complete gives no token.
            done = request is not None and self.complete(request)
            tokens.append([5] if done else [])
        outputs = self.scheduler.update_from_output(
            output,
            ModelRunnerOutput(
                req_ids=ids,
                req_id_to_index={one: index for index, one in enumerate(ids)},
                sampled_token_ids=tokens,
                logprobs=None,
                prompt_logprobs_dict={},
                pooler_output=[],
            ),
        )
        for of_client in outputs.values():
            self.expected["finished"] += sum(
                one.finish_reason is not None for one in of_client.outputs
            )
        self.check()

    def complete(self, request):
        if self.options.asynchronous:
            return request.num_output_placeholders > 0
        return request.num_computed_tokens >= request.num_tokens

    def check(self):
        """Compare the page with sets of block ids, as vLLM's own manager keeps them."""
        if self.options.unreadable:
            return
        manager = self.scheduler.kv_cache_manager
        holders = Counter()
        own = {}
        for request_id in self.scheduler.requests:
            blocks = set()
            for table in manager.coordinator.single_type_managers:
                for block in table.req_to_blocks.get(request_id, ()):
                    self.nulls += block.is_null
                    if not block.is_null:
                        blocks.add(block.block_id)
            own[request_id] = blocks
            holders.update(blocks)
        pool = manager.block_pool
        used = pool.num_gpu_blocks - 1 - pool.get_num_free_blocks()
        for request_id, request in self.scheduler.requests.items():
            self.preempted[request_id] = max(self.preempted[request_id], request.num_preemptions)
        in_use = dict(
            re.findall(
                r'ballonet_kv_blocks_in_use\{[^}]*sequence_id="([^"]+)"[^}]*\} (\d+)',
                self.probe.page(),
            )
        )
        shared = sum(1 for count in holders.values() if count > 1)
        exclusive = sorted(
            sum(holders[block] == 1 for block in blocks) for blocks in own.values() if blocks
        )
        seen = sorted(int(n) for name, n in in_use.items() if not name.startswith("_"))
        same = (
            len(holders) == used
            and int(in_use["_shared"]) == shared
            and seen == exclusive
            and sum(map(int, in_use.values())) == used
        )
        self.checks += 1
        self.peak_used = max(self.peak_used, used)
        if not same:
            self.differing.append([used, len(holders), shared, in_use, exclusive])


ROLES = ("planner", "worker", "worker", "worker", "worker", "worker")

if __name__ == "__main__":
    main()
