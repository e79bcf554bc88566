"""Arguments of the user that change cache layout or memory, seen in the plan."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ballonet.api.conditions import Finding, Reason, Status
from ballonet.api.status import Source
from ballonet.kv.units import GIB
from ballonet.planning.plan import Plan
from ballonet.planning.planner import plan_pool
from tests.pools import DEMO, H100, spec


def planned(name: str, /, *args: str, **changes: Any) -> Plan:
    changes = {"engine": {"args": list(args)}, "model": {"name": name}, **changes}
    return plan_pool("p", spec(H100, **changes), with_remedies=False)


def block_bytes(plan: Plan) -> int:
    assert plan.layout is not None
    return plan.layout.bytes_per_block


def kv_low_bytes(plan: Plan) -> int:
    assert plan.predicted is not None, plan.budget_computed
    return plan.predicted.kv_cache_low_bytes


DENSE, WINDOWED, DRAFTING = "Qwen/Qwen3-32B", "google/gemma-3-27b-it", "Qwen/Qwen3.5-27B"


def test_a_cache_type_beyond_the_enum_decides_the_bytes_of_a_block() -> None:
    plain = block_bytes(planned(DENSE))
    assert block_bytes(planned(DENSE, "--kv-cache-dtype", "fp8_e5m2")) * 2 == plain
    # 4 bits for key and value, and a scale of 32 bits for each.
    int4 = block_bytes(planned(DENSE, "--kv-cache-dtype=int4_per_token_head"))
    assert int4 * 512 == plain * (64 + 64 + 8)


def test_a_cache_type_that_is_written_twice_is_refused_by_both_names() -> None:
    plan = planned(DENSE, "--kv-cache-dtype", "fp8_e5m2", sequence={"kvCacheType": "FP8"})
    (sentence,) = plan.refused_arguments
    assert "--kv-cache-dtype fp8_e5m2" in sentence and "spec.sequence.kvCacheType" in sentence


def test_without_the_hybrid_manager_windows_are_kept_as_full_attention() -> None:
    whole = planned(WINDOWED, "--disable-hybrid-kv-cache-manager")
    windows = planned(WINDOWED)
    assert whole.layout is not None and windows.layout is not None
    assert len(whole.layout.groups) == 1 < len(windows.layout.groups)
    held = [
        plan.layout.blocks(32_768) * plan.layout.bytes_per_block
        for plan in (whole, windows)
        if plan.layout is not None
    ]
    assert held[0] > held[1]


def test_weights_kept_in_host_memory_leave_that_much_more_for_the_cache() -> None:
    more = kv_low_bytes(planned(DENSE, "--cpu-offload-gb", "4")) - kv_low_bytes(planned(DENSE))
    assert more == 4 * GIB


def test_embeddings_stay_on_the_device_whatever_may_leave_it() -> None:
    memory = planned(DENSE, "--cpu-offload-gb", "1000").device_memory
    assert memory is not None
    (weights,) = [part.bytes for part in memory.parts if part.name == "weights"]
    assert weights.high == 2 * 2 * 151_936 * 5120 // 2  # two tables of 16 bits over two ranks


def test_eager_mode_takes_no_graphs() -> None:
    parts = [part.name for part in planned(DENSE, "--enforce-eager").memory.parts]  # type: ignore[union-attr]
    assert "CUDA graphs" not in parts


def test_room_for_adapters_is_taken_off_the_cache() -> None:
    plan = planned(DENSE, "--enable-lora", "--max-loras", "4", "--max-lora-rank", "64")
    assert plan.memory is not None
    part = next(part for part in plan.memory.parts if part.name == "adapters")
    # Of one adapter of rank 64 at 16 bits on one of two ranks: 64 layers of query, key, value,
    # output, gate, up and down.
    inputs = 3 * 5120 + 8192 // 2 + 2 * 5120 + 25_600 // 2
    outputs = (8192 + 2 * 1024) // 2 + 5120 + 2 * 25_600 // 2 + 5120
    assert part.bytes.low == 4 * 64 * 2 * 64 * (inputs + outputs)
    assert kv_low_bytes(planned(DENSE)) - kv_low_bytes(plan) == part.bytes.high


def test_adapters_of_experts_are_unknown_unless_the_memory_is_given() -> None:
    mixture = {"parallelism": {"tensor": 8}}
    plan = planned("Qwen/Qwen3-30B-A3B", "--enable-lora", **mixture)
    assert plan.budget_computed.reason is Reason.UNPLANNED_ARGUMENT
    assert "--enable-lora" in plan.budget_computed.message
    given = planned(
        "Qwen/Qwen3-30B-A3B", "--enable-lora", **mixture, budget={"kvCacheMemoryPerRank": "20Gi"}
    )
    assert given.budget_computed.reason is Reason.GIVEN


def test_blocks_that_are_given_are_the_blocks() -> None:
    plan = planned(DENSE, "--num-gpu-blocks-override", "5000")
    assert plan.source is Source.GIVEN
    assert plan.blocks is not None and (plan.blocks.low, plan.blocks.high) == (5000, 5000)
    fights = planned(
        DENSE, "--num-gpu-blocks-override", "5000", budget={"kvCacheMemoryPerRank": "20Gi"}
    )
    assert "spec.budget.kvCacheMemoryPerRank" in fights.refused_arguments[0]
    for too_many in ("500000", "1" + "0" * 14):
        plan = planned(DENSE, "--num-gpu-blocks-override", too_many)
        assert plan.budget_computed.reason is Reason.MODEL_DOES_NOT_FIT
        assert plan.budget_computed.message.startswith("--num-gpu-blocks-override is more than")
    plan = planned(DENSE, "--num-gpu-blocks-override", "9")
    assert "give more --num-gpu-blocks-override" in plan.budget_computed.message
    assert planned(DENSE, "--num-gpu-blocks-override", "1e3").source is None


def test_quantizing_at_loading_needs_the_size_of_the_weights() -> None:
    plan = planned(DENSE, "--quantization", "fp8")
    assert plan.budget_computed.reason is Reason.WEIGHTS_UNKNOWN
    known = planned(
        DENSE, "--quantization", "fp8", model={"name": DENSE, "weights": {"memory": "33Gi"}}
    )
    assert known.budget_computed.reason is Reason.PREDICTED


def test_drafted_tokens_take_room_of_each_sequence() -> None:
    plain, ngram = planned(DENSE), planned(DENSE, "--spec-method=ngram", "--spec-tokens=5")
    assert block_bytes(ngram) == block_bytes(plain)
    drafting = ("--speculative-config", '{"method": "mtp", "num_speculative_tokens": 3}')
    own, without = planned(DRAFTING, *drafting), planned(DRAFTING)
    assert own.layout is not None and without.layout is not None
    layers = [
        sum(len(group.layers) for group in p.layout.groups) for p in (own, without) if p.layout
    ]
    assert layers[0] == layers[1] + 1
    assert own.memory is not None
    assert "drafting" in [part.name for part in own.memory.parts]


def test_a_model_without_layers_that_draft_is_refused() -> None:
    plan = planned(DENSE, "-sc", '{"method": "mtp", "num_speculative_tokens": 1}')
    assert plan.spec_resolved.reason is Reason.UNSUPPORTED_BY_ENGINE
    assert "spec.engine.args" in plan.spec_resolved.message


def test_a_drafting_model_comes_from_the_catalog_or_is_unknown_by_name() -> None:
    draft = ("--spec-method=draft_model", "--spec-tokens=3", "--spec-model")
    plan, plain = planned(DENSE, *draft, "Qwen/Qwen3-0.6B"), planned(DENSE)
    assert block_bytes(plan) > block_bytes(plain)
    assert kv_low_bytes(plan) < kv_low_bytes(plain)
    unknown = planned(DENSE, *draft, "nobody/knows-it")
    assert unknown.budget_computed.reason is Reason.LAYOUT_NOT_UNDERSTOOD
    assert "nobody/knows-it is not in the catalog" in unknown.budget_computed.message


@pytest.mark.parametrize(
    ("version", "draft", "words"),
    [
        ("0.14.1", "Qwen/Qwen3-0.6B", "needs vLLM 0.15 or later"),
        ("0.32.0", "google/gemma-3-4b-it", "262,208 words and the model 151,936"),
    ],
)
def test_a_drafting_model_that_the_engine_refuses_is_refused(
    version: str, draft: str, words: str
) -> None:
    args = ["-sc", f'{{"method": "draft_model", "model": "{draft}", "num_speculative_tokens": 3}}']
    plan = planned(DENSE, engine={"version": version, "args": args})
    assert plan.spec_resolved.reason is Reason.UNSUPPORTED_BY_ENGINE
    assert words in plan.spec_resolved.message


def test_engines_of_one_pod_have_blocks_and_slots_of_their_own() -> None:
    alone, four = planned(DENSE), planned(DENSE, parallelism={"data": 4})
    assert four.blocks == alone.blocks
    assert four.pod is not None and four.pod.gpus_per_pod == 8
    assert "--data-parallel-size 4" in " ".join(four.engine_args)


def test_more_devices_than_a_node_has_are_refused_with_all_their_factors() -> None:
    plan = planned(DENSE, parallelism={"data": 8})
    assert plan.spec_resolved.reason is Reason.UNSUPPORTED_BY_ENGINE
    assert "tensor 2 x pipeline 1 x data 8 = 16 devices a pod" in plan.spec_resolved.message


def test_decode_context_ranks_share_the_cache_of_a_sequence() -> None:
    model, eight = "deepseek-ai/DeepSeek-V3", {"tensor": 8, "decodeContext": 8}
    memory = {"budget": {"kvCacheMemoryPerRank": "10Gi"}}
    alone = planned(model, parallelism={"tensor": 8}, **memory)
    shared = planned(model, parallelism=eight, **memory)
    assert alone.layout is not None and shared.layout is not None
    assert alone.layout.blocks(32_768) == 8 * shared.layout.blocks(32_768)
    assert shared.pod is not None and shared.pod.gpus_per_pod == 8


@pytest.mark.parametrize("model", [WINDOWED, DRAFTING, "deepseek-ai/DeepSeek-V3"])
def test_block_and_prefix_caching_are_left_to_the_engine_where_kernels_decide(model: str) -> None:
    plan = planned(model, parallelism={"tensor": 8})
    plain = model == WINDOWED
    assert ("--block-size" in plan.engine_args) is plain
    assert ("--enable-prefix-caching" in plan.engine_args) is plain


def test_what_the_user_says_of_block_and_prefix_caching_is_written() -> None:
    plan = planned(DRAFTING, sequence={"blockTokens": 32, "prefixCaching": "Disabled"})
    assert "--block-size 32" in " ".join(plan.engine_args)
    assert "--no-enable-prefix-caching" in plan.engine_args


def test_a_backend_of_latents_needs_the_block_that_it_takes() -> None:
    eight = {
        "parallelism": {"tensor": 8},
        "accelerator": {"type": "H200-141GB"},
        "budget": {"kvCacheMemoryPerRank": "10Gi"},
    }
    backend = ("--attention-backend", "FLASHMLA")
    plan = planned("deepseek-ai/DeepSeek-V3", *backend, **eight)
    assert plan.budget_computed.reason is Reason.UNPLANNED_ARGUMENT
    assert "spec.sequence.blockTokens" in plan.budget_computed.message
    known = planned("deepseek-ai/DeepSeek-V3", *backend, **eight, sequence={"blockTokens": 64})
    assert known.layout is not None and known.layout.block_tokens == 64
    assert known.budget_computed.reason is Reason.GIVEN
    assert planned(DENSE, "--attention-backend", "FLASHINFER").source is Source.PREDICTED


@pytest.mark.parametrize(
    ("model", "architecture", "without", "since"),
    [
        ("Qwen/Qwen3.5-27B", "Qwen3_5ForConditionalGeneration", "0.16.0", "0.17.0"),
        ("zai-org/GLM-5.1-FP8", "GlmMoeDsaForCausalLM", "0.15.1", "0.16.0"),
        ("zai-org/GLM-4.7-Flash", "Glm4MoeLiteForCausalLM", "0.14.1", "0.15.0"),
        ("google/gemma-4-31B-it", "Gemma4ForConditionalGeneration", "0.18.1", "0.19.0"),
        ("moonshotai/Kimi-K3", "KimiK3ForConditionalGeneration", "0.26.0", "0.27.0"),
    ],
)
def test_a_version_without_the_models_architecture_is_refused_with_those_that_have_it(
    model: str, architecture: str, without: str, since: str
) -> None:
    resolved = planned(model, engine={"version": without}).spec_resolved
    assert (resolved.status, resolved.reason) == (Status.FALSE, Reason.UNSUPPORTED_BY_ENGINE)
    assert f"spec.engine.version: vLLM {without} does not have the arch" in resolved.message
    assert f"{architecture} of {model}" in resolved.message
    assert f"use vLLM {since} to 0.33.0" in resolved.message
    known = planned(model, engine={"version": since}).spec_resolved
    assert "architecture" not in known.message
    # A build between the two may have it.
    between = planned(model, engine={"version": f"{since}rc1"}).spec_resolved
    assert "architecture" not in between.message


def test_a_model_that_was_removed_is_refused_with_the_last_version_that_has_it() -> None:
    removed = planned("Qwen/Qwen-7B-Chat", engine={"version": "0.32.0"}).spec_resolved
    assert "use vLLM 0.10.2 to 0.23.0" in removed.message
    last = planned("Qwen/Qwen-7B-Chat", engine={"version": "0.23.0"}).spec_resolved
    assert "architecture" not in last.message


@pytest.mark.parametrize(
    ("model", "version", "starts"),
    [
        ("google/gemma-3n-E4B-it", "0.33.0", False),
        ("mistralai/Mamba-Codestral-7B-v0.1", "0.32.0", False),
        ("deepseek-ai/DeepSeek-V4-Flash", "0.20.2", False),
        ("deepseek-ai/DeepSeek-V4-Flash", "0.21.0", True),
        (DENSE, "0.10.2", True),
    ],
)
def test_pipeline_stages_need_a_model_that_the_version_divides(
    model: str, version: str, *, starts: bool
) -> None:
    def resolved(pipeline: int, *args: str) -> Finding:
        plan = planned(
            model,
            engine={"version": version, "args": list(args)},
            parallelism={"tensor": 2, "pipeline": pipeline},
        )
        return plan.spec_resolved

    message = resolved(2).message
    assert (resolved(2).status is Status.TRUE) is starts, message
    assert message.startswith("spec.parallelism.pipeline: 2: vLLM") is not starts
    assert resolved(1).status is Status.TRUE
    # Other code may run it.
    assert resolved(2, "--trust-remote-code").status is Status.TRUE


def test_what_another_library_may_run_is_not_refused_for_its_architecture() -> None:
    old = {"version": "0.16.0"}
    message = planned(DRAFTING, engine=old).spec_resolved.message
    assert "does not have the architecture" in message
    for hatch in (
        {"args": ["--trust-remote-code"]},
        {"env": [{"name": "VLLM_PLUGINS", "value": "own"}]},
    ):
        resolved = planned(DRAFTING, engine=old | hatch).spec_resolved
        assert resolved.status is Status.TRUE
    # In the Transformers library since 4.57, which versions without it fall back to.
    older = planned("allenai/Olmo-3-7B-Instruct", engine={"version": "0.10.2"}).spec_resolved
    assert older.status is Status.TRUE


def test_an_older_version_may_start_where_no_sequence_can_be_finished() -> None:
    # 32 blocks: the null block is among them, and up to 0.28 the check at start counts it.
    for version in ("0.28.0", "0.32.0"):
        pool = spec(DEMO, engine={"version": version}, budget={"kvCacheMemoryPerRank": 32 * 65_536})
        assert plan_pool("p", pool).budget_computed.reason is Reason.CEILING_DOES_NOT_FIT


# What kernels keep was read in vLLM's backends, 0.10.2 to 0.32.0.
LATENT, SPARSE, SINKS = "deepseek-ai/DeepSeek-V3", "deepseek-ai/DeepSeek-V3.2", "openai/gpt-oss-20b"


@pytest.mark.parametrize(
    ("model", "device", "name", "version", "starts"),
    [
        (DENSE, "A100-80GB", "fp8_e4m3", "0.32.0", True),
        (DENSE, "T4-16GB", "fp8_e4m3", "0.32.0", False),
        # FlashInfer ran on Turing until 0.24 (vllm-project/vllm#47549).
        (DENSE, "T4-16GB", "fp8_e4m3", "0.23.0", True),
        (DENSE, "T4-16GB", "fp8_e5m2", "0.12.0", True),
        ("google/gemma-3-1b-it", "T4-16GB", "fp8_e4m3", "0.23.0", False),
        (SINKS, "A100-80GB", "turboquant_k8v4", "0.33.0", False),
        (WINDOWED, "H100-80GB", "turboquant_k8v4", "0.33.0", False),
        # Backends are asked whether they take windows from 0.26 on.
        ("google/gemma-3-1b-it", "H100-80GB", "turboquant_k8v4", "0.25.1", True),
        ("google/gemma-3-1b-it", "H100-80GB", "turboquant_k8v4", "0.26.0", False),
        # Backends were asked whether they take such images from 0.13 on.
        (WINDOWED, "A100-80GB", "fp8_e4m3", "0.12.0", True),
        (WINDOWED, "A100-80GB", "fp8_e4m3", "0.13.0", False),
        (DENSE, "A100-80GB", "fp8_e4m3", "0.11.0", False),
        (DENSE, "A100-80GB", "fp8_e4m3", "0.11.1", True),
        ("microsoft/Phi-3-mini-128k-instruct", "B200-180GB", "nvfp4", "0.32.0", False),
        (DENSE, "V100-32GB", "fp8_e5m2", "0.32.0", False),
        (DENSE, "MI210-64GB", "fp8_e4m3", "0.32.0", False),
        (DENSE, "GAUDI2-96GB", "fp8_e4m3", "0.32.0", False),
        (DENSE, "A100-80GB", "fp8_e4m3", "0.10.2", False),
        (DENSE, "H100-80GB", "fp8_e4m3", "0.10.2", True),
        # FlashAttention 3 was chosen for these and had no number for them.
        (DENSE, "H100-80GB", "fp8_e5m2", "0.21.0", False),
        (DENSE, "H100-80GB", "int8_per_token_head", "0.21.0", False),
        (DENSE, "H100-80GB", "fp8_e5m2", "0.22.0", True),
        (DENSE, "L40S-48GB", "fp8_e5m2", "0.21.0", True),
        # There is no attention that it could be chosen for.
        ("mistralai/Mamba-Codestral-7B-v0.1", "H100-80GB", "fp8_e5m2", "0.21.0", True),
        (DENSE, "B200-180GB", "nvfp4", "0.28.0", True),
        (DENSE, "B200-180GB", "nvfp4", "0.20.2", False),
        (DENSE, "H100-80GB", "nvfp4", "0.28.0", False),
        (DENSE, "H100-80GB", "nvfp4", "0.32.0", True),
        (DENSE, "H100-80GB", "nvfp4_4over6", "0.32.0", False),
        (DENSE, "MI300X-192GB", "nvfp4", "0.32.0", False),
        (DENSE, "A100-80GB", "fp8_per_token_head", "0.32.0", False),
        (DENSE, "L40S-48GB", "fp8_per_token_head", "0.32.0", True),
        (DENSE, "H100-80GB", "fp8_inc", "0.32.0", False),
        (DENSE, "H100-80GB", "fp8_ds_mla", "0.32.0", False),
        (SINKS, "A100-80GB", "fp8_e4m3", "0.32.0", False),
        (SINKS, "L40S-48GB", "fp8_e4m3", "0.32.0", True),
        (WINDOWED, "A100-80GB", "fp8_e4m3", "0.32.0", False),
        (LATENT, "H200-141GB", "fp8_e4m3", "0.32.0", True),
        (LATENT, "H200-141GB", "fp8_e5m2", "0.32.0", False),
        (LATENT, "H200-141GB", "fp8_ds_mla", "0.32.0", False),
        (LATENT, "H200-141GB", "int8_per_token_head", "0.32.0", False),
        (LATENT, "MI300X-192GB", "turboquant_k8v4", "0.32.0", False),
        (LATENT, "A100-80GB", "fp8_e4m3", "0.32.0", False),
        (LATENT, "L40S-48GB", "fp8_e4m3", "0.32.0", True),
        (LATENT, "L40S-48GB", "fp8_e4m3", "0.16.0", False),
        (SPARSE, "H200-141GB", "fp8_ds_mla", "0.32.0", True),
        (SPARSE, "H200-141GB", "nvfp4_ds_mla", "0.32.0", False),
        (SPARSE, "B200-180GB", "nvfp4_ds_mla", "0.32.0", True),
    ],
)
def test_a_cache_type_that_no_kernel_keeps_is_refused_by_name(
    model: str, device: str, name: str, version: str, *, starts: bool
) -> None:
    plan = planned(
        model,
        engine={"version": version, "args": ["--kv-cache-dtype", name]},
        accelerator={"type": device},
    )
    resolved = plan.spec_resolved
    assert (resolved.status is Status.TRUE) is starts, resolved.message
    if not starts:
        assert resolved.reason is Reason.UNSUPPORTED_BY_ENGINE
        assert resolved.message.startswith(f"spec.engine.args: --kv-cache-dtype {name} is not")
        assert device in resolved.message and "leave it out" in resolved.message


@pytest.mark.parametrize(
    ("version", "starts"),
    [("0.11.0", True), ("0.11.1", False), ("0.14.1", False), ("0.15.0", True)],
)
@pytest.mark.parametrize("model", [DENSE, LATENT])
def test_no_backend_listed_bf16_for_a_while(model: str, version: str, *, starts: bool) -> None:
    plan = planned(
        model, engine={"version": version}, sequence={"kvCacheType": "BF16", "maxTokens": 4096}
    )
    assert (plan.spec_resolved.status is Status.TRUE) is starts
    if not starts:
        assert "BF16 is not supported on H100-80GB: vLLM" in plan.spec_resolved.message
        assert plan.spec_resolved.message.endswith("would not start: use Auto")


@pytest.mark.parametrize(
    ("method", "model"),
    [("mtp", "google/gemma-4-31B-it-assistant"), ("eagle3", "someone/a-head")],
)
def test_what_an_unknown_model_that_drafts_keeps_is_unknown(method: str, model: str) -> None:
    config = f'{{"method": "{method}", "model": "{model}", "num_speculative_tokens": 2}}'
    plan = planned("google/gemma-4-31B-it", "--speculative-config", config)
    assert plan.spec_resolved.status is Status.TRUE
    assert plan.budget_computed.reason is Reason.LAYOUT_NOT_UNDERSTOOD
    assert model in plan.budget_computed.message
    assert "start it and let the engine report" in plan.budget_computed.message


def test_a_model_that_drafts_with_its_own_layers_may_be_named() -> None:
    config = '{"method": "mtp", "model": "Qwen/Qwen3.5-27B", "num_speculative_tokens": 1}'
    named = planned(DRAFTING, "--speculative-config", config)
    own = planned(
        DRAFTING, "--speculative-config", '{"method": "mtp", "num_speculative_tokens": 1}'
    )
    assert block_bytes(named) == block_bytes(own)


def test_blocks_of_256_came_with_a_patch() -> None:
    for version, status in (("0.11.0", Status.FALSE), ("0.11.1", Status.TRUE)):
        plan = planned(DENSE, engine={"version": version}, sequence={"blockTokens": 256})
        assert plan.spec_resolved.status is status


def test_a_version_that_falls_back_to_its_older_engine_is_not_said_to_end_at_start() -> None:
    plan = planned(
        DENSE,
        engine={"version": "0.10.2"},
        accelerator={"type": "A100-80GB"},
        sequence={"kvCacheType": "FP8"},
    )
    assert plan.spec_resolved.message == (
        "spec.sequence.kvCacheType: FP8 is not supported on A100-80GB: vLLM 0.10.2 would run its "
        "older engine (V0) with it, which is not planned for: use Auto"
    )


# platforms/cpu.py, cpu_attn.py, mla/cpu_mla.py: FP8 from 0.21, latents from 0.28.
@pytest.mark.parametrize(
    ("model", "kv_cache", "version", "starts"),
    [
        (DENSE, "FP8", "0.20.2", False),
        (DENSE, "FP8", "0.21.0", True),
        (DENSE, "FP8", "0.32.0", True),
        (DENSE, "BF16", "0.20.2", True),
        ("microsoft/Phi-3-mini-4k-instruct", "FP8", "0.32.0", True),  # heads of 96
        ("stabilityai/stablelm-3b-4e1t", "FP8", "0.32.0", False),  # heads of 80
        (LATENT, "Auto", "0.26.0", False),
        (LATENT, "Auto", "0.28.0", True),
        (LATENT, "FP8", "0.32.0", False),
        (SPARSE, "Auto", "0.32.0", False),
    ],
)
def test_cpu_engines_keep_what_their_kernels_do(
    model: str, kv_cache: str, version: str, *, starts: bool
) -> None:
    plan = planned(
        model,
        engine={"version": version, "image": "x"},
        accelerator={"type": "CPU"},
        sequence={"maxTokens": 2048, "kvCacheType": kv_cache},
        budget={"kvCacheMemoryPerRank": "8Gi"},
    )
    resolved = plan.spec_resolved
    assert (resolved.status is Status.TRUE) is starts, resolved.message
    assert ("AVX-512 or AMX" in resolved.message) is (starts and kv_cache == "FP8")
    if not starts:
        assert resolved.reason is Reason.UNSUPPORTED_BY_ENGINE
        assert f"vLLM {version} has no kernel there for" in resolved.message


def test_the_cpu_engine_takes_no_other_cache_of_fewer_bits() -> None:
    budget = {"kvCacheMemoryPerRank": "8Gi"}
    for name in ("nvfp4", "turboquant_k8v4", "int8_per_token_head"):
        plan = plan_pool(
            "p", spec(DEMO, engine={"args": ["--kv-cache-dtype", name]}, budget=budget)
        )
        assert plan.spec_resolved.message == (
            f"spec.engine.args: --kv-cache-dtype {name} is not supported on CPU: vLLM 0.32.0 has "
            "no kernel there for attention, and the engine would not start: leave it out"
        )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"accelerator": {"type": "T4-16GB"}, "sequence": {"kvCacheType": "BF16"}},
            "spec.sequence.kvCacheType: BF16 is not supported on T4-16GB",
        ),
        (
            {
                "model": {"name": SINKS},
                "accelerator": {"type": "A100-80GB"},
                "sequence": {"kvCacheType": "FP8"},
            },
            "spec.sequence.kvCacheType: FP8 is not supported on A100-80GB",
        ),
        (
            {"model": {"name": SPARSE}, "accelerator": {"type": "A100-80GB"}},
            "spec.accelerator.type: A100-80GB is not supported: vLLM 0.32.0 has no kernel",
        ),
        (
            {
                "model": {"name": "nvidia/DeepSeek-V3.1-NVFP4"},
                "accelerator": {"type": "A100-80GB"},
            },
            "Auto, fp8 as the checkpoint declares, is not supported on A100-80GB: vLLM 0.32.0 has "
            "no kernel there for latent attention, and the engine would not start: use a newer "
            "device, or BF16",
        ),
        (
            {"model": {"name": "nvidia/GLM-5-NVFP4"}, "accelerator": {"type": "A100-80GB"}},
            "spec.accelerator.type: A100-80GB is not supported",
        ),
    ],
)
def test_fields_that_no_kernel_serves_are_refused_too(changes: dict[str, Any], words: str) -> None:
    plan = planned(DENSE, **changes)
    assert plan.spec_resolved.reason is Reason.UNSUPPORTED_BY_ENGINE
    assert words in plan.spec_resolved.message


@pytest.mark.parametrize(
    ("model", "kv_cache", "version", "starts"),
    [
        (LATENT, "Auto", "0.16.0", True),
        (LATENT, "FP8", "0.20.2", False),
        (LATENT, "FP8", "0.32.0", True),
        (SPARSE, "Auto", "0.32.0", False),
        (SPARSE, "FP8", "0.32.0", True),
        (SPARSE, "FP8", "0.28.0", False),
        (LATENT, "FP8", "0.24.0", False),
        (LATENT, "FP8", "0.25.1", True),
    ],
)
def test_ranks_share_sequences_only_where_a_kernel_does(
    model: str, kv_cache: str, version: str, *, starts: bool
) -> None:
    plan = planned(
        model,
        engine={"version": version},
        accelerator={"type": "H200-141GB"},
        parallelism={"tensor": 8, "decodeContext": 8},
        sequence={"kvCacheType": kv_cache},
    )
    assert (plan.spec_resolved.status is Status.TRUE) is starts, plan.spec_resolved.message
    if not starts:
        assert plan.spec_resolved.message.startswith("spec.parallelism.decodeContext: 8 is not")
        assert "use 1" in plan.spec_resolved.message


@pytest.mark.parametrize(
    ("version", "args", "starts"),
    [
        ("0.14.1", [], True),
        ("0.23.0", [], False),
        ("0.23.0", ["--attention-backend", "CUTLASS_MLA"], True),
        ("0.26.0", [], True),
    ],
)
def test_the_backend_that_is_chosen_on_blackwell_shared_no_latents_for_a_while(
    version: str, args: list[str], *, starts: bool
) -> None:
    plan = planned(
        LATENT,
        engine={"version": version, "args": args},
        accelerator={"type": "B200-180GB"},
        parallelism={"tensor": 8, "decodeContext": 8},
    )
    assert (plan.spec_resolved.status is Status.TRUE) is starts, plan.spec_resolved.message


def test_a_backend_that_is_asked_for_may_take_what_is_not_chosen_for() -> None:
    old = {"version": "0.11.0", "env": [{"name": "VLLM_ATTENTION_BACKEND", "value": "FLASHINFER"}]}
    for engine, status in ((old, Status.TRUE), (old | {"env": []}, Status.FALSE)):
        plan = planned(
            DENSE,
            engine=engine,
            accelerator={"type": "A100-80GB"},
            sequence={"kvCacheType": "FP8"},
        )
        assert plan.spec_resolved.status is status


@pytest.mark.parametrize(
    ("model", "device", "backend", "kv_cache", "starts"),
    [
        ("Qwen/Qwen3-8B", "L4-24GB", "FLASH_ATTN", "Auto", True),
        ("Qwen/Qwen3-8B", "L4-24GB", "FLASH_ATTN", "FP8", False),  # FlashAttention 3 alone has it
        ("Qwen/Qwen3-8B", "L4-24GB", "TRITON_ATTN", "FP8", True),
        ("Qwen/Qwen3-8B", "H100-80GB", "FLASH_ATTN", "FP8", True),
        ("Qwen/Qwen3-8B", "A100-80GB", "TRITON_ATTN", "FP8", False),
        ("Qwen/Qwen3-8B", "H100-80GB", "FLASHMLA", "Auto", False),
        ("Qwen/Qwen3-0.6B", "T4-16GB", "FLASH_ATTN", "Auto", False),  # the card
        ("Qwen/Qwen3-0.6B", "T4-16GB", "FLASHINFER", "Auto", False),
        ("Qwen/Qwen3-0.6B", "T4-16GB", "TRITON_ATTN", "Auto", True),
        (
            "microsoft/Phi-3-mini-4k-instruct",
            "H100-80GB",
            "FLASHINFER",
            "Auto",
            False,
        ),  # heads of 96
        ("microsoft/Phi-3-mini-4k-instruct", "H100-80GB", "FLASH_ATTN", "Auto", True),
        ("openai/gpt-oss-20b", "A100-80GB", "FLASH_ATTN", "Auto", False),  # attention sinks
        ("openai/gpt-oss-20b", "H100-80GB", "FLASH_ATTN", "Auto", True),
        (WINDOWED, "A100-80GB", "FLASHINFER", "Auto", False),  # images that attend both ways
        (LATENT, "H200-141GB", "FLASH_ATTN", "Auto", False),
        (LATENT, "H200-141GB", "FLASHMLA", "FP8", True),
        (LATENT, "H200-141GB", "CUTLASS_MLA", "Auto", False),
        (SPARSE, "H200-141GB", "FLASHMLA", "Auto", False),
    ],
)
def test_a_backend_that_is_asked_for_has_to_keep_the_cache(
    model: str, device: str, backend: str, kv_cache: str, *, starts: bool
) -> None:
    ways = (
        {"args": ["--attention-backend", backend]},
        {"args": ["--attention-config.backend", backend]},
        {"args": ["--attention-config", json.dumps({"backend": backend.lower()})]},
    )
    for engine in ways:
        plan = planned(
            model,
            engine=engine,
            accelerator={"type": device},
            parallelism={"tensor": 8 if model in (LATENT, SPARSE) else 1},
            sequence={"kvCacheType": kv_cache, "maxTokens": 4096},
        )
        message = plan.spec_resolved.message
        assert (plan.spec_resolved.status is Status.TRUE) is starts, (engine, message)
        if not starts:
            assert message.startswith(f"spec.engine: attention backend {backend}, which is asked")
            assert message.count("in fp8") == message.count("another KV cache")
            assert ("in fp8" in message) is (kv_cache == "FP8")


@pytest.mark.parametrize(
    ("engine", "device"),
    [
        ({"args": ["--attention-backend", "HPC_ATTN"]}, "H100-80GB"),
        ({"args": ["--attention-backend", "ROCM_ATTN"]}, "MI300X-192GB"),
        # It is built without being asked what it takes.
        (
            {
                "version": "0.11.0",
                "env": [{"name": "VLLM_ATTENTION_BACKEND", "value": "FLASHINFER"}],
            },
            "A100-80GB",
        ),
    ],
)
def test_whether_a_backend_that_was_not_read_keeps_a_format_is_unknown(
    engine: dict[str, Any], device: str
) -> None:
    there = {"accelerator": {"type": device}, "budget": {"kvCacheMemoryPerRank": "20Gi"}}
    fewer_bits = there | {"sequence": {"kvCacheType": "FP8"}}
    plan = planned(DENSE, engine=engine, **fewer_bits)
    assert plan.spec_resolved.status is Status.TRUE
    assert plan.budget_computed.reason is Reason.UNPLANNED_ARGUMENT
    assert "whether it keeps the KV cache of this model in fp8" in plan.budget_computed.message
    # The model's own numbers are taken for kept.
    assert planned(DENSE, engine=engine, **there).budget_computed.reason is Reason.GIVEN


def test_cpu_engines_leave_the_backend_that_is_asked_for_aside() -> None:
    plan = plan_pool(
        "p", spec(DEMO, engine={"args": ["--attention-backend", "FLASH_ATTN"]}), with_remedies=False
    )
    assert plan.budget_computed.reason is Reason.GIVEN


@pytest.mark.parametrize(("kv_cache", "starts"), [("Auto", True), ("FP8", False)])
def test_the_variable_of_the_backend_is_held_to_the_cache_too(
    kv_cache: str, *, starts: bool
) -> None:
    env = [{"name": "VLLM_ATTENTION_BACKEND", "value": "FLASH_ATTN"}]
    plan = planned(
        "Qwen/Qwen3-8B",
        engine={"version": "0.12.0", "env": env},
        accelerator={"type": "L4-24GB"},
        parallelism={"tensor": 1},
        sequence={"kvCacheType": kv_cache},
    )
    assert (plan.spec_resolved.status is Status.TRUE) is starts, plan.spec_resolved.message


@pytest.mark.parametrize(("backend", "offered"), [("TRITON_ATTN", True), ("FLASH_ATTN", False)])
def test_remedies_keep_to_what_the_backend_that_is_asked_for_takes(
    backend: str, *, offered: bool
) -> None:
    pool = spec(
        H100,
        engine={"args": ["--attention-backend", backend]},
        model={"name": "Qwen/Qwen3-8B"},
        accelerator={"type": "L40S-48GB"},
        parallelism={"tensor": 1},
        sequence={"maxTokens": 32_768},
    )
    names = {remedy.name for remedy in plan_pool("p", pool).remedies}
    assert names, "the pool fits"
    assert ("Fp8Cache" in names) is offered


def test_a_device_that_newer_versions_know_is_refused_with_a_way_out() -> None:
    plan = planned(
        SPARSE, engine={"version": "0.23.0"}, accelerator={"type": "RTX-PRO-6000-SERVER-96GB"}
    )
    assert plan.spec_resolved.message.endswith(
        "use another device, or a newer vLLM with spec.engine.version"
    )


def test_images_that_are_left_out_let_the_cache_be_kept_in_8_bits() -> None:
    plan = planned(
        WINDOWED,
        engine={"args": ["--language-model-only"]},
        accelerator={"type": "A100-80GB"},
        sequence={"kvCacheType": "FP8"},
    )
    assert plan.spec_resolved.status is Status.TRUE
