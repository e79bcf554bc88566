"""Screening of a user's own vLLM arguments and variables.

Arguments given later win in vLLM, so a flag that carries one of our limits must not come in by any
door: not by another spelling, an abbreviation, an alias, a configuration file, a variable or a
``$(VARIABLE)`` that the kubelet expands. Flags that change layout or memory are planned for as
``vllm_planned`` reads them; those whose effect is not planned for are let through and named. What
the version does not know is refused, because the engine would end at start, again and again.

The reading of spellings follows vLLM's argument parser (argparse with abbreviations, underscores
as dashes in long flags, ``--flag.key`` for JSON).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from ballonet.api.quoting import quoted
from ballonet.catalog.flags import vllm_switches, vllm_values
from ballonet.catalog.lookup import suggest
from ballonet.engines import vllm_planned
from ballonet.engines.base import PORT, UserArguments
from ballonet.engines.vllm_models import attention_backends
from ballonet.engines.vllm_planned import (
    BACKEND_OPTION,
    FOREIGN_CODE_OPTION,
    KV_CACHE_TYPES,
    PLANNED,
    Setting,
    asked_backends,
)
from ballonet.engines.vllm_versions import lifetime, parse_version, possible_flags

_LISTEN: Final = f"leave it out: the pod serves plain HTTP on port {PORT}"
_SLOTS: Final = (
    "leave it out: the slots follow from spec.topologies, spec.reservedSlots and spec.sequence"
)
_DEVICES: Final = "leave it out: the cluster gives the devices"

# Flags that carry what Ballonet decides, with what to do instead. Each flag that render_args can
# write in any version stands here.
OWNED: Final[Mapping[str, str]] = {
    "--host": _LISTEN,
    "--port": _LISTEN,
    "--uds": _LISTEN,
    "--grpc": _LISTEN,
    "--grpc-port": _LISTEN,
    "--headless": _LISTEN,
    "--ssl-keyfile": _LISTEN,
    "--ssl-certfile": _LISTEN,
    "--ssl-ca-certs": _LISTEN,
    "--ssl-cert-reqs": _LISTEN,
    "--ssl-ciphers": _LISTEN,
    "--enable-ssl-refresh": _LISTEN,
    "--model": "set spec.model.name or spec.model.claim",
    "--served-model-name": "set spec.model.servedNames",
    "--revision": "set spec.model.revision",
    "--max-model-len": "set spec.sequence.maxTokens",
    "--max-num-seqs": _SLOTS,
    "--max-num-active-seqs": _SLOTS,
    "--max-num-batched-tokens": "set spec.sequence.maxBatchedTokens",
    "--max-num-queued-reqs": "set spec.admission.queue",
    "--max-num-queued-tokens": "set spec.admission.queue",
    "--watermark": "leave it out: spec.budget.safetyPercent is the headroom",
    "--block-size": "set spec.sequence.blockTokens",
    "--enable-prefix-caching": "set spec.sequence.prefixCaching",
    "--gpu-memory-utilization": "set spec.accelerator.memoryPercent",
    "--device-memory-utilization": "set spec.accelerator.memoryPercent",
    "--kv-cache-memory-bytes": "set spec.budget.kvCacheMemoryPerRank",
    "--tensor-parallel-size": "set spec.parallelism.tensor",
    "--pipeline-parallel-size": "set spec.parallelism.pipeline",
    "--data-parallel-size": "set spec.parallelism.data",
    "--decode-context-parallel-size": "set spec.parallelism.decodeContext",
    "--enable-expert-parallel": "set spec.parallelism.expert",
    "--kv-offloading-size": "set spec.offload.hostMemory",
    "--kv-offloading-backend": "set spec.offload.mode",
    "--device": "set spec.accelerator.type",
    "--device-ids": _DEVICES,
    "--disable-log-stats": "leave it out: without these metrics the plan cannot be verified",
    "--config": "write its flags into spec.engine.args one by one",
    "--help": "leave it out: the engine would print help and end",
}

# Options of flags that are otherwise free.
REFUSED: Final[Mapping[str, str]] = {
    "--no-enable-chunked-prefill": "leave it out: the engine would not start where a step "
    "(spec.sequence.maxBatchedTokens) is shorter than a sequence",
}


@dataclass(frozen=True, slots=True)
class _Unplanned:
    """Flags of one subject; with values, only those values (or any but them) count."""

    subject: str
    flags: re.Pattern[str]
    only: frozenset[str] = frozenset()
    but: frozenset[str] = frozenset()

    def counts(self, value: str | None) -> bool:
        if self.only:
            return value is None or value.lower() in self.only
        return value is None or value.lower() not in self.but


def _unplanned(
    subject: str, flags: str, *, only: Iterable[str] = (), but: Iterable[str] = ()
) -> _Unplanned:
    return _Unplanned(subject, re.compile(flags), frozenset(only), frozenset(but))


UNPLANNED: Final = (
    _unplanned("speculative decoding", r"--(num-lookahead-slots|diffusion-config)"),
    _unplanned("quantization of the weights", r"--quantization-config"),
    _unplanned(
        "the number format",
        r"--dtype",
        but=("auto", "half", "float16", "bfloat16"),
    ),
    _unplanned("quantization of the weights", r"--load-format", only=("bitsandbytes", "gguf")),
    _unplanned(
        "another shape of the model",
        r"--(hf-overrides|hf-config-path|model-class-overrides|engram-config|mm-encoder-only)",
    ),
    _unplanned("another build of the model", r"--model-impl", but=("auto", "vllm")),
    _unplanned(
        "another use of the model",
        r"--(runner|convert|task)",
        but=("auto", "generate", "none"),
    ),
    _unplanned("another use of the model", r"--((override-)?pooler-config|tokens-only)"),
    _unplanned(
        "state-space caches",
        r"--(mamba-config|enable-mamba-shared-prefix-checkpoint|use-replayssm|replayssm-.*)",
    ),
    _unplanned(
        "adapters",
        r"--(default-mm-loras|enable-tower-connector-lora|.*moe.*loras?(-format)?"
        r"|max-lora-cls-labels|lora-(dtype|extra-vocab-size)|.*prompt-adapter.*)",
        but=("auto",),
    ),
    _unplanned(
        "weights outside the device",
        r"--(cpu-offload-params|offload-.*|weight-transfer-config)",
    ),
    _unplanned(
        "KV cache outside the device",
        r"--(kv-transfer-config|ec-(transfer|manager)-config)",
    ),
    _unplanned(
        "expert parallelism",
        r"--(enable-eplb|eplb-.*|num-redundant-experts|enable-elastic-ep"
        r"|elastic-ep-.*|enable-ep-weight-filter|expert-placement-strategy|all2all-backend)",
    ),
    _unplanned("data parallelism", r"--(data-parallel-.*|dp-.*|enable-scale-out)"),
    _unplanned(
        "context parallelism",
        r"--(prefill-context-parallel-size|dcp-.*|cp-kv-cache-interleave-size)",
    ),
    _unplanned("engines over several nodes", r"--(nnodes|node-rank|master-(addr|port))"),
    _unplanned(
        "another cache layout",
        r"--(kv-cache-dtype-skip-layers|kv-sharing-fast-prefill|disable-sliding-window)",
    ),
    _unplanned(
        "device memory beside model and cache",
        r"--(enable-sleep-mode|sleep-.*|enable-cumem-allocator|enable-dbo|dbo-.*|ubatch-size"
        r"|mm-ipc-gpu-memory-gb)",
    ),
    _unplanned(
        "code that may change anything",
        r"--(worker-cls|worker-extension-cls|scheduler-cls|additional-config)",
    ),
)

# Short flags; vLLM's parser has the same ones in all versions that have the long flag.
SHORT: Final[Mapping[str, str]] = {
    "-h": "--help",
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-q": "--quantization",
    "-n": "--nnodes",
    "-r": "--node-rank",
    "-dcp": "--decode-context-parallel-size",
    "-pcp": "--prefill-context-parallel-size",
    "-dp": "--data-parallel-size",
    "-dpn": "--data-parallel-rank",
    "-dpr": "--data-parallel-start-rank",
    "-dpl": "--data-parallel-size-local",
    "-dpa": "--data-parallel-address",
    "-dpp": "--data-parallel-rpc-port",
    "-dpb": "--data-parallel-backend",
    "-dph": "--data-parallel-hybrid-lb",
    "-dpe": "--data-parallel-external-lb",
    "-dpm": "--data-parallel-multi-port-external-lb",
    "-ep": "--enable-expert-parallel",
    "-sc": "--speculative-config",
    "-dc": "--diffusion-config",
    "-cc": "--compilation-config",
    "-ac": "--attention-config",
    "-asc": "--api-server-count",
}
_SHORT_WITH_VALUE_ATTACHED: Final = frozenset(flag for flag in SHORT if len(flag) == 2)

OWNED_VARIABLES: Final[Mapping[str, str]] = {
    "VLLM_PORT": "leave it out: it moves the engine's own ports",
    "VLLM_CPU_KVCACHE_SPACE": "set spec.budget.kvCacheMemoryPerRank",
    "VLLM_PP_LAYER_PARTITION": "leave it out: layers are spread evenly over the stages",
    "VLLM_SERVER_DEV_MODE": "leave it out: it opens calls that drop the cache or stop the engine",
    "VLLM_MODEL_REDIRECT_PATH": "set spec.model.name or spec.model.claim",
    "CUDA_VISIBLE_DEVICES": _DEVICES,
    "NVIDIA_VISIBLE_DEVICES": _DEVICES,
    "HIP_VISIBLE_DEVICES": _DEVICES,
    "ROCR_VISIBLE_DEVICES": _DEVICES,
}
_UNPLANNED_VARIABLES: Final = (
    (re.compile(r"VLLM_USE_V1"), "another generation of the engine"),
    (re.compile(r"VLLM_DP_.*|VLLM_RAY_DP_.*"), "data parallelism"),
    (re.compile(r"VLLM_ELASTIC_EP_.*"), "expert parallelism"),
    (re.compile(r"VLLM_ALLOW_RUNTIME_LORA_UPDATING|VLLM_LORA_RESOLVER_.*"), "adapters"),
    (
        re.compile(r"VLLM_MLA_DISABLE|VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE"),
        "another cache layout",
    ),
    (
        re.compile(
            r"VLLM_HUMMING_.*_QUANT_CONFIG|VLLM_.*_DEQUANT_AT_LOAD|VLLM_ROCM_.*_ONLINE_QUANT"
        ),
        "quantization of the weights",
    ),
    (
        re.compile(
            r"VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS|VLLM_ENABLE_STARTUP_PLAN"
            r"|VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE|VLLM_SPARSE_INDEXER_MAX_LOGITS_MB"
            r"|VLLM_(ENABLE_)?FUSED_MOE_(ACTIVATION_)?CHUNK.*|VLLM_MOE_DP_CHUNK_SIZE"
            r"|VLLM_DEEPEP_BUFFER_SIZE_MB|VLLM_USE_NCCL_SYMM_MEM"
        ),
        "device memory beside model and cache",
    ),
)
# What may bring in models and attention that the engine's version does not have; arguments beside
# these are read as FOREIGN_CODE_OPTION.
_FOREIGN_CODE_FLAGS: Final = frozenset(
    ("--model-impl", "--hf-overrides", "--hf-config-path", "--model-class-overrides")
)
_PLUGINS: Final = "VLLM_PLUGINS"
# The name that leaves the choice of a backend to the engine, in versions that know it.
_ANY_BACKEND: Final = "AUTO"
# The variable behind --attention-backend, read until it was removed (envs.py).
_BACKEND_VARIABLE: Final = "VLLM_ATTENTION_BACKEND"
_BACKEND_VARIABLE_GONE: Final = (0, 15)
_ARGUMENT_VARIABLES: Final = re.compile(r"VLLM_([A-Z0-9_]+_)?ARGS")
# Switches and numbers of values were read in one version.
VALUES_READ_IN: Final = "0.32.0"
_NEGATIVE_NUMBER: Final = re.compile(r"-\d+|-\d*\.\d+")
# The name goes to the first closing bracket, as the kubelet reads it.
_REFERENCE: Final = re.compile(r"\$(\$|\(([^)]*)\))")
_LEVELS: Final = frozenset("0123")
_AT_LEAST_ONE: Final = re.compile(r"[1-9][0-9]*")


def user_arguments(
    args: Sequence[str], env: Mapping[str, str | None], version: str
) -> UserArguments:
    """Return what is refused and what is not planned for in a user's arguments and variables.

    Args:
        args: arguments as they stand in spec.engine.args; they follow our own.
        env: variables of spec.engine.env and of the pod template; None for a reference, whose
            value only the pod has.
        version: vLLM version; one that is not known is refused elsewhere and screened here by the
            flags of its neighbours.

    Raises:
        ValueError: the version is no version.
    """
    found: list[_Verdict | Setting] = []
    for name, value in env.items():
        found += _screen_variable(name, value, version)
        if _ARGUMENT_VARIABLES.fullmatch(name):
            found += (_of_variable(name, outcome) for outcome in _screen_text(value, env, version))
    found += _screen(args, env, version)
    verdicts = [outcome for outcome in found if isinstance(outcome, _Verdict)]
    refused = dict.fromkeys(verdict.sentence for verdict in verdicts if verdict.refused)
    unplanned = dict.fromkeys(verdict.sentence for verdict in verdicts if not verdict.refused)
    settings = [outcome for outcome in found if isinstance(outcome, Setting)]
    planned, not_understood = vllm_planned.read(settings)
    unplanned_flags = frozenset(v.flag for v in verdicts if not v.refused and v.flag)
    if not unplanned_flags.isdisjoint(_FOREIGN_CODE_FLAGS) or env.get(_PLUGINS, "") != "":
        planned = replace(planned, foreign_code=True)
    wrong = () if planned.foreign_code else _wrong_backends(settings, version)
    if planned.attention_backend == _ANY_BACKEND:
        planned = replace(planned, attention_backend=None)
    return UserArguments(
        refused=(*refused, *wrong),
        unplanned=(*unplanned, *not_understood),
        unplanned_flags=unplanned_flags,
        planned=planned,
    )


def _wrong_backends(settings: Sequence[Setting], version: str) -> Iterator[str]:
    """Yield what is wrong with the attention backends that are asked for."""
    asked, known = asked_backends(settings), attention_backends(version)
    for shown, name in asked.items():
        if name.upper() not in known:
            yield (
                f"{shown} {quoted(name)} is no backend of vLLM {version}, so the engine would not "
                f"start; there are {', '.join(sorted(known))}"
            )
    if len(asked) > 1:
        yield f"{' and '.join(asked)} both name an attention backend; leave one of them out"


@dataclass(frozen=True, slots=True)
class _Verdict:
    sentence: str
    refused: bool
    flag: str = ""


def _refuse(sentence: str) -> _Verdict:
    return _Verdict(sentence, refused=True)


def _of_variable(name: str, outcome: _Verdict | Setting) -> _Verdict | Setting:
    """Return what an argument in a variable comes to: only some images read such variables."""
    if isinstance(outcome, Setting):
        if outcome.option == FOREIGN_CODE_OPTION:
            return outcome  # it changes nothing but what surely cannot start
        sentence = f"{outcome.shown} is planned for in spec.engine.args only"
        return _Verdict(f"{name}: {sentence}", refused=False)
    return _Verdict(f"{name}: {outcome.sentence}", refused=outcome.refused)


def _screen_variable(name: str, value: str | None, version: str) -> Iterator[_Verdict | Setting]:
    if name in OWNED_VARIABLES:
        yield _refuse(f"variable {name} is refused; {OWNED_VARIABLES[name]}")
        return
    if name == _BACKEND_VARIABLE and parse_version(version)[:2] < _BACKEND_VARIABLE_GONE:
        yield Setting(BACKEND_OPTION, (), value or "", name)
        return
    for pattern, subject in _UNPLANNED_VARIABLES:
        if pattern.fullmatch(name):
            shown = name if value is None else f"{name}={value}"
            yield _Verdict(
                f"variable {shown} brings in {subject}, which is not planned for", refused=False
            )


def _screen_text(
    text: str | None, env: Mapping[str, str | None], version: str
) -> Sequence[_Verdict | Setting]:
    """Screen a variable that some images split into arguments."""
    if text is None:
        return [_refuse("arguments from a reference cannot be judged; use spec.engine.args")]
    filled, unknown = _expand(text, env)
    if unknown:
        return [_refuse(_only_in_the_pod(name)) for name in unknown]
    try:
        words = shlex.split(filled)
    except ValueError:
        return [_refuse("cannot be split into arguments; use spec.engine.args")]
    return _screen_words(words, version)


def _screen(
    args: Sequence[str], env: Mapping[str, str | None], version: str
) -> Sequence[_Verdict | Setting]:
    expanded = [_expand(word, env) for word in args]
    unknown = dict.fromkeys(name for _, names in expanded for name in names)
    if unknown:  # What stands around them cannot be judged either.
        return [_refuse(_only_in_the_pod(name)) for name in unknown]
    return _screen_words([word for word, _ in expanded], version)


def _only_in_the_pod(name: str) -> str:
    return (
        f"'$({name})' is filled in only in the pod and could become anything; write the value "
        "itself or a plain variable of spec.engine.env, and give secrets as variables that vLLM "
        "reads (VLLM_API_KEY, HF_TOKEN)"
    )


def _expand(word: str, env: Mapping[str, str | None]) -> tuple[str, list[str]]:
    """Return a word as the kubelet will write it, and the variables whose value is not known."""
    unknown: list[str] = []

    def fill(match: re.Match[str]) -> str:
        if match[1] == "$":
            return "$"
        value = env.get(match[2])
        if value is None or "$(" in value:
            unknown.append(match[2])
            return match[0]
        return value

    return _REFERENCE.sub(fill, word), unknown


@dataclass(slots=True)
class _Argument:
    """One flag as it is written, and the words that follow it."""

    word: str
    following: list[str]


def _screen_words(words: Sequence[str], version: str) -> Sequence[_Verdict | Setting]:
    verdicts = []
    arguments: list[_Argument] = []
    for word in words:
        number = _NEGATIVE_NUMBER.fullmatch(word) is not None
        if number and "." in word:
            # vLLM takes it for -1 with a key 5, which is given the next argument.
            verdicts.append(_refuse(f"{word!r} is read as a flag; write it as --flag={word}"))
        if word.startswith("-") and word != "-" and not number:
            arguments.append(_Argument(word, []))
        elif arguments:
            arguments[-1].following.append(word)
        else:
            verdicts.append(_refuse(f"{word!r} stands before any flag; begin with the flag"))
            arguments.append(_Argument("", []))
    judged = (_judge(argument, version) for argument in arguments if argument.word)
    return [*verdicts, *(outcome for outcome in judged if outcome is not None)]


def _judge(argument: _Argument, version: str) -> _Verdict | Setting | None:
    flag, equals, text = argument.word.partition("=")
    attached = text if equals else None
    if problem := _no_flag(flag):
        return _refuse(problem)
    if flag.startswith("-O"):
        return _judge_level(argument)
    head, dot, keys = flag.partition(".")  # what follows is a key of a JSON value
    name = head.replace("_", "-") if flag.startswith("--") else head
    if name not in SHORT and name[:2] in _SHORT_WITH_VALUE_ATTACHED:
        name, attached = name[:2], name[2:]
    meant = _meant(name, version)
    if len(meant) != 1:
        return _refuse(_unclear(meant, name, flag, version))
    (option,) = meant
    values = argument.following if attached is None else [attached]
    value = values[0] if values else None
    shown = _shown(option, flag)
    verdict = _judge_option(option, shown, value, version)
    if verdict is None or not verdict.refused:
        problem = _wrong_number(option, argument.following, attached, keyed=bool(dot))
        if problem is not None:
            return _refuse(f"{shown} {problem}; the engine would not start")
    if verdict is None and _base(option) in PLANNED:
        return Setting(option, tuple(keys.split(".")) if dot else (), value, shown)
    return verdict


def _no_flag(flag: str) -> str | None:
    if flag == "--":
        return "'--' is refused: what follows it would be no flag"
    if any(character.isspace() for character in flag):
        # What follows the blank is a value, and values may be secret.
        first = flag.split(maxsplit=1)[0]
        return f"'{first} ...' holds a blank; write flag and value as two entries or with '='"
    return None


def _judge_level(argument: _Argument) -> _Verdict | None:
    """Judge -O: vLLM reads what is attached to it as an argument once more, so only levels pass."""
    flag = argument.word
    level = "".join(argument.following) if flag == "-O" else flag[2:].removeprefix("=")
    if level in _LEVELS and (flag == "-O" or not argument.following):
        return None
    return _refuse(
        "-O takes one level from 0 to 3, for example -O2; write other options of compilation as "
        "--compilation-config"
    )


def _judge_option(option: str, shown: str, value: str | None, version: str) -> _Verdict | None:
    flag = _base(option)
    problem = _not_for_the_user(option, value) or vllm_planned.wrong_in_version(
        option, value, parse_version(version)
    )
    if problem is not None:
        return _refuse(f"{shown} {problem}")
    if flag != option:
        return None  # switching off what is not planned for is no news
    for group in UNPLANNED:
        if group.flags.fullmatch(flag) and group.counts(value):
            return _Verdict(
                f"{shown} brings in {group.subject}, which is not planned for",
                refused=False,
                flag=flag,
            )
    return None


def _not_for_the_user(option: str, value: str | None) -> str | None:
    """Return why an option, or this value of it, is not the user's to set."""
    flag = _base(option)
    if flag in OWNED:
        return f"is set by Ballonet; {OWNED[flag]}"
    if option in REFUSED:
        return f"is refused; {REFUSED[option]}"
    if flag == "--kv-cache-dtype" and (value or "").lower() in KV_CACHE_TYPES.values():
        return f"{value} is set by Ballonet; set spec.sequence.kvCacheType"
    if flag == "--api-server-count" and not _AT_LEAST_ONE.fullmatch(value or ""):
        return "must be 1 or more: without a server no pod would become ready"
    return None


