"""What a config.json leaves out, by the defaults of its class (transformers 5.19).

Files are saved in full at the top, but a config within a config only as its difference from the
defaults of its class (``to_diff_dict`` of transformers). So a missing figure at the top is a broken
file, but for those that other figures could stand in for: there the engine takes the default
without a word, whatever the others say.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_NAMES: Final = (
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_size",
    "intermediate_size",
    "vocab_size",
    "max_position_embeddings",
)
_SHAPES: Final[Mapping[str, tuple[int | None, ...]]] = {
    "deepseek_v3": (61, 128, 128, 64, 7168, 18432, 129280, 4096),
    "ernie4_5_vl_moe_text": (28, 20, 4, None, 2560, 12288, 103424, 131072),
    "gemma": (28, 16, 16, 256, 3072, 24576, 256000, 8192),
    "gemma2": (26, 8, 4, 256, 2304, 9216, 256000, 8192),
    "gemma3_text": (26, 8, 4, 256, 2304, 9216, 262208, 131072),
    "gemma3n_text": (35, 8, 2, 256, 2048, 16384, 262400, 32768),
    "gemma4_text": (30, 8, 4, 256, 2304, 9216, 262144, 131072),
    "gemma4_unified_text": (30, 8, 4, 256, 2304, 9216, 262144, 262144),
    "glm4v_moe_text": (46, 96, 8, None, 4096, 10944, 151424, 65536),
    "glm4v_text": (40, 32, 2, None, 4096, 13696, 151552, 32768),
    "glm_ocr_text": (16, 16, 8, None, 1024, 4096, 59392, 131072),
    "llama": (32, 32, None, None, 4096, 11008, 32000, 2048),
    "llama4_text": (48, 40, 8, 128, 5120, 8192, 202048, 131072),
    "minimax_m3_vl_text": (60, 64, 4, 128, 6144, 3072, 200064, 524288),
    "ministral3": (34, 32, 8, 128, 4096, 14336, 131072, 262144),
    "mistral": (32, 32, 8, None, 4096, 14336, 32000, 131072),
    "mixtral": (32, 32, 8, None, 4096, 14336, 32000, 131072),
    "phi3": (32, 32, None, None, 3072, 8192, 32064, 4096),
    "qwen2": (32, 32, 32, None, 4096, 22016, 151936, 32768),
    "qwen2_5_omni_text": (28, 28, 4, None, 3584, 18944, 152064, 32768),
    "qwen2_5_vl_text": (80, 64, 8, None, 8192, 29568, 152064, 32768),
    "qwen2_vl_text": (80, 64, 8, None, 8192, 29568, 152064, 32768),
    "qwen3": (32, 32, 32, 128, 4096, 22016, 151936, 32768),
    "qwen3_5_moe_text": (40, 16, 2, 256, 2048, None, 248320, 32768),
    "qwen3_5_text": (32, 16, 4, 256, 4096, 12288, 248320, 32768),
    "qwen3_moe": (24, 32, 4, None, 2048, 6144, 151936, 32768),
    "qwen3_next": (48, 16, 2, 256, 2048, 5632, 151936, 32768),
    "qwen3_omni_moe_text": (28, 28, 4, None, 2048, 18944, 3584, 32768),
    "qwen3_vl_moe_text": (24, 16, 16, 128, 2048, 5632, 151936, 128000),
    "qwen3_vl_text": (32, 32, 32, 128, 4096, 22016, 151936, 128000),
}
_LATENT: Final = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128}
_FURTHER: Final[Mapping[str, Mapping[str, Any]]] = {
    "deepseek_v3": _LATENT,
    "gemma2": {"sliding_window": 4096},
    "gemma3_text": {"sliding_window": 4096},
    "gemma3n_text": {"sliding_window": 512, "num_kv_shared_layers": 15},
    "gemma4_text": {"sliding_window": 512, "global_head_dim": 512},
    "gemma4_unified_text": {"sliding_window": 1024, "global_head_dim": 512},
    "llama4_text": {"attention_chunk_size": 8192},
    "mistral": {"sliding_window": 4096},
}
_SILENT: Final = ("num_key_value_heads", "head_dim", "sliding_window")
# The same for families that stand at the top. Where files that have no window say null, which
# copies of them drop, a missing one means none.
_AT_THE_TOP: Final[Mapping[str, tuple[int | None, int | None, int | None]]] = {
    "afmoe": (None, 128, 1024),
    "cohere2": (None, None, 4096),
    "cohere2_moe": (None, 128, 4096),
    "cosmos3_edge_text": (8, 128, None),
    "cwm": (8, 128, 8192),
    "dots1": (32, None, None),
    "ernie4_5": (2, 128, None),
    "ernie4_5_moe": (4, None, None),
    "exaone4": (32, None, None),
    "exaone_moe": (32, None, None),
    "glm": (2, 128, None),
    "glm4": (2, 128, None),
    "glm4_moe": (8, None, None),
    "gpt_oss": (8, 64, 128),
    "granite_swa": (4, None, 128),
    "granitemoe_swa": (None, None, 128),
    "helium": (20, 128, None),
    "hy_v3": (8, 128, None),
    "laguna": (8, 128, 512),
    "mellum": (4, 128, 1024),
    "minimax_m2": (8, 128, None),
    "ministral": (8, None, None),
    "mistral": (8, None, None),
    "olmo3": (None, None, 4096),
    "paddleocr_vl_text": (2, 128, None),
    "phi4_multimodal": (8, None, None),
    "phimoe": (8, None, None),
    "qwen2_moe": (16, None, None),
    "seed_oss": (8, 128, None),
    "smollm3": (4, None, None),
    "stablelm": (32, None, None),
    "starcoder2": (2, None, None),
    "vaultgemma": (4, 256, 4096),
}
# Families of text configs that do not say what they are, by the model around them.
_UNNAMED: Final[Mapping[str, str]] = {
    "gemma3": "gemma3_text",
    "idefics3": "llama",
    "llava": "llama",
    "llava_next": "llama",
    "mistral3": "mistral",
    "paligemma": "gemma",
    "pixtral": "mistral",
    "video_llava": "llama",
}


def text_model_type(text: str | None, outer: str | None) -> str | None:
    """Return the family of a text config, by its own word or by that of the model around it."""
    return text or _UNNAMED.get(outer or "", outer)


def nested_defaults(model_type: str) -> Mapping[str, Any]:
    """Return the fields that a text config of this family means where it does not give them."""
    shape = zip(_NAMES, _SHAPES.get(model_type, ()), strict=False)
    silent = zip(_SILENT, _AT_THE_TOP.get(model_type, ()), strict=False)
    given = {name: figure for name, figure in (*shape, *silent) if figure is not None}
    return {**given, **_FURTHER.get(model_type, {})}


def silent_defaults(model_type: str) -> Mapping[str, Any]:
    """Return what a config at the top means where it does not give a figure with a stand-in."""
    figures = _AT_THE_TOP.get(model_type)
    if figures is not None:
        return {k: v for k, v in zip(_SILENT, figures, strict=True) if v is not None}
    return {k: v for k, v in nested_defaults(model_type).items() if k in _SILENT}
