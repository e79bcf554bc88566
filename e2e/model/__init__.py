"""Tiny models without weights, for `vllm serve --load-format dummy`.

`config.json` is a Llama whose geometry gives round figures: 2 x 4 layers x 2 KV heads x 64 x 2
bytes = 2,048 bytes of KV a token, so 8 MiB are exactly 128 blocks of 32 tokens. `sliding.json` is a
Gemma 3 of five layers with a sliding window and one without: six groups of caches.
"""

from __future__ import annotations

import itertools
import json
import string
from pathlib import Path
from typing import Any

CONFIG_PATH = Path(__file__).with_name("config.json")
SLIDING_CONFIG_PATH = Path(__file__).with_name("sliding.json")
SPECIAL_TOKENS = ("<s>", "</s>", "<pad>")


def make_model(directory: Path, config_path: Path = CONFIG_PATH) -> Path:
    """Write the model's files into `directory` (made if missing) and return it."""
    directory.mkdir(parents=True, exist_ok=True)
    config = config_path.read_text()
    files = {
        "config.json": config,
        "tokenizer.json": json.dumps(tokenizer(json.loads(config)["vocab_size"]), indent=1),
        "tokenizer_config.json": json.dumps(tokenizer_config(), indent=1),
    }
    for name, text in files.items():
        path = directory / name
        path.write_text(text)
        path.chmod(0o644)  # engines run as another user
    directory.chmod(0o755)
    return directory


def tokenizer(vocab_size: int) -> dict[str, Any]:
    """A byte-level BPE tokenizer of exactly `vocab_size` entries, the same on every machine.

    Ids: the special tokens, the 256 bytes, then pairs of letters and digits as merges. It is not
    trained: tests talk to the engine in token ids, text only has to survive a round trip.
    """
    alphabet = list(_byte_alphabet().values())
    letters = string.ascii_letters + string.digits
    free = vocab_size - len(SPECIAL_TOKENS) - len(alphabet)
    pairs = list(itertools.islice(itertools.product(letters, repeat=2), free))
    if len(pairs) < free:
        raise ValueError(f"vocab_size {vocab_size}: at most {vocab_size - free + len(pairs)}")
    words = [*SPECIAL_TOKENS, *alphabet, *("".join(pair) for pair in pairs)]
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": number,
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for number, token in enumerate(SPECIAL_TOKENS)
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {word: number for number, word in enumerate(words)},
            "merges": [list(pair) for pair in pairs],
        },
    }


def tokenizer_config() -> dict[str, Any]:
    bos, eos, pad = SPECIAL_TOKENS
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": bos,
        "eos_token": eos,
        "pad_token": pad,
        "chat_template": "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}",
    }


def _byte_alphabet() -> dict[int, str]:
    """The printable character that byte-level BPE (GPT-2) writes for each of the 256 bytes."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {
        byte: chr(0x100 + number) for number, byte in enumerate(hidden)
    }
