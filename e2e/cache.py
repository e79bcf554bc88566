"""The cache folder outside the checkout: where it is, how its entries are keyed and locked.

Entries are keyed by content, so that a second run and another checkout on the same machine reuse
them and a changed input never meets a stale result.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_root() -> Path:
    """`$BALLONET_CACHE`, else `$XDG_CACHE_HOME/ballonet`, else `~/.cache/ballonet`; made here."""
    explicit = os.environ.get("BALLONET_CACHE")
    if explicit:
        root = Path(explicit)
    else:
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ballonet"
    root.mkdir(parents=True, exist_ok=True)
    return root.resolve()


def content_key(parts: Iterable[str | bytes]) -> str:
    """16 hex digits that stand for exactly these parts in this order."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        # The length goes in first, so that ("ab", "c") and ("a", "bc") differ.
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()[:16]


def tree_parts(root: Path) -> Iterator[str | bytes]:
    """Relative path and content of every file below `root`, byte code left out, in stable order."""
    for path in sorted(root.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            yield str(path.relative_to(root))
            yield path.read_bytes()


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold the machine-wide lock `name`, a file in the cache folder, within the block."""
    with (cache_root() / f"{name}.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
