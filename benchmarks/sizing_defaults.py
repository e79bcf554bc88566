"""What ``vllm serve`` takes where nobody says, by version and device: its step and its sequences.

The operator writes both; these rules tell what the engine of a logged boot was given.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ballonet.kv.settings import Version
from ballonet.kv.units import GIB


@dataclass(frozen=True, slots=True)
class BatchDefaults:
    """Tokens of a step and sequences."""

    max_batched_tokens: int
    max_num_seqs: int


_SMALL: Final = BatchDefaults(2048, 256)
_LARGE: Final = BatchDefaults(8192, 1024)
_LARGEST: Final = BatchDefaults(16384, 1024)
_LARGE_BYTES: Final = 70 * GIB
_LARGEST_BYTES: Final = 160 * GIB
_LARGEST_SINCE: Final = (0, 28)


def batch_defaults(version: Version, *, device_bytes: int, device_name: str) -> BatchDefaults:
    """Return the defaults of a device (engine/arg_utils.py get_batch_defaults).

    The step grows with the device, but not on an A100; nor on a GB10, whose logged boots of all
    versions have the small one.
    """
    if version[:2] >= _LARGEST_SINCE and device_bytes >= _LARGEST_BYTES:
        return _LARGEST
    name = device_name.lower()
    if device_bytes >= _LARGE_BYTES and "a100" not in name and "gb10" not in name:
        return _LARGE
    return _SMALL
