"""The version of hpsearch_comm: ranks with different versions may not be compatible."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

PACKAGE = Path(__file__).parents[1]


def source_digest() -> str:
    """Return a digest of the package's source, equal on two hosts if and only if the source is."""
    digest = hashlib.sha256()
    for file in sorted(PACKAGE.rglob("*.py")):
        digest.update(f"{file.relative_to(PACKAGE).as_posix()}\0".encode())
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:16]


def search_path() -> str:
    """Return a PYTHONPATH with which another process imports the same hpsearch_comm as this process."""
    root, path = str(PACKAGE.parent), os.environ.get("PYTHONPATH")
    return f"{root}{os.pathsep}{path}" if path else root
