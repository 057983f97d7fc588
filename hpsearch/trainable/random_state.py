"""Seed, capture and restore the global random generators of Python, NumPy and torch.

Only libraries that are loaded are touched: a script without torch doesn't pay for importing it, and a worker
imports torch before its first segment so that every segment finds the same generators. CUDA's generators
count once CUDA is initialised; before that, a seed waits for it.
"""

from __future__ import annotations

import base64
import random
import sys
from array import array
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["RandomState", "capture", "from_json", "restore", "seed_all", "seed_when_imported", "to_json"]

RandomState = Mapping[str, Any]
"""Plain containers and tensors, as `torch.load(weights_only=True)` reads them."""


def seed_all(seed: int) -> None:
    """Seed every global generator that is loaded; 0 <= seed < 2**32, NumPy's range."""
    random.seed(seed)
    for library, seed_library in _SEEDERS.items():
        if (module := sys.modules.get(library)) is not None:
            seed_library(module, seed)


def seed_when_imported(seed: int) -> None:
    """Let NumPy and torch be seeded at the end of their import, where they aren't imported yet."""
    sys.meta_path.insert(0, _SeedingFinder(seed))


def _seed_numpy(numpy: Any, seed: int) -> None:
    numpy.random.seed(seed)


def _seed_torch(torch: Any, seed: int) -> None:
    # torch.manual_seed also formats the call stack for each kind of device, at 0.1 ms a call.
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)  # before CUDA is initialised it is kept until then


_SEEDERS: Mapping[str, Callable[[Any, int], None]] = {"numpy": _seed_numpy, "torch": _seed_torch}


class _SeedingFinder(MetaPathFinder):
    """Finds the libraries with generators as the finders behind it do, and lets their loaders seed them."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Give the spec of a library with a generator; None for all others."""
        if name not in _SEEDERS:
            return None
        behind = sys.meta_path[sys.meta_path.index(self) + 1 :]
        found = (finder.find_spec(name, path, target) for finder in behind)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is not None and spec.loader is not None:
            loader, load = spec.loader, spec.loader.exec_module

            def load_and_seed(module: ModuleType) -> None:
                del loader.exec_module  # the loader's own again
                load(module)
                _SEEDERS[name](module, self._seed)

            loader.exec_module = load_and_seed  # type: ignore[method-assign]
        return spec


def capture() -> RandomState:
    """Take down where the global generators stand; draws nothing from them."""
    import torch

    version, words, gauss_next = random.getstate()
    state: dict[str, Any] = {
        "python": {"version": version, "words": _tensor(array("I", words)), "gauss_next": gauss_next},
        "torch": torch.get_rng_state(),
    }
    if (numpy := sys.modules.get("numpy")) is not None:
        state["numpy"] = _with_tensors(numpy.random.get_state(legacy=False))
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def restore(state: RandomState) -> None:
    """Put the global generators back to where `capture` found them.

    CUDA's are restored as far as this process has as many devices as the one that captured them.
    """
    import torch

    python = state["python"]
    words = array("I", python["words"].numpy().tobytes())
    random.setstate((python["version"], tuple(words), python["gauss_next"]))
    torch.set_rng_state(state["torch"])
    if "numpy" in state:
        import numpy

        numpy.random.set_state(_with_arrays(state["numpy"]))
    if "cuda" in state and torch.cuda.is_available():
        # Else a seed that still waits for CUDA would come after this state.
        torch.cuda.init()  # type: ignore[no-untyped-call]
        torch.cuda.set_rng_state_all(state["cuda"][: torch.cuda.device_count()])


def to_json(state: Any) -> Any:
    """Give a captured state as plain containers that JSON carries."""
    if isinstance(state, Mapping):
        return {name: to_json(value) for name, value in state.items()}
    if isinstance(state, list):
        return [to_json(value) for value in state]
    if isinstance(state, (bool, int, float, str)) or state is None:
        return state
    return {"base64": base64.b64encode(state.numpy().tobytes()).decode("ascii")}


def from_json(state: Any) -> Any:
    """Undo `to_json`."""
    if isinstance(state, list):
        return [from_json(value) for value in state]
    if not isinstance(state, dict):
        return state
    if state.keys() == {"base64"}:
        return _tensor(array("B", base64.b64decode(state["base64"])))
    return {name: from_json(value) for name, value in state.items()}


def _tensor(words: array[int]) -> Tensor:
    import torch

    return torch.frombuffer(words, dtype=torch.uint8).clone()


def _with_tensors(state: Any) -> Any:
    """Give NumPy's state with a tensor of bytes for each array: `weights_only` reads no NumPy."""
    import numpy
    import torch

    if isinstance(state, dict):
        return {name: _with_tensors(value) for name, value in state.items()}
    if isinstance(state, numpy.ndarray):
        return {"bytes": torch.from_numpy(state.view(numpy.uint8).copy()), "dtype": str(state.dtype)}
    return state


def _with_arrays(state: Any) -> Any:
    """Undo `_with_tensors`."""
    if not isinstance(state, dict):
        return state
    if state.keys() == {"bytes", "dtype"}:
        return state["bytes"].numpy().view(state["dtype"])
    return {name: _with_arrays(value) for name, value in state.items()}
