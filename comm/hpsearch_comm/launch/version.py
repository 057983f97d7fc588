"""Which hpsearch_comm this is: ranks of unlike ones may not understand each other."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]


def source_digest() -> str:
    """Return a digest of the package's source, which is the same on two hosts exactly where the source is."""
    digest = hashlib.sha256()
    for file in sorted(_PACKAGE.rglob("*.py")):
        digest.update(f"{file.relative_to(_PACKAGE).as_posix()}\0".encode())
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:16]


def version() -> str:
    """Return the version for people to read; the place where the package lies is part of it."""
    try:
        number = importlib.metadata.version("hpsearch")
    except importlib.metadata.PackageNotFoundError:
        number = "not installed"
    return f"{number}, in {_PACKAGE}"


def search_path() -> str:
    """Return a PYTHONPATH with which a process started from here imports this very package, as this process does."""
    root, path = str(_PACKAGE.parent), os.environ.get("PYTHONPATH")
    return f"{root}{os.pathsep}{path}" if path else root
