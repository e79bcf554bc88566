"""vLLM arguments that change cache layout or memory and that are planned for, as typed values.

A table says which option carries what; whatever it does not understand about a value makes the plan
Unknown by the option's name. The meaning of options is that of config/{cache,lora,offload,
speculative,multimodal}.py and engine/arg_utils.py (0.10.2 to 0.33.0). Of an option that is written
twice the last value counts; keys of one option (``--flag.key``) make up one JSON value that stands
after all others (utils/argparse_utils.py, 0.32.0).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from ballonet.api.quoting import quoted
from ballonet.api.v1alpha1 import KvCacheType
from ballonet.engines.base import Adapters, PlannedArguments, SpeculationArguments
from ballonet.engines.vllm_versions import NEWEST, Version
from ballonet.kv.cache_types import CACHE_TYPES
from ballonet.kv.units import GIB


@dataclass(frozen=True, slots=True)
class Setting:
    """One option as a user set it.

    Attributes:
        option: its whole name; with ``--no-`` where a switch is turned off.
        keys: keys of a JSON value, from ``--flag.key``.
        value: None where the option takes none.
        shown: as it was written, for messages.
    """

    option: str
    keys: tuple[str, ...]
    value: str | None
    shown: str


class NotPlanned(ValueError):  # noqa: N818 - an outcome, not a fault
    """A value is not understood; says what is."""


def _only_with(what: str, value: Any) -> NotPlanned:
    """Return that a value, which is no secret, is none of those that are planned for."""
    return NotPlanned(f"is planned for only with {what}, not with {quoted(value)}")


def _whole(value: Any, most: int | None = None) -> int:
    number = _decimal(value)
    digits = not isinstance(value, str) or value.strip().isdecimal()  # "1e3" is none for argparse
    if not digits or number != int(number) or number < 1 or (most is not None and number > most):
        to = "" if most is None else f" to {most:,}"
        raise _only_with(f"a whole number from 1{to}", value)
    return int(number)


def _decimal(value: Any) -> Decimal:
    try:
        number = Decimal(str(value))
    except InvalidOperation:
        raise _only_with("a number", value) from None
    if not (number.is_finite() and 0 <= number < 10**15):
        raise _only_with("a number from 0", value)
    return number


def _one_of(*words: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        word = str(value).lower()
        if word not in words:
            raise _only_with(f"one of {', '.join(words)}", value)
        return word

    return read


def _gibibytes(value: Any) -> int:
    return int(_decimal(value) * GIB)


def _backend(values: Mapping[str, Any]) -> str | None:
    """Return a backend's name; the version knows which there are."""
    other = sorted(_object(values.get(_ATTENTION_OPTION, {})).keys() - {_BACKEND_KEY})
    if other:
        raise NotPlanned(f"is not planned for with the key {other[0]}")
    named = (_named_backend(option, values.get(option)) for option in _BACKEND_OPTIONS)
    value = next((name for name in named if name is not None), None)
    if value is None:
        return None
    name = str(value).upper()
    if not name.isidentifier():
        raise _only_with("the name of a backend", value)
    return name


def _named_backend(option: str, value: Any) -> Any:
    """Return what the value of an option that can name a backend names; None for nothing."""
    if option != _ATTENTION_OPTION:
        return value
    config = _json(value) if isinstance(value, str) else value
    return config.get(_BACKEND_KEY) if isinstance(config, dict) else None


def _json(text: str) -> Any:
    """Return what a JSON text says, or None where it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _object(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        value = _json(value)
    if not isinstance(value, dict):
        raise NotPlanned("is planned for only with a JSON object")
    return value


# The engine's words for spec.sequence.kvCacheType, and the formats that the spec has no value for.
KV_CACHE_TYPES: Final = {
    KvCacheType.AUTO: "auto",
    KvCacheType.BF16: "bfloat16",
    KvCacheType.FP8: "fp8",
}
_FURTHER_KV_CACHE_TYPES: Final = [
    name for name in CACHE_TYPES if name not in KV_CACHE_TYPES.values()
]
# Values that not all versions know: the first and the last minor version that does (CacheDType,
# MambaDType, MambaCacheMode in config/cache.py, 0.10.2 to 0.33.0).
_LATEST: Final = NEWEST[:2]
_STATE_TYPES_SINCE: Final = {"float16": ((0, 13), _LATEST), "bfloat16": ((0, 22), _LATEST)}
_LIFETIMES: Final[Mapping[str, Mapping[str, tuple[tuple[int, int], tuple[int, int]]]]] = {
    "--kv-cache-dtype": {
        "fp8_ds_mla": ((0, 11), _LATEST),
        "float16": ((0, 18), _LATEST),
        **dict.fromkeys(
            (
                *("nvfp4", "int8_per_token_head", "fp8_per_token_head", "turboquant_k8v4"),
                *("turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc"),
            ),
            ((0, 20), _LATEST),
        ),
        "int4_per_token_head": ((0, 25), _LATEST),
        "nvfp4_4over6": ((0, 28), _LATEST),
        "nvfp4_ds_mla": ((0, 30), _LATEST),
    },
    "--mamba-cache-mode": {"all": ((0, 15), (0, 31))},
    "--mamba-cache-dtype": _STATE_TYPES_SINCE,
    "--mamba-ssm-cache-dtype": _STATE_TYPES_SINCE,
}


def wrong_in_version(option: str, value: str | None, version: Version) -> str | None:
    """Return why an option's value is not known to a version, or None."""
    lifetime = _LIFETIMES.get(option, {}).get(value or "")
    if lifetime is None or lifetime[0] <= version[:2] <= lifetime[1]:
        return None
    first, last = (f"{major}.{minor}" for major, minor in lifetime)
    return f"takes {value} from vLLM {first} to {last} only, so the engine would not start"