def _shown(option: str, spelled: str) -> str:
    flag = _base(option)
    return flag if spelled == flag else f"{spelled} ({flag})"


def _wrong_number(
    option: str, following: Sequence[str], attached: str | None, *, keyed: bool
) -> str | None:
    """Return what is wrong with the number of an option's values; words are never repeated."""
    least, most = _values(option)
    if most == 0:
        return "takes no value" if attached is not None or following or keyed else None
    if attached is not None:
        least, most = 0, 0
    elif keyed:
        least, most = 1, 1
    if len(following) < least:
        return "needs a value"
    if most is not None and len(following) > most:
        return "is followed by more words than it takes"
    return None


def _values(option: str) -> tuple[int, int | None]:
    """Return the least and the most values of an option; any number where it was not read."""
    flag = _base(option)
    if flag not in possible_flags(VALUES_READ_IN):
        return 0, 0 if flag != option else None
    return vllm_values().get(flag, (1, 1))


@lru_cache(maxsize=64)
def _options(version: str) -> frozenset[str]:
    """Return the long options that a version may take, with the --no- forms of its switches."""
    known = possible_flags(version)
    return known | {f"--no-{flag[2:]}" for flag in known if _is_switch(flag)}


def _is_switch(flag: str) -> bool:
    # Switches were read in one version; those that it lacks are told by their first word.
    if flag in possible_flags(VALUES_READ_IN):
        return flag in vllm_switches()
    return flag.startswith(("--enable-", "--disable-"))


