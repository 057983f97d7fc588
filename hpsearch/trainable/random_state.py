"""Seeding, capture and restoration of the global random generators of Python, NumPy and torch.

Libraries that are not imported are skipped, so that a script without torch does not import it. A worker imports torch
before its first segment, so that all segments have the same generators. CUDA's generators are captured only after CUDA
is initialized. Until then, torch stores the seed.
"""

from __future__ import annotations

import base64
import io
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

RandomState = Mapping[str, Any]
"""Plain containers and tensors that `torch.load(weights_only=True)` can read."""


def seed_all(seed: int) -> None:
    """Seed the global generators of all imported libraries. The seed is in NumPy's range: 0 <= seed < 2**32."""
    random.seed(seed)
    for library, seed_library in _SEEDERS.items():
        if (module := sys.modules.get(library)) is not None:
            seed_library(module, seed)


def seed_when_imported(seed: int) -> None:
    """Install an import hook that seeds NumPy and torch when they are imported."""
    sys.meta_path.insert(0, _SeedingFinder(seed))


def _seed_numpy(numpy: Any, seed: int) -> None:
    numpy.random.seed(seed)


def _seed_torch(torch: Any, seed: int) -> None:
    # torch.manual_seed also formats the call stack for each type of device, which takes 0.1 ms per call.
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)  # torch stores it until CUDA is initialized


_SEEDERS: Mapping[str, Callable[[Any, int], None]] = {"numpy": _seed_numpy, "torch": _seed_torch}


class _SeedingFinder(MetaPathFinder):
    """Import hook for NumPy and torch: finds them with the next finders, and wraps their loaders to seed them."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the spec of a library that has generators; None for all other modules."""
        if name not in _SEEDERS:
            return None
        next_finders = sys.meta_path[sys.meta_path.index(self) + 1 :]
        specs = (finder.find_spec(name, path, target) for finder in next_finders)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            loader, load = spec.loader, spec.loader.exec_module

            def load_and_seed(module: ModuleType) -> None:
                del loader.exec_module  # restores the loader's own method
                load(module)
                _SEEDERS[name](module, self._seed)

            loader.exec_module = load_and_seed  # type: ignore[method-assign]
        return spec


def capture() -> RandomState:
    """Return the state of the global generators, without drawing from them."""
    import torch

    version, numbers, gauss_next = random.getstate()
    state: dict[str, Any] = {
        "python": {"version": version, "words": _tensor(array("I", numbers)), "gauss_next": gauss_next},
        "torch": torch.get_rng_state(),
    }
    if (numpy := sys.modules.get("numpy")) is not None:
        state["numpy"] = _with_tensors(numpy.random.get_state(legacy=False))
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def restore(state: RandomState) -> None:
    """Restore the global generators to a state that `capture` returned.

    CUDA's generators are restored for as many devices as this process has.
    """
    import torch

    python = state["python"]
    numbers = array("I", python["words"].numpy().tobytes())
    random.setstate((python["version"], tuple(numbers), python["gauss_next"]))
    torch.set_rng_state(state["torch"])
    if "numpy" in state:
        import numpy

        numpy.random.set_state(_with_arrays(state["numpy"]))
    if "cuda" in state and torch.cuda.is_available():
        # Otherwise a stored seed would overwrite this state when CUDA is initialized.
        torch.cuda.init()  # type: ignore[no-untyped-call]
        torch.cuda.set_rng_state_all(state["cuda"][: torch.cuda.device_count()])


def to_text(state: RandomState) -> str:
    """Return a captured state as text."""
    import torch

    buffer = io.BytesIO()
    torch.save(state, buffer)
    return base64.b64encode(buffer.getvalue()).decode("ascii")


def from_text(text: str) -> RandomState:
    """Return the state that `to_text` converted to text."""
    import torch

    state: RandomState = torch.load(io.BytesIO(base64.b64decode(text)), weights_only=True, map_location="cpu")
    return state


def _tensor(buffer: array[int]) -> Tensor:
    import torch

    return torch.frombuffer(buffer, dtype=torch.uint8).clone()


def _with_tensors(state: Any) -> Any:
    """Return NumPy's state with arrays converted to tensors of bytes, since `weights_only` does not allow arrays."""
    import numpy
    import torch

    if isinstance(state, dict):
        return {name: _with_tensors(value) for name, value in state.items()}
    if isinstance(state, numpy.ndarray):
        return {"bytes": torch.from_numpy(state.view(numpy.uint8).copy()), "dtype": str(state.dtype)}
    return state


def _with_arrays(state: Any) -> Any:
    """Return NumPy's state with the tensors of `_with_tensors` converted back to arrays."""
    if not isinstance(state, dict):
        return state
    if state.keys() == {"bytes", "dtype"}:
        return state["bytes"].numpy().view(state["dtype"])
    return {name: _with_arrays(value) for name, value in state.items()}