_STATE_TYPES: Final = _one_of("auto", "float32", "float16", "bfloat16")
# Keys of a speculative config that change neither layout nor memory of the device.
_FREE_SPECULATION_KEYS: Final = frozenset(
    (
        *("prompt_lookup_max", "prompt_lookup_min", "revision", "code_revision", "enforce_eager"),
        *("disable_padded_drafter_batch", "rejection_sample_method", "attention_backend"),
        *("synthetic_acceptance_length", "synthetic_acceptance_rates", "disable_eagle_block_drop"),
        *("use_local_argmax_reduction", "moe_backend", "disable_by_batch_size"),
    )
)
# Methods whose drafts come from a model that is named; mtp uses layers of the model itself, ngram
# and suffix none.
_WITH_MODEL: Final = frozenset(("eagle", "eagle3", "draft_model"))
_METHODS: Final = _WITH_MODEL | {"mtp", "ngram", "suffix"}
# MAX_SPEC_LEN of v1/sample/rejection_sampler.py: the engine stops at the first longer draft.
_MOST_DRAFTED: Final = 128
_SPECULATION_OPTIONS: Final = {
    "--spec-method": "method",
    "--spec-model": "model",
    "--spec-tokens": "num_speculative_tokens",
}


# MaxLoRARanks of config/lora.py (0.11.2 to 0.32.0; 0.10.2 has all but 1).
_ADAPTER_RANKS: Final = (1, 8, 16, 32, 64, 128, 256, 320, 512)


def _adapters(values: Mapping[str, Any]) -> Adapters | None:
    if not values.get("--enable-lora"):
        return None
    rank = _whole(values.get("--max-lora-rank", 16))
    if rank not in _ADAPTER_RANKS:
        known = ", ".join(map(str, _ADAPTER_RANKS))
        raise _only_with(f"a rank of {known}", rank)
    return Adapters(count=_whole(values.get("--max-loras", 1)), rank=rank)


def _text_only(values: Mapping[str, Any]) -> bool:
    """Return whether no item of any kind is let in; a kind that is not named keeps its default."""
    limits = {
        kind: limit.get("count") if isinstance(limit, dict) else limit
        for kind, limit in _object(values.get("--limit-mm-per-prompt", {})).items()
    }
    none_of_any = all(limits.get(kind) == 0 for kind in ("image", "video", "audio"))
    return none_of_any or bool(values.get("--language-model-only"))


def _speculation(values: Mapping[str, Any]) -> SpeculationArguments:
    """Return what speculative options say; vLLM writes the short ones into the config."""
    config = _object(values.get("--speculative-config", {})) | {
        key: values[option] for option, key in _SPECULATION_OPTIONS.items() if option in values
    }
    model = config.get("model")
    method = config.get("method") or _method_of(model)
    if isinstance(method, str) and method.endswith("_mtp"):
        method = "mtp"  # deprecated names of one method (config/speculative.py)
    if method not in _METHODS:
        raise _only_with(f"a method of {', '.join(sorted(_METHODS))}", method)
    known = {"method", "model", "num_speculative_tokens", "draft_tensor_parallel_size"}
    other = sorted(config.keys() - known - _FREE_SPECULATION_KEYS)
    if other:
        raise NotPlanned(f"is not planned for with the key {other[0]}")
    if "num_speculative_tokens" not in config:
        raise NotPlanned("is planned for only where num_speculative_tokens is given")
    if method in _WITH_MODEL and not isinstance(model, str):
        raise NotPlanned(f"is planned for only with the name of a model for method {method}")
    ranks = config.get("draft_tensor_parallel_size")
    return SpeculationArguments(
        method=method,
        tokens=_whole(config["num_speculative_tokens"], _MOST_DRAFTED),
        model=model if method in _WITH_MODEL else None,
        tensor=None if ranks is None else _whole(ranks),
        layers_of=str(model) if method == "mtp" and model is not None else None,
    )


