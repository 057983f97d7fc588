"""A device for tests that behaves as a GPU does where tensors on the CPU and on it are mixed, in ordinary memory.

It is torch's `PrivateUse1`, called `gpu`, set up in Python. A tensor on it holds an ordinary tensor with its numbers.
An operation on some of these is done on those, and its result lies on the device again. One on a tensor there and
another on the CPU raises torch's error, but for what CUDA takes as well: numbers (0-dimensional tensors on the CPU),
copies from one to the other, and rows' numbers on the CPU as an index.

Device types can't be unregistered, and torch's autograd counts its devices once: all of it is in a process of its own.
"""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from hpsearch_comm import Group
from tests.comm.thread_ranks import run_ranks
from tests.forked import begin, end

DEVICE = "gpu"

_aten = torch.ops.aten
_MIXED = (
    _aten.copy_.default,
    _aten.index.Tensor,
    _aten.index_put.default,
    _aten.index_put_.default,
    _aten._index_put_impl_.default,
)
"""Operations that take tensors of both."""
_READS = (_aten._local_scalar_dense.default, _aten.nonzero.default, _aten.equal.default, _aten.masked_select.default)
"""Operations for whose results the host waits, beside copies to it."""


class HostReads(list[str]):
    """Collects the names of operations on the device for whose results the host waited."""

    def __enter__(self) -> HostReads:
        _listening.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _listening.remove(self)


_listening: list[HostReads] = []


class _OnDevice(torch.Tensor):
    """A tensor on the device.

    Args:
        numbers: An ordinary tensor, of which this is another face.
    """

    numbers: torch.Tensor

    @staticmethod
    def __new__(cls, numbers: torch.Tensor) -> _OnDevice:
        made: _OnDevice = torch.Tensor._make_wrapper_subclass(
            cls,
            numbers.size(),
            strides=None if numbers.is_sparse else numbers.stride(),
            storage_offset=0 if numbers.is_sparse else numbers.storage_offset(),
            dtype=numbers.dtype,
            layout=numbers.layout,
            device=torch.device(DEVICE, 0),
        )
        made.numbers = numbers
        return made

    def __repr__(self, *, tensor_contents: Any = None) -> Any:  # type: ignore[override]
        return f"on {DEVICE}: {self.numbers}"

    # With these two, `nn.Module.to` lets a parameter stay the same object, as for a GPU.
    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["numbers"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, torch.Tensor], *_: Any) -> _OnDevice:
        return _OnDevice(inner["numbers"])

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _done(func, args, kwargs or {})


class _Device(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Lets operations without a tensor on the device make some there."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _done(func, args, kwargs or {})


def _done(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Do an operation on the numbers of its tensors, where they may be mixed."""
    tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
    there = [one for one in tensors if isinstance(one, _OnDevice)]
    if there and func not in _MIXED:
        for one in tensors:
            if not isinstance(one, _OnDevice) and one.dim() > 0:
                raise RuntimeError(
                    f"Expected all tensors to be on the same device, but found at least two devices, {DEVICE}:0 and "
                    f"cpu! (when checking arguments for {func})"
                )
    device = kwargs.get("device")
    onto = torch.device(device).type == DEVICE if device is not None else bool(there)
    if func is _aten.copy_.default:
        onto = isinstance(args[0], _OnDevice)
    elif func in _MIXED and there and not isinstance(args[0], _OnDevice):
        raise RuntimeError(f"indices should be either on cpu or on the same device as the indexed tensor ({func})")
    if there and (func in _READS or not onto):
        for listening in _listening:
            listening.append(str(func))
    numbers_of = {id(one.numbers): one for one in there}
    done = func(*tree_map(_numbers, args), **tree_map(_numbers, kwargs))

    def placed(made: Any) -> Any:
        if not isinstance(made, torch.Tensor):
            return made
        return numbers_of.get(id(made)) if id(made) in numbers_of else _OnDevice(made) if onto else made

    return tree_map(placed, done)


def _numbers(one: Any) -> Any:
    if isinstance(one, _OnDevice):
        assert one.shape == one.numbers.shape, "a tensor's `data` was replaced, which this device doesn't follow"
        return one.numbers
    return torch.device("cpu") if isinstance(one, torch.device) and one.type == DEVICE else one


class _Backend:
    """What `torch.gpu` is."""

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        pass

    def device_count(self) -> int:
        return 1

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


class _Work:
    """What a group's asynchronous operation on the device gives."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handle, name)

    def wait(self, timeout: float | None = None) -> Any:
        return _there(self._handle.wait(timeout))


def _there(made: Any) -> Any:
    return _OnDevice(made) if isinstance(made, torch.Tensor) else made


def _carry_tensors(kind: type[Group]) -> None:
    """Let collectives of groups take tensors on the device, as they take CUDA's; messages take none of these either."""

    def carrying(method: Any) -> Any:
        @functools.wraps(method)
        def call(self: Group, tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if not isinstance(tensor, _OnDevice):
                return method(self, tensor, *args, **kwargs)
            made = method(self, tensor.numbers, *args, **kwargs)
            if made is tensor.numbers:
                return tensor
            return _there(made) if isinstance(made, torch.Tensor) else _Work(made)

        return call

    for name in ("allreduce", "broadcast", "allgather", "reduce_scatter"):
        for form in (name, f"{name}_async"):
            setattr(kind, form, carrying(getattr(kind, form)))


def on_ranks(size: int, work: Callable[[Group], Any]) -> list[Any]:
    """Return what `work(group)` gives on each rank; the ranks are threads. For tasks of a `DeviceProcess`.

    autograd has one thread for a device. So no rank may wait for another one within its backward pass.
    """

    def on_device(group: Group) -> Any:
        with _Device():  # type: ignore[no-untyped-call]
            return work(group)

    return run_ranks(size, on_device)


class DeviceProcess:
    """A process that has the device, on which trainers train there."""

    def __init__(self) -> None:
        self._forked, self._channel = begin(_serve)

    def run(self, task: Callable[..., Any], *arguments: Any, timeout: float = 300) -> Any:
        """Return what `task(*arguments)` returns there.

        Args:
            task: A function of a module. What it returns has no tensors on the device.
            *arguments: Its arguments.
            timeout: Seconds.

        Raises:
            AssertionError: It failed there; with its traceback.
        """
        self._channel.send((task, arguments))
        assert self._channel.poll(timeout), "the process with the device doesn't answer"
        result, failure = self._channel.recv()
        assert not failure, f"in the process with the device:\n{failure}"
        return result

    def close(self) -> None:
        """End the process."""
        end(self._forked, self._channel)


def _serve(channel: Connection) -> None:
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    import hpsearch_trainers.trainer

    _setup_privateuseone_for_python_backend(DEVICE, backend_module=_Backend())
    _carry_tensors(Group)
    torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(..., device=...) then goes through `_Device`
    vars(hpsearch_trainers.trainer)["training_device"] = lambda: torch.device(DEVICE)
    while True:
        try:
            task, arguments = channel.recv()
        except EOFError:
            return
        try:
            with _Device():  # type: ignore[no-untyped-call]
                answer = (task(*arguments), "")
        except BaseException:
            answer = (None, traceback.format_exc())
        channel.send(answer)
