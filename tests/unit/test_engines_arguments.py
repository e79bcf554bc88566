"""Every door by which an owned flag could come in, and what must pass."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ballonet.api.v1alpha1 import KvCacheType
from ballonet.catalog.flags import vllm_sampled_versions, vllm_switches, vllm_values
from ballonet.engines.base import (
    Adapters,
    Gates,
    PlannedArguments,
    SpeculationArguments,
    UserArguments,
)
from ballonet.engines.vllm import flags, is_known, render_args, user_arguments
from ballonet.engines.vllm_arguments import OWNED, OWNED_VARIABLES, SHORT, UNPLANNED

VERSIONS = tuple(version for version in vllm_sampled_versions() if is_known(version))


def screen(*args: str, version: str = "0.32.0", **env: str) -> tuple[tuple[str, ...], ...]:
    found = user_arguments(args, env, version)
    return found.refused, found.unplanned


REFUSED: list[tuple[Sequence[str], str, str]] = [
    # arguments, what the message names, what it says to set instead
    (["--max-num-seqs", "99"], "--max-num-seqs", "spec.topologies"),
    (["--max-num-seqs=99"], "--max-num-seqs", "spec.topologies"),
    (["--kv-offloading-size", "4"], "--kv-offloading-size", "spec.offload.hostMemory"),
    (["--max_num_seqs", "99"], "--max_num_seqs (--max-num-seqs)", "spec.topologies"),
    (["--max_num-seqs=99"], "--max_num-seqs (--max-num-seqs)", "spec.topologies"),
    (["--max-num-s", "99"], "--max-num-s could mean", "write the whole flag"),
    (["--max-num-batched-token", "9"], "(--max-num-batched-tokens)", "maxBatchedTokens"),
    (["--max-num-b=9"], "(--max-num-batched-tokens)", "maxBatchedTokens"),
    (["--max-num-a=9"], "(--max-num-active-seqs)", "spec.topologies"),
    (["--max-num-queued-r=9"], "(--max-num-queued-reqs)", "spec.admission.queue"),
    (["--max-model-l", "1"], "(--max-model-len)", "spec.sequence.maxTokens"),
    (["--Max-Num-Seqs", "9"], "--Max-Num-Seqs (--max-num-seqs)", "spec.topologies"),
    (["--no-enable-prefix-caching"], "(--enable-prefix-caching)", "prefixCaching"),
    (["--no-enable-prefix-c"], "(--enable-prefix-caching)", "prefixCaching"),
    (["--enable_prefix_caching"], "(--enable-prefix-caching)", "prefixCaching"),
    (["--device-memory-utilization", "0.5"], "--device-memory-utilization", "memoryPercent"),
    (["--device-mem=0.5"], "(--device-memory-utilization)", "memoryPercent"),
    (["--gpu-memory-utilization", "0.99"], "--gpu-memory-utilization", "memoryPercent"),
    (["--gpu", "0.99"], "(--gpu-memory-utilization)", "memoryPercent"),
    (["--kv-cache-memory-bytes", "1G"], "--kv-cache-memory-bytes", "kvCacheMemoryPerRank"),
    (["--block-size", "16"], "--block-size", "blockTokens"),
    (["--kv-cache-dtype", "fp8"], "--kv-cache-dtype", "kvCacheType"),
    (["-tp", "2"], "-tp (--tensor-parallel-size)", "spec.parallelism.tensor"),
    (["-tp=2"], "-tp (--tensor-parallel-size)", "spec.parallelism.tensor"),
    (["-t", "2"], "-t (--tensor-parallel-size)", "spec.parallelism.tensor"),
    (["-tp.size", "2"], "-tp.size (--tensor-parallel-size)", "spec.parallelism.tensor"),
    (["-pp", "2"], "-pp (--pipeline-parallel-size)", "spec.parallelism.pipeline"),
    (["-dp", "2"], "-dp (--data-parallel-size)", "spec.parallelism.data"),
    (["-dcp=2"], "-dcp (--decode-context-parallel-size)", "spec.parallelism.decodeContext"),
    (["-ep"], "-ep (--enable-expert-parallel)", "spec.parallelism.expert"),
    (["--no-enable-expert-parallel"], "(--enable-expert-parallel)", "spec.parallelism.expert"),
    (["--tensor-parallel-size.x", "2"], "(--tensor-parallel-size)", "parallelism"),
    (["--config", "/etc/all.yaml"], "--config", "spec.engine.args one by one"),
    (["--config=/etc/all.yaml"], "--config", "spec.engine.args one by one"),
    (["--host", "::"], "--host", "port 8000"),
    (["--port=9000"], "--port", "port 8000"),
    (["--uds", "/tmp/x"], "--uds", "port 8000"),
    (["--ssl-keyfile", "k"], "--ssl-keyfile", "plain HTTP"),
    (["--ssl_certfile=c"], "(--ssl-certfile)", "plain HTTP"),
    (["--ssl-ca-c", "c"], "(--ssl-ca-certs)", "plain HTTP"),
    (["--grpc"], "--grpc", "plain HTTP"),
    (["--headless"], "--headless", "plain HTTP"),
    (["--model", "other"], "--model", "spec.model.name"),
    (["--served-model-name", "x"], "--served-model-name", "spec.model.servedNames"),
    (["--revision", "x"], "--revision", "spec.model.revision"),
    (["--watermark", "0.1"], "--watermark", "safetyPercent"),
    (["--disable-log-stats"], "--disable-log-stats", "metrics"),
    (["--device-ids", "0"], "--device-ids", "the cluster gives"),
    (["--help"], "--help", "print help"),
    (["-h"], "-h (--help)", "print help"),
    # what is no flag, or none that argparse would take
    (["--"], "'--'", "would be no flag"),
    (["model-again"], "'model-again'", "begin with the flag"),
    (["--seed 3"], "'--seed ...'", "two entries"),
    (["--max-num-seqs 3"], "'--max-num-seqs ...'", "two entries"),
    (["--data"], "could mean", "write the whole flag"),
    (["-d", "2"], "could mean", "write the whole flag"),
    (["--swap-space", "4"], "has no --swap-space", "0.17.1"),
    (["--num-scheduler-steps", "4"], "has no --num-scheduler-steps", "0.10.0"),
    (["--enforce-eagre"], "has no --enforce-eagre", "did you mean --enforce-eager?"),
    (["--SEED", "4"], "has no --SEED", "would not start"),
    (["-x"], "has no -x", "would not start"),
    (["--no-seed"], "has no --no-seed", "would not start"),
    # flags that only the pod would see
    (["$(FLAG)"], "'$(FLAG)'", "a plain variable of spec.engine.env"),
    (["--$(FLAG)", "9"], "'$(FLAG)'", "a plain variable of spec.engine.env"),
    (["--seed", "3", "$(FLAG)"], "'$(FLAG)'", "a plain variable of spec.engine.env"),
    (["--seed=$(FLAG)"], "'$(FLAG)'", "a plain variable of spec.engine.env"),
    (["--api-key", "$$$(KEY)"], "'$(KEY)'", "VLLM_API_KEY"),
    (["--load-format=$(a(b)"], "'$(a(b)'", "a plain variable of spec.engine.env"),
    # what is attached to -O is read as an argument once more
    (["-O--speculative-config.method=ngram", "2"], "-O", "--compilation-config"),
    (["-O--hf-overrides.max_position_embeddings=4", "2"], "-O", "--compilation-config"),
    (["-O-sc.method=ngram", "2"], "-O", "--compilation-config"),
    (["-O=--max-num-seqs=9"], "-O", "--compilation-config"),
    (["-O.mode=3"], "-O", "level from 0 to 3"),
    (["-O"], "-O", "level from 0 to 3"),
    (["-O", "5"], "-O", "level from 0 to 3"),
    (["-O2", "3"], "-O", "level from 0 to 3"),
    (["-O", "1", "2"], "-O", "level from 0 to 3"),
    # ours by another name
    (["--api-server-count", "0"], "--api-server-count", "1 or more"),
    (["--api-server-count=00"], "--api-server-count", "1 or more"),
    (["-asc=0"], "-asc (--api-server-count)", "1 or more"),
    (["-asc", "0_0"], "-asc (--api-server-count)", "1 or more"),
    (["-asc", "-1"], "-asc (--api-server-count)", "1 or more"),
    (["--api-server-c=0"], "(--api-server-count)", "1 or more"),
    (["--max-num-queued-tokens", "9"], "--max-num-queued-tokens", "spec.admission.queue"),
    (["--no-enable-chunked-prefill"], "(--enable-chunked-prefill)", "maxBatchedTokens"),
    (["--no-enable-chunked-p"], "(--enable-chunked-prefill)", "maxBatchedTokens"),
    # a number of values that the parser does not take
    (["--enforce-eager", "othermodel"], "--enforce-eager", "takes no value"),
    (["--enforce-eager", ""], "--enforce-eager", "takes no value"),
    (["--enforce-eager=1"], "--enforce-eager", "takes no value"),
    (["--enforce-eager.x", "1"], "(--enforce-eager)", "takes no value"),
    (["--no-async-scheduling", "1"], "(--async-scheduling)", "takes no value"),
    (["--seed", "1", "2"], "--seed", "more words than it takes"),
    (["--seed=1", "2"], "--seed", "more words than it takes"),
    (["--api-key=a", "b"], "--api-key", "more words than it takes"),
    (["-qfp8", "b"], "-qfp8 (--quantization)", "more words than it takes"),
    (["--compilation-config.mode", "3", "4"], "(--compilation-config)", "more words"),
    (["--seed"], "--seed", "needs a value"),
    (["--seed", "--enforce-eager"], "--seed", "needs a value"),
    (["--compilation-config.mode"], "(--compilation-config)", "needs a value"),
    (["--seed", "-1.5"], "'-1.5'", "--flag=-1.5"),
    (["--generation-config", "-.5", "--enforce-eager"], "'-.5'", "--flag=-.5"),
]


@pytest.mark.parametrize(("args", "named", "advice"), REFUSED, ids=str)
def test_refused_with_the_spelling_and_what_to_set(
    args: Sequence[str], named: str, advice: str
) -> None:
    refused, unplanned = screen(*args)
    assert len(refused) == 1, refused
    assert named in refused[0]
    assert advice in refused[0]
    assert unplanned == ()


@pytest.mark.parametrize(
    "args",
    [
        ["--max-num-seqs", "--enforce-eager"],
        ["--enforce-eager", "--max-num-seqs", "3"],
        ["--seed", "-1", "--max-num-seqs=3"],
        ["--allowed-origins", "a", "b", "--max_num_seqs", "3"],
    ],
)
def test_the_place_among_other_arguments_does_not_matter(args: Sequence[str]) -> None:
    refused, _ = screen(*args)
    assert any("--max-num-seqs" in sentence for sentence in refused)


def test_a_variable_of_the_pool_that_holds_a_flag_is_read() -> None:
    refused, _ = screen("$(FLAG)", FLAG="--max-num-seqs=9")
    assert any("--max-num-seqs" in sentence for sentence in refused)
    refused, _ = screen("--$(FLAG)-seqs", "9", FLAG="max-num")
    assert any("--max-num-seqs" in sentence for sentence in refused)
    assert screen("--seed=$(SEED)", SEED="3") == ((), ())
    assert screen("--api-key", "$$(KEY)") == ((), ())


def test_a_variable_of_the_pool_counts_by_its_value() -> None:
    assert screen("--dtype=$(TYPE)", TYPE="half") == ((), ())
    assert "number format" in screen("--dtype=$(TYPE)", TYPE="float32")[1][0]
    assert "'$(OUTER)'" in screen("--seed=$(OUTER)", OUTER="$(INNER)", INNER="1")[0][0]
    # The kubelet fills it in as one argument, a shell would split it.
    assert screen("--chat-template=$(TEXT)", TEXT="a --max-num-seqs=9") == ((), ())
    refused, _ = screen(TEXT="a --max-num-seqs=9", VLLM_EXTRA_ARGS="--chat-template=$(TEXT)")
    assert "VLLM_EXTRA_ARGS: --max-num-seqs" in refused[0]


@pytest.mark.parametrize("args", [["$(X)"], ["--seed=$(X)"], ["$(X)max-num-seqs=9"]])
def test_the_value_of_a_reference_is_not_known(args: Sequence[str]) -> None:
    refused = user_arguments(args, {"X": None}, "0.32.0").refused
    assert len(refused) == 1
    assert "'$(X)'" in refused[0]


def test_arguments_from_a_reference_are_refused() -> None:
    refused = user_arguments([], {"VLLM_ADDITIONAL_ARGS": None}, "0.32.0").refused
    assert refused == (
        "VLLM_ADDITIONAL_ARGS: arguments from a reference cannot be judged; use spec.engine.args",
    )
    refused, _ = screen(VLLM_ADDITIONAL_ARGS="--seed $(X)")
    assert "'$(X)'" in refused[0]


def test_no_message_repeats_the_value_of_a_free_argument() -> None:
    secret = "sk-secret"
    for args in (
        ["--api-key=" + secret, secret],
        ["--hf-token", secret, secret],
        ["--enforce-eager", secret],
        ["--api-key " + secret],
        ["--api-key=" + secret + "$(X)"],
    ):
        refused, _ = screen(*args)
        assert refused
        assert secret not in " ".join(refused)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("VLLM_PORT", "9000", "VLLM_PORT"),
        ("VLLM_CPU_KVCACHE_SPACE", "4", "spec.budget.kvCacheMemoryPerRank"),
        ("VLLM_PP_LAYER_PARTITION", "3,1", "spread evenly"),
        ("VLLM_SERVER_DEV_MODE", "1", "VLLM_SERVER_DEV_MODE"),
        ("CUDA_VISIBLE_DEVICES", "0", "the cluster gives the devices"),
        ("NVIDIA_VISIBLE_DEVICES", "all", "the cluster gives the devices"),
        ("VLLM_ADDITIONAL_ARGS", "--seed 3 --max_num_seqs=9", "VLLM_ADDITIONAL_ARGS: --max_num"),
        ("VLLM_ADDITIONAL_ARGS", "--no-such-flag", "has no --no-such-flag"),
        ("VLLM_ADDITIONAL_ARGS", "'unclosed", "cannot be split"),
        ("VLLM_EXTRA_ARGS", "-tp 2", "VLLM_EXTRA_ARGS: -tp"),
    ],
)
def test_owned_variables_are_refused(name: str, value: str, words: str) -> None:
    refused, _ = screen(**{name: value})
    assert len(refused) == 1
    assert words in refused[0]


@pytest.mark.parametrize(
    ("args", "env", "subject"),
    [
        (["--speculative-config", "{}"], {}, "only with a method of draft_model, eagle"),
        (["--speculative-config", "[]"], {}, "only with a JSON object"),
        (["--speculative-config", "[" * 4000], {}, "only with a JSON object"),
        (["--spec-method=ngram", "--speculative-config.a", "[" * 4000], {}, "with the key a"),
        (["--enable-lora", "--max-lora-rank", "7"], {}, "only with a rank of 1, 8, 16"),
        (["--speculative-config.method", "ngram"], {}, "num_speculative_tokens is given"),
        (["-sc", '{"method": "medusa"}'], {}, "-sc (--speculative-config) is planned for only"),
        (["--spec-tok=3"], {}, "only with a method"),
        (["--spec-method=eagle3", "--spec-tokens=3"], {}, "the name of a model"),
        (["-sc", '{"method": "mtp", "num_speculative_tokens": 0}'], {}, "number from 1 to 128"),
        (["-sc", '{"method": "ngram", "num_speculative_tokens": 129}'], {}, "from 1 to 128"),
        (
            ["-sc", '{"method":"mtp", "num_speculative_tokens": 1, "kv_cache_dtype": "fp8"}'],
            {},
            "the key kv_cache_dtype",
        ),
        (["--quantization-config", "{}"], {}, "quantization"),
        (["--load-format", "bitsandbytes"], {}, "quantization"),
        (["--dtype", "float32"], {}, "number format"),
        (["--dtype=float"], {}, "number format"),
        (["--hf-overrides", "{}"], {}, "shape of the model"),
        (["--hf_overrides.num_hidden_layers", "4"], {}, "shape of the model"),
        (["--runner", "pooling"], {}, "use of the model"),
        (["--pooler-config.pooling_type=MEAN"], {}, "use of the model"),
        (["--tokens-only"], {}, "use of the model"),
        (["--use-replayssm"], {}, "state-space"),
        (["--mamba-block-size", "eight"], {}, "--mamba-block-size is planned for only with a num"),
        (["--mamba-cache-mode", "most"], {}, "--mamba-cache-mode is planned for only with one of"),
        (["--enable-tower-connector-lora"], {}, "adapters"),
        (["--enable-lora", "--max-loras", "0"], {}, "--max-loras is planned for only with a whole"),
        (["--cpu-offload-gb", "nan"], {}, "--cpu-offload-gb is planned for only with a number"),
        (["--cpu-offload-params", "experts"], {}, "weights outside"),
        (["--kv-cache-dtype", "fp9"], {}, "--kv-cache-dtype is planned for only with one of"),
        (["--kv-cache-dtype", "octave_k3v4"], {}, "--kv-cache-dtype is planned for only with one"),
        (["--kv-transfer-config", "{}"], {}, "KV cache outside"),
        (["--enable-eplb"], {}, "expert parallelism"),
        (["--data-parallel-rank", "2"], {}, "data parallelism"),
        (["-dpn", "2"], {}, "data parallelism"),
        (["-pcp", "2"], {}, "context parallelism"),
        (["--nnodes", "2"], {}, "several nodes"),
        (["-n2"], {}, "several nodes"),
        (["--kv-cache-dtype-skip-layers", "0"], {}, "cache layout"),
        (["--disable-sliding-window"], {}, "cache layout"),
        (["--enable-sleep-mode"], {}, "beside model and cache"),
        (["--worker-cls", "x.Y"], {}, "change anything"),
        ([], {"VLLM_USE_V1": "0"}, "generation of the engine"),
        ([], {"VLLM_DP_SIZE": "2"}, "data parallelism"),
        ([], {"VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS": "0"}, "beside model and cache"),
        ([], {"VLLM_SPARSE_INDEXER_MAX_LOGITS_MB": "4096"}, "beside model and cache"),
        ([], {"VLLM_MLA_DISABLE": "1"}, "another cache layout"),
        ([], {"VLLM_MXFP4_EMULATION_DEQUANT_AT_LOAD": "1"}, "quantization of the weights"),
        ([], {"VLLM_ADDITIONAL_ARGS": "--enable-lora"}, "VLLM_ADDITIONAL_ARGS: --enable-lora"),
        ([], {"VLLM_ADDITIONAL_ARGS": "--runner pooling"}, "VLLM_ADDITIONAL_ARGS: --runner"),
    ],
)
def test_what_is_not_planned_for_is_let_through_and_named(
    args: Sequence[str], env: dict[str, str], subject: str
) -> None:
    refused, unplanned = screen(*args, **env)
    assert refused == ()
    assert len(unplanned) == 1
    assert subject in unplanned[0]


def speculation(method: str, tokens: int, model: str | None = None) -> PlannedArguments:
    return PlannedArguments(speculation=SpeculationArguments(method, tokens, model))


@pytest.mark.parametrize(
    ("args", "planned"),
    [
        (["--kv-cache-dtype", "fp8_e5m2"], PlannedArguments(kv_cache_type="fp8_e5m2")),
        (["--kv_cache_dtype=nvfp4"], PlannedArguments(kv_cache_type="nvfp4")),
        (["--disable-hybrid-kv-cache-manager"], PlannedArguments(hybrid_manager=False)),
        (["--no-disable-hybrid-kv-cache-manager"], PlannedArguments(hybrid_manager=True)),
        (["--mamba-cache-dtype", "float32"], PlannedArguments(state_cache_type="float32")),
        (["--mamba-ssm-c=float32"], PlannedArguments(state_ssm_cache_type="float32")),
        (["--mamba-cache-mode", "align"], PlannedArguments(state_cache_mode="align")),
        (["--mamba-block-size", "1024"], PlannedArguments(state_block_tokens=1024)),
        (["--quantization", "fp8"], PlannedArguments(quantization="fp8")),
        (["-qFP8"], PlannedArguments(quantization="fp8")),
        (["--enable-lora"], PlannedArguments(adapters=Adapters(1, 16))),
        (
            ["--enable-lora", "--max-loras", "4", "--max-lora-rank=64"],
            PlannedArguments(adapters=Adapters(4, 64)),
        ),
        (["--max-loras", "4"], PlannedArguments()),
        (["--cpu-offload-gb", "1.5"], PlannedArguments(offload_bytes=3 * 2**29)),
        (["--enforce-e"], PlannedArguments(eager=True)),
        (["--attention-backend", "flashinfer"], PlannedArguments(attention_backend="FLASHINFER")),
        (["--language-model-only"], PlannedArguments(text_only=True)),
        (
            ["--limit-mm-per-prompt", '{"image": 0, "video": {"count": 0}, "audio": 0}'],
            PlannedArguments(text_only=True),
        ),
        (["--limit-mm-per-prompt.image", "0"], PlannedArguments()),
        (["--skip-mm-profiling"], PlannedArguments(skips_encoder_profile=True)),
        (["--num-gpu-blocks-override", "900"], PlannedArguments(blocks=900)),
        (
            ["--mamba-block-size=8", "--mamba-block-size", "16"],
            PlannedArguments(state_block_tokens=16),
        ),
        (["--enforce-eager", "--no-enforce-eager"], PlannedArguments()),
        (["-sc", '{"method": "mtp", "num_speculative_tokens": 2}'], speculation("mtp", 2)),
        (["-sc.method", "qwen3_5_mtp", "-sc.num_speculative_tokens", "2"], speculation("mtp", 2)),
        (
            ["--speculative-config.num_speculative_tokens=4", "--speculative_config.method=ngram"],
            speculation("ngram", 4),
        ),
        (
            ["-sc", '{"model": "yuhuili/EAGLE3-x", "num_speculative_tokens": 3}'],
            speculation("eagle3", 3, "yuhuili/EAGLE3-x"),
        ),
        (
            ["--spec-method", "draft_model", "--spec-model=a/b", "--spec-tokens", "5"],
            speculation("draft_model", 5, "a/b"),
        ),
        # Keys stand after all whole values, wherever they are written.
        (
            ["-sc.method", "mtp", "-sc.num_speculative_tokens", "2", "-sc", '{"method": "ngram"}'],
            speculation("mtp", 2),
        ),
    ],
    ids=str,
)
def test_what_is_planned_for_is_read(args: Sequence[str], planned: PlannedArguments) -> None:
    found = user_arguments(args, {}, "0.32.0")
    assert (found.refused, found.unplanned) == ((), ())
    assert found.planned == planned


@pytest.mark.parametrize(
    ("args", "refused_in", "taken_in"),
    [
        (["--kv-cache-dtype", "nvfp4"], "0.19.1", "0.20.2"),
        (["--kv-cache-dtype=fp8_ds_mla"], "0.10.2", "0.11.0"),
        (["--mamba-cache-mode", "all"], "0.32.0", "0.31.0"),
        (["--mamba-ssm-cache-dtype", "bfloat16"], "0.21.0", "0.22.1"),
    ],
)
def test_a_value_that_the_version_does_not_know_is_refused(
    args: Sequence[str], refused_in: str, taken_in: str
) -> None:
    assert "the engine would not start" in user_arguments(args, {}, refused_in).refused[0]
    assert user_arguments(args, {}, taken_in).refused == ()


def test_the_variable_of_the_attention_backend_counts_while_the_engine_reads_it() -> None:
    env = {"VLLM_ATTENTION_BACKEND": "FLASHINFER"}
    assert user_arguments([], env, "0.12.0").planned.attention_backend == "FLASHINFER"
    assert user_arguments([], env, "0.32.0").planned == PlannedArguments()


def test_an_attention_backend_is_refused_where_the_version_has_none_of_the_name() -> None:
    by_flag = user_arguments(["--attention-backend", "bogus"], {}, "0.32.0").refused
    assert len(by_flag) == 1
    assert "--attention-backend 'bogus' is no backend of vLLM 0.32.0" in by_flag[0]
    assert "TRITON_ATTN" in by_flag[0] and "XFORMERS" not in by_flag[0]
    variable = {"VLLM_ATTENTION_BACKEND": "BOGUS"}
    (by_variable,) = user_arguments([], variable, "0.11.0").refused
    assert by_variable.startswith("VLLM_ATTENTION_BACKEND 'BOGUS'")
    assert "XFORMERS" in by_variable
    assert user_arguments([], variable, "0.32.0").refused == ()
    # Neither a backend that came later, nor the word for any, before there was one.
    assert user_arguments(["--attention-backend", "TURBOQUANT"], {}, "0.16.0").refused
    assert user_arguments(["--attention-backend", "auto"], {}, "0.16.0").refused
    assert user_arguments(["--attention-backend", "auto"], {}, "0.32.0") == UserArguments()


@pytest.mark.parametrize(
    "args",
    [
        ["--attention-config.backend", "flashinfer"],
        ["--attention-config", '{"backend": "FLASHINFER"}'],
        ["-ac.backend=FLASHINFER"],
    ],
)
def test_an_attention_backend_may_be_a_key(args: list[str]) -> None:
    assert user_arguments(args, {}, "0.32.0") == UserArguments(
        planned=PlannedArguments(attention_backend="FLASHINFER")
    )


@pytest.mark.parametrize(
    "args",
    [
        ["--attention-config.backend", "TURBOQUANT"],
        ["--attention-config", '{"backend": "TURBOQUANT", "flash_attn_version": 2}'],
    ],
)
def test_a_key_that_names_no_backend_of_the_version_is_refused(args: list[str]) -> None:
    (refused,) = user_arguments(args, {}, "0.16.0").refused
    assert "--attention-config" in refused
    assert "'TURBOQUANT' is no backend of vLLM 0.16.0" in refused


def test_an_attention_backend_that_is_named_twice_is_refused_by_both_names() -> None:
    args = ["--attention-backend", "FLASHINFER", "--attention-config.backend", "FLASH_ATTN"]
    (refused,) = user_arguments(args, {}, "0.32.0").refused
    assert "--attention-backend" in refused and "--attention-config.backend" in refused


def test_other_keys_of_attention_are_not_planned_for() -> None:
    found = user_arguments(["--attention-config.flash_attn_version", "2"], {}, "0.32.0")
    assert found.refused == ()
    assert "is not planned for with the key flash_attn_version" in found.unplanned[0]


def test_a_plugin_may_bring_an_attention_backend() -> None:
    found = user_arguments(["--attention-backend", "OWN"], {"VLLM_PLUGINS": "own"}, "0.32.0")
    assert found.refused == () and found.planned.attention_backend == "OWN"


@pytest.mark.parametrize(
    ("args", "env"),
    [
        (["--trust-remote-code"], {}),
        (["--hf-overrides", '{"architectures": ["Own"]}'], {}),
        (["--model-impl", "transformers"], {}),
        ([], {"VLLM_PLUGINS": "own"}),
        ([], {"VLLM_PLUGINS": None}),
        ([], {"VLLM_ADDITIONAL_ARGS": "--trust-remote-code"}),
    ],
    ids=str,
)
def test_what_brings_in_code_that_is_not_the_engines_is_seen(
    args: Sequence[str], env: dict[str, str | None]
) -> None:
    assert user_arguments(args, env, "0.32.0").planned.foreign_code
    assert not user_arguments(["--no-trust-remote-code"], {}, "0.32.0").planned.foreign_code
    assert not user_arguments([], {"VLLM_PLUGINS": ""}, "0.32.0").planned.foreign_code


@pytest.mark.parametrize(
    ("args", "shown"),
    [
        (["--kv-cache-dtype", "fp4"], "--kv-cache-dtype is planned for only with one of float16, "),
        (["--max-loras", "few", "--enable-lora"], "--max-loras is planned for only with a number"),
    ],
)
def test_a_value_that_is_not_planned_for_is_named(args: Sequence[str], shown: str) -> None:
    ((sentence),) = user_arguments(args, {}, "0.32.0").unplanned
    assert shown in sentence and sentence.endswith(f"not with {args[1]!r}.")


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["--enforce-eager"],
        ["--enforce_eager"],
        ["--enforce-e"],
        ["--load-format", "dummy"],
        ["--dtype", "bfloat16"],
        ["--dtype=half"],
        ["--runner", "generate"],
        ["--no-enable-eplb"],
        ["-O3"],
        ["-O", "2"],
        ["-O=1"],
        ["-cc.cudagraph_mode=NONE"],
        ["--compilation-config", '{"cudagraph_capture_sizes": [1]}'],
        ["--compilation-config.cudagraph_capture_sizes", "[1]"],
        ["--seed", "-1"],
        ["--allowed-origins", '["a"]'],
        ["--api-key", "a", "b"],
        ["--hf-token"],
        ["--hf-token", "a"],
        ["--middleware", "a", "--middleware", "b"],
        ["--cudagraph-capture-sizes", "1", "2", "4"],
        ["--generation-config=-.5"],
        ["--enable-chunked-prefill"],
        ["--override-generation-config", '{"max_new_tokens": 9}'],
        ["--trust-remote-code", "--tool-call-parser", "hermes", "--enable-auto-tool-choice"],
        ["-asc", "2"],
    ],
    ids=str,
)
def test_free_arguments_pass(args: Sequence[str]) -> None:
    assert screen(*args) == ((), ())


def test_free_variables_pass() -> None:
    env = {"HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "DEBUG", "OMP_NUM_THREADS": "1"}
    assert screen(**env) == ((), ())


def test_a_flag_that_only_one_neighbour_of_the_version_has_is_let_through() -> None:
    # 0.20.0 lies between 0.19.1 and 0.20.2; the flag was first seen in 0.20.2
    assert screen("--numa-bind", version="0.20.0") == ((), ())
    refused, _ = screen("--numa-bind", version="0.19.1")
    assert "from 0.20.2 to 0.33.0" in refused[0]


def gates(*, queue: int | None, kv_bytes: int | None, percent: int | None) -> Gates:
    return Gates(
        model_path="m",
        served_names=("a",),
        max_model_tokens=1024,
        slots=4,
        max_num_seqs=4,
        max_batched_tokens=2048,
        queue_limit=queue,
        block_tokens=16,
        kv_cache_type=KvCacheType.FP8,
        prefix_caching=True,
        memory_percent=percent,
        kv_cache_memory_bytes=kv_bytes,
        revision="main",
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_whatever_is_rendered_is_owned_and_known(version: str) -> None:
    queue = 9 if "--max-num-queued-reqs" in flags(version) else None
    rendered = render_args(gates(queue=queue, kv_bytes=1, percent=90), version)
    written = {word for word in rendered if word.startswith("--")}
    # Of --kv-cache-dtype only the values that the spec has are owned.
    assert written <= (OWNED.keys() | {"--kv-cache-dtype"}) & flags(version)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_flag_of_the_version_is_refused_unplanned_or_free_but_never_unknown(
    version: str,
) -> None:
    counts = {"refused": 0, "unplanned": 0, "free": 0}
    for flag in flags(version):
        value = {"--api-server-count": "1", "--attention-backend": "FLASHINFER"}.get(flag, "value")
        least, most = vllm_values().get(flag, (1, 1))
        words = [flag] if (least, most) == (0, 0) else [flag, value]
        refused, unplanned = screen(*words, version=version)
        assert not any("has no" in sentence for sentence in refused), flag
        if flag in OWNED:
            assert len(refused) == 1
            counts["refused"] += 1
        else:
            assert refused == (), flag
            counts["unplanned" if unplanned else "free"] += 1
    assert counts["free"] > 100
    assert counts["unplanned"] > 20


@st.composite
def spellings(draw: st.DrawFn) -> tuple[str, str, str]:
    """A version, an owned flag of it, and some way to write it that argparse may take."""
    version = draw(st.sampled_from(VERSIONS))
    flag = draw(st.sampled_from(sorted(OWNED.keys() & flags(version))))
    negated = draw(st.booleans()) and flag.startswith(("--enable", "--disable"))
    option = f"--no-{flag[2:]}" if negated else flag
    stem = option[: draw(st.integers(3, len(option)))]
    text = stem[:2] + "".join(
        draw(st.sampled_from((letter, letter.upper(), "_" if letter == "-" else letter)))
        for letter in stem[2:]
    )
    suffix = draw(st.sampled_from(("", "=1", "= 1", ".key=1", ".a.b")))
    return version, flag, text + suffix


@given(spellings())
def test_no_spelling_of_an_owned_flag_passes(drawn: tuple[str, str, str]) -> None:
    version, flag, written = drawn
    stem = written[2:].lower().replace("_", "-").partition("=")[0].partition(".")[0]
    free = {name for name in flags(version) if name not in OWNED}
    refused, _ = screen(written, version=version)
    # A whole free flag that happens to begin an owned one (there may be such) is that free flag.
    assert refused or f"--{stem}" in free, (flag, written)


@given(
    st.sampled_from(VERSIONS),
    st.lists(
        st.one_of(
            st.sampled_from(sorted(OWNED)).flatmap(
                lambda flag: st.integers(3, len(flag)).map(lambda length: flag[:length])
            ),
            st.sampled_from(sorted(SHORT)),
            st.sampled_from(["--seed", "--enforce-eager", "1", "--no-enable-prefix-caching"]),
        ),
        max_size=4,
    ),
)
def test_what_argparse_would_set_is_refused(version: str, words: list[str]) -> None:
    """Against argparse itself, with the version's flags: none of ours may be set unseen."""
    parser = argparse.ArgumentParser(exit_on_error=False, add_help=False)
    for flag in sorted(flags(version)):
        shorts = [short for short, long in SHORT.items() if long == flag]
        if flag in vllm_switches():
            parser.add_argument(flag, *shorts, action=argparse.BooleanOptionalAction)
        else:
            parser.add_argument(flag, *shorts, nargs="*")
    try:
        parsed = vars(parser.parse_known_args(words)[0])
    except (argparse.ArgumentError, SystemExit):
        return
    set_flags = {
        f"--{name.replace('_', '-')}" for name, value in parsed.items() if value is not None
    }
    refused, _ = screen(*words, version=version)
    assert refused or not set_flags & OWNED.keys()


def test_each_unplanned_subject_has_a_flag_in_the_newest_version() -> None:
    for group in UNPLANNED:
        assert any(group.flags.fullmatch(flag) for flag in flags("0.33.0")), group.subject


def test_the_documentation_names_every_owned_flag_and_variable() -> None:
    text = (Path(__file__).parents[2] / "docs/engine-arguments.md").read_text()
    documented = set(re.findall(r"`(--(?:\[no-\])?[a-z0-9-]+\*?)`", text))
    documented = {flag.replace("[no-]", "") for flag in documented}
    prefixes = tuple(flag[:-1] for flag in documented if flag.endswith("*"))
    assert {flag for flag in OWNED if flag not in documented and not flag.startswith(prefixes)} == (
        set()
    )
    variables = {name for name in OWNED_VARIABLES if not name.endswith("_VISIBLE_DEVICES")}
    assert variables <= set(re.findall(r"`([A-Z0-9_]+)`", text))
