"""Which KV formats the attention backends of an unpacked vLLM take, one JSON line each.

    <python with torch> benchmarks/vllm_kernels.py SOURCES > kernels.jsonl

SOURCES is the folder of an unpacked wheel (0.11.2 and later; CPU builds are enough: only its
Python files are used). Nothing of this project is imported, and no GPU is needed: the backends are
asked about each compute capability as ``get_valid_backends`` (platforms/cuda.py) asks at a start.

A line has ``engine_version``, ``attention`` (the size of heads, or what else is special),
``format`` and ``compute``, the capabilities where the backend that would be chosen takes it, or
with ``asked`` the backend of that name where it is asked for.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.abc
import importlib.machinery
import inspect
import itertools
import json
import logging
import os
import re
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

COMPUTE = ((7, 0), (7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (10, 3), (11, 0), (12, 0))
FORMATS = (
    *("auto", "float16", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2", "nvfp4", "nvfp4_4over6"),
    *("int8_per_token_head", "int4_per_token_head", "fp8_per_token_head", "turboquant_k8v4"),
    *("turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc"),
)
ATTENTION: dict[str, dict[str, Any]] = {
    **{f"heads {size}": {"head_size": size} for size in (64, 80, 96, 128, 192, 256, 512)},
    "windows": {"head_size": 128, "has_sliding_window": True},
    "sinks": {"head_size": 64, "has_sink": True},
    "two-way images": {"head_size": 128, "use_mm_prefix": True},
    "latent": {"head_size": 576, "use_mla": True},
}
ASKED = (
    *("FLASH_ATTN", "FLASHINFER", "TRITON_ATTN", "FLEX_ATTENTION"),
    *("FLASHMLA", "FLASH_ATTN_MLA", "CUTLASS_MLA", "FLASHINFER_MLA", "TRITON_MLA"),
)
# What backends refuse only when they are built (v1/attention/backends/triton_attn.py and
# mla/triton_mla.py): Triton has no 8 bits below 8.9; from 0.26 BF16 below 8.0 is refused too.
_TRITON = ("TRITON_ATTN", "TRITON_MLA")
_compute = [9, 0]


class _Stubs(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives empty modules for compiled parts and packages that the question does not need."""

    packages = frozenset(
        (
            *("flashinfer", "flash_attn", "deep_gemm", "quack", "cutlass", "cuda", "depyf", "mcp"),
            *("blake3", "diskcache", "gguf", "mistral_common", "outlines_core", "cbor2", "numba"),
            *("openai", "openai_harmony", "anthropic", "tiktoken", "compressed_tensors", "lark"),
            *("xgrammar", "llguidance", "partial_json_parser", "tokenspeed_mla", "cloudpickle"),
            *("prometheus_client", "prometheus_fastapi_instrumentator", "pybase64", "msgspec"),
            *("setproctitle", "watchfiles", "ijson", "opentelemetry", "sentencepiece", "cpuinfo"),
            *("cachetools", "einops", "grpc", "model_hosting_container_standards"),
        )
    )

    def find_spec(self, name: str, *_: object) -> Any:
        package = name.partition(".")[0]
        if package == "vllm":
            if not name.startswith(("vllm._", "vllm.vllm_flash_attn", "vllm.third_party")):
                return None
        elif package not in self.packages or not self._is_mine(name.rpartition(".")[0]):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def _is_mine(self, parent: str) -> bool:
        spec = getattr(sys.modules.get(parent), "__spec__", None)
        return not parent or isinstance(getattr(spec, "loader", None), _Stubs)

    def create_module(self, spec: Any) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        module.__path__ = []

        def anything(name: str) -> type:
            if name.startswith("__"):
                raise AttributeError(name)
            return type(name, (_Anything,), {})

        module.__getattr__ = anything  # type: ignore[method-assign]
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass


class _Every(type):
    """The class of something that has every attribute and can be called."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls

    def __call__(cls, *_: object, **__: object) -> Any:
        return cls


class _Anything(metaclass=_Every):
    pass


class _Config(types.SimpleNamespace):
    """As much of a vLLM config as backends look at; None for the rest."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

    def get_num_attention_heads(self, _: object) -> int:
        return 16

    def get_num_kv_heads(self, _: object) -> int:
        return 1

    def get_head_size(self) -> int:
        return 128