def _base(option: str) -> str:
    """Return the flag that an option switches."""
    positive = f"--{option[5:]}"
    return positive if option.startswith("--no-") and lifetime(positive) else option


def _meant(name: str, version: str) -> frozenset[str]:
    """Return the long options that a spelling may stand for in this version; argparse's rules.

    A spelling that the version does not take but that is a flag of ours in another version, or one
    of ours but for its letters' case, counts as that flag: its message says what to set instead.
    """
    if not name.startswith("--"):
        return _meant_short(name)
    options = _options(version)
    if name in options:
        return frozenset((name,))
    begun = frozenset(option for option in options if option.startswith(name))
    if begun:
        return begun
    folded = name.lower()
    ours = {flag for flag in OWNED if folded in (flag, f"--no-{flag[2:]}")}
    ours |= {option for option in options if option.startswith(folded) and _base(option) in OWNED}
    return frozenset(ours)


def _meant_short(name: str) -> frozenset[str]:
    if name in SHORT:
        return frozenset((SHORT[name],))
    if name[:2] in _SHORT_WITH_VALUE_ATTACHED:
        return frozenset((SHORT[name[:2]],))
    return frozenset(long for short, long in SHORT.items() if short.startswith(name))


def _unclear(meant: Collection[str], name: str, spelled: str, version: str) -> str:
    """Say that a spelling stands for several options or for none."""
    if meant:
        several = ", ".join(sorted(meant)[:4])
        return f"{spelled} could mean {several}; write the whole flag"
    text = f"vLLM {version} has no {spelled}, so the engine would not start"
    seen = lifetime(name)
    if seen is not None:
        first, last = seen
        text += f"; the flag was seen from {first} to {last}"
    near = suggest(name, sorted(_options(version) - OWNED.keys()), limit=1, likeness=0.7)
    return f"{text}; did you mean {near[0]}?" if near else text
