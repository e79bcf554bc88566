"""Container images without a container engine's daemon and without pulling any.

The base is a Debian root file system from mmdebstrap; buildah builds on it. Each image becomes a
docker-archive in `<cache>/images/`, named by the hash of everything that goes into it, so an
unchanged image is not built again. buildah's own storage lies in the cache folder too.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from e2e.cache import cache_root, content_key, locked, tree_parts
from e2e.steps import BuildError, run_step

__all__ = ["IMAGES", "BuildError", "Image", "archive_path", "build"]

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
# Archives of one image that are kept: one for each checkout that is worked on, and some more.
KEPT_ARCHIVES = 4

BASE_SUITE = "bookworm"
BASE_PACKAGES = "python3,python3-venv,ca-certificates"
BASE_OPTIONS = (
    "--variant=minbase",
    f"--include={BASE_PACKAGES}",
    "--dpkgopt=path-exclude=/usr/share/man/*",
    "--dpkgopt=path-exclude=/usr/share/doc/*",
    "--dpkgopt=path-exclude=/usr/share/locale/*",
)


@dataclass(frozen=True)
class Image:
    """An image: its name, where its Containerfile lies and what is copied into it."""

    name: str
    containerfile: Path
    context: Path
    inputs: tuple[Path, ...]  # files or folders; the Containerfile is always one

    @property
    def reference(self) -> str:
        return f"localhost/ballonet/{self.name}:dev"


IMAGES = {
    image.name: image
    for image in (
        Image(
            name="operator",
            containerfile=REPOSITORY / "Containerfile",
            context=REPOSITORY,
            inputs=(
                REPOSITORY / "requirements.txt",
                REPOSITORY / "requirements-build.txt",
                REPOSITORY / "pyproject.toml",
                REPOSITORY / "README.md",
                REPOSITORY / "LICENSE",
                REPOSITORY / "operator",
                REPOSITORY / "probe" / "ballonet_probe",
            ),
        ),
        Image(
            name="engine",
            containerfile=HERE / "engine/Containerfile",
            context=HERE / "engine",
            inputs=(),
        ),
        Image(
            name="stub-engine",
            containerfile=HERE / "stub_engine/Containerfile",
            context=HERE / "stub_engine",
            inputs=(HERE / "stub_engine/vllm.py",),
        ),
    )
}


def archive_path(name: str) -> Path:
    """Where the archive of image `name` in its present state is or would be.

    Raises:
        BuildError: no image of that name, or a file that it is made from is missing.
    """
    return _folder() / f"{name}-{_key(_image(name))}.tar"


def build(name: str) -> Path:
    """Build image `name` (`operator`, `engine` or `stub-engine`) unless it is there already.

    Returns:
        The docker-archive; the image in it is called `localhost/ballonet/<name>:dev`.

    Raises:
        BuildError: a tool or an input is missing, or a build step failed.
    """
    image = _image(name)
    # One at a time: builds share the base, buildah's storage and the machine's few cores.
    with locked("images"):
        archive = archive_path(name)
        if archive.exists():
            archive.touch()
            return archive
        base = _base_image()
        _buildah(
            f"image {name}",
            "bud",
            "--layers",
            "--timestamp=0",  # the same input gives the same image on every machine
            "--tag",
            image.reference,
            "--file",
            str(image.containerfile),
            "--build-arg",
            f"BASE_IMAGE={base}",
            *_network_options(),
            str(image.context),
        )
        partial = archive.with_suffix(".partial")
        partial.unlink(missing_ok=True)
        _buildah(
            f"archive {name}",
            "push",
            image.reference,
            f"docker-archive:{partial}:{image.reference}",
        )
        partial.rename(archive)
        _forget_old(name)
    return archive


def _base_image() -> str:
    """The reference of the local base image, made if missing."""
    reference = f"localhost/ballonet/base:{_base_key()}"
    if _exists(reference):
        return reference
    context = _folder() / f"base-{_base_key()}"
    rootfs = context / "rootfs.tar"
    if not rootfs.exists():
        _need("mmdebstrap")
        context.mkdir(parents=True, exist_ok=True)
        partial = context / "rootfs.partial.tar"
        run_step("images: Debian base", ["mmdebstrap", *BASE_OPTIONS, BASE_SUITE, str(partial)])
        partial.rename(rootfs)
    file = HERE / "base/Containerfile"
    _buildah(
        "image base",
        "bud",
        "--timestamp=0",
        "--tag",
        reference,
        "--file",
        str(file),
        str(context),
    )
    return reference


def _image(name: str) -> Image:
    if name not in IMAGES:
        raise BuildError(f"no image {name!r}; there are {', '.join(IMAGES)}")
    return IMAGES[name]


def _folder() -> Path:
    folder = cache_root() / "images"
    folder.mkdir(exist_ok=True)
    return folder


def _base_key() -> str:
    return content_key([BASE_SUITE, *BASE_OPTIONS, (HERE / "base/Containerfile").read_bytes()])


def _key(image: Image) -> str:
    return content_key([_base_key(), image.reference, *_input_parts(image)])


def _input_parts(image: Image) -> Iterator[str | bytes]:
    for path in (image.containerfile, *image.inputs):
        if not path.exists():
            raise BuildError(f"image {image.name}: {path} is missing")
        yield str(path.relative_to(REPOSITORY))
        if path.is_dir():
            yield from tree_parts(path)
        else:
            yield path.read_bytes()


def _network_options() -> Iterator[str]:
    """What a step that downloads needs of this machine; none of it stays in the image."""
    if CERTIFICATES.exists():
        yield f"--volume={CERTIFICATES}:{CERTIFICATES}:ro"
    for variable in ("PIP_INDEX_URL", "PIP_CERT"):
        if variable in os.environ:
            yield f"--build-arg={variable}={os.environ[variable]}"


def _exists(reference: str) -> bool:
    command = [*_buildah_command(), "inspect", "--type", "image", reference]
    return subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == 0


def _forget_old(name: str) -> None:
    # "engine-*" alone would not match "stub-engine-...", and 16 hex digits keep it exact.
    archives = _folder().glob(f"{name}-{'[0-9a-f]' * 16}.tar")
    newest_first = sorted(archives, key=lambda path: path.stat().st_mtime, reverse=True)
    for path in newest_first[KEPT_ARCHIVES:]:
        path.unlink()


def _buildah_command() -> list[str]:
    _need("buildah")
    storage = cache_root() / "buildah"
    return ["buildah", "--root", str(storage / "storage"), "--runroot", str(storage / "run")]


def _buildah(what: str, *arguments: str) -> None:
    # chroot isolation is the one that needs neither a runtime nor namespaces of its own.
    run_step(f"images: {what}", [*_buildah_command(), *arguments], {"BUILDAH_ISOLATION": "chroot"})


def _need(program: str) -> None:
    if shutil.which(program) is None:
        raise BuildError(f"{program} is missing: apt-get install {program}")