def _vllm_config() -> _Config:
    deepseek = types.SimpleNamespace(
        kv_lora_rank=512, qk_rope_head_dim=64, qk_nope_head_dim=128, v_head_dim=128
    )
    one = dict.fromkeys(
        ("prefill_context_parallel_size", "decode_context_parallel_size", "tensor_parallel_size"), 1
    )
    return _Config(
        parallel_config=_Config(**one),
        model_config=_Config(hf_text_config=deepseek, hf_config=deepseek),
        attention_config=_Config(),
        cache_config=_Config(),
        scheduler_config=_Config(max_num_batched_tokens=8192),
    )


class Backends:
    """The attention backends of the vLLM version that is on the path."""

    def __init__(self, sources: Path) -> None:
        interface: Any = importlib.import_module("vllm.platforms.interface")
        platforms: Any = importlib.import_module("vllm.platforms")
        cuda: Any = importlib.import_module("vllm.platforms.cuda")
        self.capability = interface.DeviceCapability
        self.platform = _platform(cuda.CudaPlatformBase, interface)()
        platforms._current_platform = platforms.current_platform = self.platform
        importlib.import_module("vllm.config")
        registry = "attention.backends.registry"
        self.selector: Any = None
        self.names: Any = None
        for prefix in ("vllm.v1", "vllm"):
            with suppress(ImportError):
                self.names = importlib.import_module(f"{prefix}.{registry}").AttentionBackendEnum
                for backend in self.names:
                    with suppress(Exception):  # a part that is compiled, or of another platform
                        backend.get_class()
            with suppress(ImportError):
                self.selector = importlib.import_module(f"{prefix}.attention.selector")
        self.fa4 = _flash_attention_4(sources)
        self.config = _vllm_config()

    def _asked(self, attention: dict[str, Any], kind: str) -> dict[str, Any]:
        """Return what a backend is asked about, and let the config say the same."""
        torch: Any = importlib.import_module("torch")
        self.config.model_config.use_mla = attention.get("use_mla", False)
        self.config.cache_config.cache_dtype = kind
        return {
            "dtype": torch.bfloat16 if _compute[0] >= 8 else torch.float16,
            "kv_cache_dtype": kind,
            "block_size": None,
            **dict.fromkeys(("use_mla", "has_sink", "use_sparse", "use_mm_prefix"), False),
            "attn_type": "decoder",
            "num_heads": 16,
            "device_capability": self.capability(*_compute),
            **attention,
        }

    def takes(self, name: str, attention: dict[str, Any], kind: str) -> bool:
        """Return whether a start takes a backend that is asked for by its name."""
        if name not in self.names.__members__:
            return False
        ask = self.names[name].get_class().validate_configuration
        known = inspect.signature(ask).parameters
        asked = self._asked(attention, kind) | {"use_per_head_quant_scales": False}
        return not ask(**{name: value for name, value in asked.items() if name in known})

    def chosen(self, attention: dict[str, Any], kind: str) -> str | None:
        """Return the backend that a start would choose, or None."""
        asked = self._asked(attention, kind)
        ask = self.platform.get_valid_backends
        known = inspect.signature(ask).parameters
        if "attn_selector_config" in known:
            config = self.selector.AttentionSelectorConfig
            fields = {name: value for name, value in asked.items() if name in config._fields}
            asked["attn_selector_config"] = config(**fields)
        valid, _ = ask(**{name: value for name, value in asked.items() if name in known})
        first = next(iter(valid), None)
        if first is None:
            return None
        backend = getattr(first, "backend", None) or first[0]
        return str(backend.name)

    def on(self, compute: tuple[int, int]) -> None:
        """Let the platform, and all that asks for compiled parts, answer as on a device."""
        _compute[:] = compute
        major = compute[0]
        has = {2: major >= 8, 3: major == 9, 4: major in self.fa4}
        newest = 3 if has[3] else 4 if major == 10 and has[4] else 2
        answers: dict[str, Callable[..., Any]] = {
            "is_fa_version_supported": lambda version: has.get(version, False),
            "fa_version_unsupported_reason": lambda _: None,
            "is_flash_attn_varlen_func_available": lambda: True,
            "get_flash_attn_version": lambda *_, **__: newest,
            "has_nvidia_artifactory": lambda: True,
            "is_flashmla_supported": lambda: (major == 9, None),
            "is_flashmla_dense_supported": lambda: (major == 9, None if major == 9 else "no"),
        }
        for name, module in list(sys.modules.items()):
            if not name.startswith("vllm") or module is None:
                continue
            inside = vars(module)
            for key, value in list(inside.items()):
                if type(value).__name__ == "_lru_cache_wrapper":
                    value.cache_clear()
                if key.startswith("has_flashinfer"):
                    inside[key] = lambda *_: True
            inside.update({key: answer for key, answer in answers.items() if key in inside})
            if "_current_vllm_config" in inside:
                inside["_current_vllm_config"] = self.config


