from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ballonet.cli.hub import NoCheckpoint, checkpoint_weights
from ballonet.kv.checkpoint import InvalidCheckpoint, header_length, header_tensors


def safetensors(sizes: dict[str, int]) -> bytes:
    """Return a file of 8-bit tensors of these sizes, with a header as the format wants it."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    start = 0
    for name, size in sizes.items():
        header[name] = {"dtype": "U8", "shape": [size], "data_offsets": [start, start + size]}
        start += size
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(start)


TENSORS = {
    "model.embed_tokens.weight": 100,
    "model.layers.0.mlp.up_proj.weight": 30,
    "model.layers.1.mlp.up_proj.weight": 30,
    "model.layers.2.eh_proj.weight": 7,
    "mtp.layers.0.weight": 5,
}


def test_a_folder_is_summed_without_what_only_drafts(tmp_path: Path) -> None:
    names = list(TENSORS)
    for number, part in enumerate((names[:2], names[2:])):
        file = tmp_path / f"model-0000{number + 1}-of-00002.safetensors"
        file.write_bytes(safetensors({name: TENSORS[name] for name in part}))
    assert checkpoint_weights(str(tmp_path), layers=2) == 160
    assert checkpoint_weights(str(tmp_path), layers=3) == 167


def test_a_folder_without_weights_is_named(tmp_path: Path) -> None:
    with pytest.raises(NoCheckpoint, match="no safetensors files"):
        checkpoint_weights(str(tmp_path), layers=2)


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\x00" * 64)
    with pytest.raises(NoCheckpoint, match=r"model\.safetensors: no safetensors file"):
        checkpoint_weights(str(tmp_path), layers=2)


@pytest.mark.parametrize(
    "header",
    [b"[]", b"[" * 100_000, b"not json", b'{"a": {}}', b'{"a": {"data_offsets": [4, 2]}}'],
)
def test_a_header_of_another_form_is_refused(header: bytes) -> None:
    with pytest.raises(InvalidCheckpoint):
        header_tensors(header)


@pytest.mark.parametrize("prefix", [b"", b"\x01", bytes(8), b"\xff" * 8])
def test_a_length_that_cannot_be_is_refused(prefix: bytes) -> None:
    with pytest.raises(InvalidCheckpoint):
        header_length(prefix)


def test_the_hub_is_asked_for_headers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class HfApi:
        def get_safetensors_metadata(self, repository: str) -> Any:
            asked.append(repository)
            tensors = {
                name: SimpleNamespace(data_offsets=(10, 10 + size))
                for name, size in TENSORS.items()
            }
            return SimpleNamespace(
                files_metadata={"model.safetensors": SimpleNamespace(tensors=tensors)}
            )

    hub, errors = ModuleType("huggingface_hub"), ModuleType("huggingface_hub.errors")
    hub.HfApi = HfApi  # type: ignore[attr-defined]
    errors.HfHubHTTPError = ConnectionError  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    monkeypatch.setitem(sys.modules, "huggingface_hub.errors", errors)
    assert checkpoint_weights("a/model", layers=2) == 160
    assert asked == ["a/model"]


def test_without_the_extra_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for source in ("a/model", "/no/such/folder", ""):
        with pytest.raises(NoCheckpoint, match=rf"'{source}' is no folder.*ballonet\[hub\]"):
            checkpoint_weights(source, layers=2)
