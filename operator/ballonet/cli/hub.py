"""Weights of a checkpoint in a folder or on the Hugging Face Hub, read from headers alone.

The Hub needs the extra ``ballonet[hub]``; of a repository only the first bytes of each file are
fetched.
"""

from __future__ import annotations

from pathlib import Path

from ballonet.kv.checkpoint import (
    LENGTH_BYTES,
    InvalidCheckpoint,
    header_length,
    header_tensors,
    loaded_bytes,
)


class NoCheckpoint(Exception):  # noqa: N818 - the name says what is wrong
    """Weights cannot be read from there; says why and what to do."""


def checkpoint_weights(source: str, layers: int) -> int:
    """Return the bytes of the weights that an engine loads.

    Args:
        source: a folder with safetensors files, or the name of a repository on the Hub.
        layers: decoder layers of the model; what lies beyond them drafts tokens.

    Raises:
        NoCheckpoint: nothing can be read from there.
    """
    folder = Path(source)
    # An empty path is the working folder, which nobody means by it.
    is_folder = bool(source) and folder.is_dir()
    tensors = _folder_tensors(folder) if is_folder else _hub_tensors(source)
    return loaded_bytes(tensors, layers)


def _folder_tensors(folder: Path) -> dict[str, int]:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise NoCheckpoint(f"{folder} has no safetensors files; give --weights")
    tensors: dict[str, int] = {}
    for file in files:
        try:
            with file.open("rb") as data:
                length = header_length(data.read(LENGTH_BYTES))
                tensors |= header_tensors(data.read(length))
        except (OSError, InvalidCheckpoint) as problem:
            raise NoCheckpoint(f"{file}: {problem}") from None
    return tensors


def _hub_tensors(repository: str) -> dict[str, int]:
    try:
        from huggingface_hub import HfApi  # noqa: PLC0415 - an extra that most do without
        from huggingface_hub.errors import HfHubHTTPError  # noqa: PLC0415
    except ImportError:
        raise NoCheckpoint(
            f"{repository!r} is no folder, and reading from the Hub needs huggingface_hub: "
            "pip install 'ballonet[hub]'"
        ) from None
    try:
        files = HfApi().get_safetensors_metadata(repository).files_metadata
    except (HfHubHTTPError, OSError, ValueError) as problem:
        raise NoCheckpoint(f"{repository}: {problem}") from None
    return {
        name: tensor.data_offsets[1] - tensor.data_offsets[0]
        for file in files.values()
        for name, tensor in file.tensors.items()
    }
