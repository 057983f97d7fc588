"""Record the inputs of the first optimizer step of each iteration, so that two runs of a trial can be compared.

One torch hook records each optimizer's parameters, state and options before its first step. Another hook records the
last batch before this step.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

TRACE = "HPSEARCH_TRACE"
"""Environment variable with the path of a script's trace file."""


class Trace:
    """Appends one line of JSON per iteration to a file.

    Args:
        path: Path of the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._batch: list[Any] = []
        """The last input of a module."""
        self._data: str | None = None
        self._optimizers: dict[int, tuple[Any, dict[str, Any]]] = {}
        """Each optimizer and its record before its first step in this iteration, by the optimizer's id."""
        self._hooks: list[Any] = []
        self._begin()

    def reported(self, iteration: int) -> None:
        """Write the record of an iteration, and start the next one."""
        line = {
            "iteration": iteration,
            "complete": bool(self._hooks),  # False if the script imported torch during the iteration
            "data": self._data,
            "optimizers": [before | {"after": _options(optimizer)} for optimizer, before in self._optimizers.values()],
        }
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        self._begin()

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _begin(self) -> None:
        self.close()
        self._batch, self._data, self._optimizers = [], None, {}
        if "torch" not in sys.modules:  # the script does not use torch, or imports it later
            return
        from torch.nn.modules.module import register_module_forward_pre_hook
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        self._data_hook = register_module_forward_pre_hook(self._record_batch)
        self._hooks = [self._data_hook, register_optimizer_step_pre_hook(self._record_step)]

    def _record_batch(self, module: Any, inputs: Any) -> None:
        import torch

        if torch.compiler.is_compiling():
            return
        tensors = [value for value in _leaves(inputs) if isinstance(value, torch.Tensor)]
        if tensors and not any(tensor.requires_grad for tensor in tensors):  # not a module's output
            self._batch = tensors

    def _record_step(self, optimizer: Any, arguments: Any, options: Any) -> None:
        if id(optimizer) in self._optimizers:
            return
        if not self._optimizers:
            self._data_hook.remove()
            self._data, self._batch = digest(self._batch) if self._batch else None, []
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        state: dict[str, list[Any]] = {}
        for weight in weights:
            for name, value in optimizer.state.get(weight, {}).items():
                state.setdefault(str(name), []).append(value)
        before = {
            "type": type(optimizer).__name__,
            "weights": digest(weights),
            "state": {name: digest(values) for name, values in state.items()},
            "options": _options(optimizer),
        }
        self._optimizers[id(optimizer)] = (optimizer, before)


def read_trace(path: Path) -> dict[int, dict[str, Any]]:
    """Return the records by iteration; empty if the file does not exist."""
    with contextlib.suppress(FileNotFoundError):
        lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        return {line["iteration"]: line for line in lines}
    return {}


def digest(values: Iterable[Any]) -> str | None:
    """Return a digest of tensors and plain values; None if the bytes of a tensor cannot be read."""
    torch = sys.modules.get("torch")
    hashed = blake2b(digest_size=8)
    try:
        for value in values:
            if torch is not None and isinstance(value, torch.Tensor):
                hashed.update(f"{value.dtype}{tuple(value.shape)}".encode())
                plain = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
                hashed.update(memoryview(plain.numpy()))
            else:
                hashed.update(value if isinstance(value, bytes) else repr(value).encode("utf-8", "replace"))
    except Exception:  # sparse, fake and batched tensors raise different errors
        return None
    return hashed.hexdigest()


def _options(optimizer: Any) -> list[dict[str, Any]]:
    """Return the options of each parameter group that are numbers or strings, such as `lr`."""
    return [
        {name: number for name, value in group.items() if name != "params" and (number := _plain(value)) is not None}
        for group in optimizer.param_groups
    ]


def _plain(value: Any) -> Any:
    import torch

    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return value.item()
    if isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)) and all(isinstance(item, (bool, int, float, str)) for item in value):
        return list(value)
    return None


def _leaves(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _leaves(item)
    else:
        yield value
