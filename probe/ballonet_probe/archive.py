"""This package as one zip that Python imports from PYTHONPATH; not used inside an engine."""

from __future__ import annotations

import io
import zipfile
from importlib import resources

NAME = "ballonet_probe"
VERSION = "0.1.0"

_METADATA = f"Metadata-Version: 2.1\nName: {NAME.replace('_', '-')}\nVersion: {VERSION}\n"
_ENTRY_POINTS = f"[vllm.general_plugins]\n{NAME} = {NAME}.plugin:register\n"
# The earliest date that a zip can carry: the same sources give the same bytes everywhere.
_DATE = (1980, 1, 1, 0, 0, 0)


def archive() -> bytes:
    """Return the zip: the modules, and the metadata by which vLLM finds the plugin."""
    files = {
        f"{NAME}/{module.name}": module.read_bytes()
        for module in resources.files(NAME).iterdir()
        if module.name.endswith(".py")
    }
    info = f"{NAME}-{VERSION}.dist-info"
    files[f"{info}/METADATA"] = _METADATA.encode()
    files[f"{info}/entry_points.txt"] = _ENTRY_POINTS.encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as into:
        for name in sorted(files):
            into.writestr(zipfile.ZipInfo(name, _DATE), files[name], zipfile.ZIP_DEFLATED)
    return buffer.getvalue()
