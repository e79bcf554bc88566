"""Bytes of a checkpoint's weights, from the headers of its safetensors files.

A file begins with eight bytes, the length of a JSON header (little end first), which names every
tensor with its format, shape and place. So sizes are known without a single weight.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final

LENGTH_BYTES: Final = 8
# The format's own bound of a header.
MAX_HEADER_BYTES: Final = 100_000_000
_LAYER: Final = re.compile(r"(?:^|\.)layers\.(\d+)\.")
# Modules that draft tokens; loaded only where the engine is told to draft.
_DRAFT: Final = re.compile(r"(^|\.)(mtp|nextn|eagle)[._]")


class InvalidCheckpoint(ValueError):  # noqa: N818 - the name says what is wrong
    """The bytes are no safetensors header; says what is wrong."""


def header_length(prefix: bytes) -> int:
    """Return the bytes of the JSON header that follow the first eight.

    Raises:
        InvalidCheckpoint: this is no safetensors file.
    """
    length = int.from_bytes(prefix[:LENGTH_BYTES], "little")
    if len(prefix) < LENGTH_BYTES or not 2 <= length <= MAX_HEADER_BYTES:
        raise InvalidCheckpoint("no safetensors file: its first eight bytes are no header length")
    return length


def header_tensors(header: bytes) -> dict[str, int]:
    """Return the bytes of each tensor of a file.

    Raises:
        InvalidCheckpoint: the header is not of that form.
    """
    try:
        fields = json.loads(header)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise InvalidCheckpoint("header of a safetensors file: no JSON object")
    tensors = {}
    for name, tensor in fields.items():
        if name == "__metadata__":
            continue
        match tensor:
            case {"data_offsets": [int(start), int(end)]} if 0 <= start <= end:
                tensors[name] = end - start
            case _:
                raise InvalidCheckpoint(f"header of a safetensors file: {name} has no place")
    return tensors


def loaded_bytes(tensors: Mapping[str, int], layers: int) -> int:
    """Return the bytes that an engine loads of a checkpoint's tensors.

    Left out are layers beyond those of the model, and draft modules: both are loaded only where the
    engine drafts tokens. What an engine repacks at loading is not in the file.
    """

    def loaded(name: str) -> bool:
        layer = _LAYER.search(name)
        return not _DRAFT.search(name) and (layer is None or int(layer[1]) < layers)

    return sum(size for name, size in tensors.items() if loaded(name))
