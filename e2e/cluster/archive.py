"""Image archives in the format of `docker save`, which containerd imports."""

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.errors import ClusterError


@dataclass(frozen=True)
class ImageArchive:
    """What an archive holds: the tags, and the digest of the configuration that names the image."""

    tags: tuple[str, ...]
    digest: str


def read_archive(path: Path) -> ImageArchive:
    """Read the manifest of a docker archive. Raises ClusterError when it is not one."""
    try:
        with tarfile.open(path, "r:") as archive:
            member = archive.extractfile("manifest.json")
            if member is None:
                raise KeyError("manifest.json")
            images = json.load(member)
    except (OSError, KeyError, ValueError, tarfile.TarError) as error:
        raise ClusterError(
            f"{path} is not a docker archive ({error}): write it with `buildah push IMAGE "
            "docker-archive:FILE:TAG`"
        ) from error
    if len(images) != 1 or not images[0].get("RepoTags"):
        raise ClusterError(f"{path} must hold one image with a tag, it holds {len(images)}")
    return ImageArchive(tuple(images[0]["RepoTags"]), str(images[0]["Config"]))


def write_archive(target: Path, tag: str, program: Path, arguments: Sequence[str] = ()) -> None:
    """Write an image that holds nothing but one static program, as its entry point."""
    layer = _tar({program.name: (program.read_bytes(), 0o755)})
    layer_digest = hashlib.sha256(layer).hexdigest()
    configuration = json.dumps(
        {
            "architecture": _architecture(),
            "os": "linux",
            "config": {"Entrypoint": [f"/{program.name}", *arguments], "User": "65534:65534"},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer_digest}"]},
        }
    ).encode()
    name = hashlib.sha256(configuration).hexdigest() + ".json"
    layer_name = f"{layer_digest}/layer.tar"
    manifest = json.dumps([{"Config": name, "RepoTags": [tag], "Layers": [layer_name]}]).encode()
    files = {"manifest.json": manifest, name: configuration, layer_name: layer}
    target.write_bytes(_tar({name: (content, 0o644) for name, content in files.items()}))


def _tar(files: dict[str, tuple[bytes, int]]) -> bytes:
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w") as archive:
        for name, (content, mode) in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), mode
            archive.addfile(member, io.BytesIO(content))
    return output.getvalue()


def _architecture() -> str:
    machine = platform.machine()
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)
