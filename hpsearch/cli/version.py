"""Which version this is."""

from __future__ import annotations

import argparse
import platform
from collections.abc import Sequence
from typing import Any

import hpsearch

__all__ = ["ShowVersion"]

_BESIDE = {"torch": "torch", "ray": "Ray"}


class ShowVersion(argparse.Action):
    """Prints the version, and those of what trials run on, as they are installed; none of it is imported."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: object,
        values: str | Sequence[Any] | None,
        option: object = None,
    ) -> None:
        """Print it and end."""
        import importlib.metadata

        told = [f"Python {platform.python_version()}"]
        for package, name in _BESIDE.items():
            try:
                told.append(f"{name} {importlib.metadata.version(package)}")
            except importlib.metadata.PackageNotFoundError:
                told.append(f"no {name}")
        print(f"hpsearch {hpsearch.__version__} ({', '.join(told)})")
        parser.exit()