def _platform(base: Any, interface: Any) -> Any:
    """Return the class of an NVIDIA platform of the compute capability that is asked about."""

    def wanted(capability: int | tuple[int, int]) -> tuple[int, int]:
        return capability if isinstance(capability, tuple) else divmod(capability, 10)

    class Asked(base):  # type: ignore[misc]
        _enum = interface.PlatformEnum.CUDA

        @classmethod
        def get_device_capability(cls, *_: int, **__: int) -> Any:
            return interface.DeviceCapability(*_compute)

        @classmethod
        def has_device_capability(cls, capability: Any, *_: int, **__: int) -> bool:
            return tuple(_compute) >= wanted(capability)

        @classmethod
        def is_device_capability(cls, capability: Any, *_: int, **__: int) -> bool:
            return tuple(_compute) == wanted(capability)

        @classmethod
        def get_device_name(cls, *_: int, **__: int) -> str:
            return "GPU"

        @classmethod
        def get_device_total_memory(cls, *_: int, **__: int) -> int:
            return 80 << 30

    return Asked


def _flash_attention_4(sources: Path) -> frozenset[int]:
    """Return the generations that FlashAttention 4 is built for."""
    path = sources / "vllm/vllm_flash_attn/flash_attn_interface.py"
    text = path.read_text() if path.exists() else ""
    _, _, after = text.partition("def _is_fa4_supported")
    body = after.split("\ndef ")[0]
    return frozenset(
        major for major in (9, 10, 11) if re.search(rf"family\({major}0\)|\b{major}\b", body)
    )


def _refused_when_built(backend: str, kind: str, compute: tuple[int, int], version: str) -> bool:
    minor = tuple(map(int, version.split(".")[:2]))
    return backend in _TRITON and (
        (kind.startswith("fp8") and compute < (8, 9))
        or (kind == "bfloat16" and compute < (8, 0) and minor >= (0, 26))
    )


def lines(backends: Backends, version: str) -> Iterator[dict[str, Any]]:
    """Yield what backends take, without formats that they take nowhere."""
    takes: dict[tuple[str, str, str], list[str]] = {}
    for compute in COMPUTE:
        backends.on(compute)
        for (name, attention), kind in itertools.product(ATTENTION.items(), FORMATS):
            of = {"": backends.chosen(attention, kind)}
            of |= {asked: asked for asked in ASKED if backends.takes(asked, attention, kind)}
            for asked, backend in of.items():
                if backend and not _refused_when_built(backend, kind, compute, version):
                    takes.setdefault((asked, name, kind), []).append(f"{compute[0]}.{compute[1]}")
    for (asked, name, kind), where in sorted(takes.items()):
        line = {"engine_version": version, "attention": name, "format": kind, "compute": where}
        yield line | ({"asked": asked} if asked else {})


def main() -> None:
    """Ask about the version that is unpacked in a folder."""
    parser = argparse.ArgumentParser()
    parser.add_argument("sources", type=Path)
    parser.add_argument("--version", help="default: the folder's name")
    arguments = parser.parse_args()
    sources = arguments.sources.resolve()
    logging.disable(logging.CRITICAL)
    os.environ["VLLM_CONFIGURE_LOGGING"] = "0"
    sys.path.insert(0, str(sources))
    sys.meta_path.append(_Stubs())
    torch: Any = importlib.import_module("torch")
    device = types.SimpleNamespace(multi_processor_count=132, name="GPU", total_memory=80 << 30)
    torch.cuda.get_device_properties = lambda *_: device
    for maker in ("empty", "zeros"):
        setattr(torch, maker, _on_cpu(getattr(torch, maker)))
    version = arguments.version or sources.name
    for line in lines(Backends(sources), version):
        print(json.dumps(line))


def _on_cpu(maker: Callable[..., Any]) -> Callable[..., Any]:
    def make(*sizes: Any, **options: Any) -> Any:
        options.pop("device", None)
        return maker(*sizes, **options)

    return make


if __name__ == "__main__":
    main()