def _method_of(model: object) -> str | None:
    """Return the method that a model's name stands for, as far as names alone decide it."""
    if not isinstance(model, str):
        return None
    name = model.lower()
    if name in ("ngram", "[ngram]"):
        return "ngram"
    if "eagle-" in name:
        return "eagle"
    return "eagle3" if "eagle3" in name else None


@dataclass(frozen=True, slots=True)
class _Reader:
    """Which options make up a field of PlannedArguments, and how their values are read."""

    field: str
    options: tuple[str, ...]
    read: Callable[[Mapping[str, Any]], Any]


def _value(field: str, option: str, read: Callable[[Any], Any]) -> _Reader:
    return _Reader(field, (option,), lambda values: read(values[option]))


def _switch(field: str, option: str, *, on: bool = True) -> _Reader:
    return _Reader(field, (option,), lambda values: values[option] == on)


BACKEND_OPTION: Final = "--attention-backend"
_ATTENTION_OPTION: Final = "--attention-config"
_BACKEND_KEY: Final = "backend"
_BACKEND_OPTIONS: Final = (BACKEND_OPTION, _ATTENTION_OPTION)
BLOCKS_OPTION: Final = "--num-gpu-blocks-override"
FOREIGN_CODE_OPTION: Final = "--trust-remote-code"
_READERS: Final = (
    _Reader("adapters", ("--enable-lora", "--max-loras", "--max-lora-rank"), _adapters),
    _Reader("attention_backend", _BACKEND_OPTIONS, _backend),
    _value("blocks", BLOCKS_OPTION, _whole),
    _switch("eager", "--enforce-eager"),
    _switch("foreign_code", FOREIGN_CODE_OPTION),
    _switch("hybrid_manager", "--disable-hybrid-kv-cache-manager", on=False),
    _value("kv_cache_type", "--kv-cache-dtype", _one_of(*_FURTHER_KV_CACHE_TYPES)),
    _value("offload_bytes", "--cpu-offload-gb", _gibibytes),
    _value("quantization", "--quantization", lambda value: str(value).lower()),
    _switch("skips_encoder_profile", "--skip-mm-profiling"),
    _Reader("speculation", ("--speculative-config", *_SPECULATION_OPTIONS), _speculation),
    _value("state_block_tokens", "--mamba-block-size", _whole),
    _value("state_cache_mode", "--mamba-cache-mode", _one_of("none", "align", "all")),
    _value("state_cache_type", "--mamba-cache-dtype", _STATE_TYPES),
    _value("state_ssm_cache_type", "--mamba-ssm-cache-dtype", _STATE_TYPES),
    _Reader("text_only", ("--language-model-only", "--limit-mm-per-prompt"), _text_only),
)
PLANNED: Final = frozenset(option for reader in _READERS for option in reader.options)


def read(settings: Sequence[Setting]) -> tuple[PlannedArguments, tuple[str, ...]]:
    """Return what options of PLANNED say, and a sentence for each that is not understood."""
    written = _last_of_each(settings)
    fields: dict[str, Any] = {}
    problems: list[str] = []
    for reader in _READERS:
        own = [option for option in reader.options if option in written]
        if not own:
            continue
        try:
            fields[reader.field] = reader.read({option: written[option].value for option in own})
        except NotPlanned as reason:
            shown = ", ".join(written[option].shown for option in own)
            problems.append(f"{shown} {reason}.")
    return PlannedArguments(**fields), tuple(problems)


def asked_backends(settings: Iterable[Setting]) -> dict[str, str]:
    """Return the names of attention backends that are asked for, by how each is written."""
    written = _last_of_each(settings)
    named = {
        written[option].shown: _named_backend(option, written[option].value)
        for option in _BACKEND_OPTIONS
        if option in written
    }
    return {
        shown: name
        for shown, name in named.items()
        if isinstance(name, str) and name.isidentifier()
    }


@dataclass(frozen=True, slots=True)
class _Written:
    """What the engine's parser leaves of one option: True and False for a switch."""

    shown: str
    value: Any


def _last_of_each(settings: Iterable[Setting]) -> dict[str, _Written]:
    plain: dict[str, _Written] = {}
    keyed: dict[str, _Written] = {}
    for setting in settings:
        option = setting.option
        if option.startswith("--no-"):
            plain[f"--{option[5:]}"] = _Written(setting.shown, value=False)
        elif setting.keys:
            whole = keyed.setdefault(option, _Written(setting.shown, {}))
            _put(whole.value, setting.keys, setting.value or "")
        else:
            value = True if setting.value is None else setting.value
            plain[option] = _Written(setting.shown, value)
    return plain | keyed


def _put(whole: dict[str, Any], keys: Sequence[str], text: str) -> None:
    """Put a text, read as JSON where it is such, below the keys."""
    for key in keys[:-1]:
        inner = whole.get(key)
        if not isinstance(inner, dict):
            inner = whole[key] = {}
        whole = inner
    value = _json(text)
    whole[keys[-1]] = text if value is None and text != "null" else value
