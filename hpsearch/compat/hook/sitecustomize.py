"""Python runs this file when a script of a sweep starts, as its folder is the first in PYTHONPATH.

It imports nothing but the standard library until the script imports `wandb`, and works in a Python without hpsearch.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from types import ModuleType

_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 (pathlib takes longer to import)


class _WandbFinder:
    """Import hook for `wandb`: mirrors its runs once it is imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of `wandb`; None for all other modules."""
        if name != "wandb":
            return None
        later = sys.meta_path[sys.meta_path.index(self) + 1 :]
        specs = (finder.find_spec(name, path, target) for finder in later)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_mirror(module: ModuleType) -> None:
                load(module)
                try:
                    from hpsearch.compat.wandb_mirror import mirror
                except ImportError:
                    return
                mirror(module)

            spec.loader.exec_module = load_and_mirror  # type: ignore[method-assign]
        return spec


def _run_hidden() -> None:
    """Run the `sitecustomize` that Python would have run without this one."""
    elsewhere = [folder for folder in sys.path if os.path.abspath(folder) != _HERE]  # noqa: PTH100
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if "HPSEARCH_TRIAL" in os.environ:
    sys.meta_path.insert(0, _WandbFinder())
_run_hidden()
