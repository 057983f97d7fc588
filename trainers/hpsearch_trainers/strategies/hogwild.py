"""Asynchronous SGD in shared memory: Hogwild (Niu et al., 2011, algorithm 1), and a variant with locks.

There is one copy of the weights, in memory that the workers of a host share. Each worker computes a gradient from its
own rows and the current weights, and updates the weights in place without synchronization:

    worker 0    read w ─ gradient ─ w += step      read w ─ gradient ─ w += step
    worker 1          read w ─ gradient ─ w += step    read w ─ gradient ─ w += step

Single elements are read and written atomically, but if two workers add to an element at the same time, one of the
updates may be lost. With sparse gradients this is rare: a step of SGD, SparseAdam or Adagrad with the gradient of
`nn.Embedding(..., sparse=True)` changes only the rows that were looked up.

`locked` is the method that the paper compares with (called AIG there). It also reads weights without locks, but
updates each bucket of weights under the bucket's lock, so no update is lost.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, UntypedStorage, nn

from hpsearch_comm import Group, SharedMemory
from hpsearch_comm.data_parallel.agreement import check_agreement
from hpsearch_comm.errors import ConfigurationError
from hpsearch_trainers.strategies.averaging import LocalSteps
from hpsearch_trainers.strategies.common_state import gather_worker_states, take_state
from hpsearch_trainers.strategies.optimizer_shard import steps_in_parts, trains_each_parameter
from hpsearch_trainers.strategies.strategy import Options, StrategyCapabilities, Trained

_LINE = 64
"""Bytes of a cache line; each parameter's memory is aligned to it."""
_BUCKET = 1 << 20
"""Bytes of the shared memory that one lock protects."""


class OneCopy:
    """Moves a model's parameters into memory shared by all workers, initialized with rank 0's values; a collective.

    The parameters stay the same objects, so an optimizer of them needs no change. Other parameters and buffers that
    share memory with a parameter still share it afterwards.

    Args:
        model: The model, on the CPU; its parameters have the same layout on every worker.
        group: The workers.
        locked: Whether each bucket has a lock. Locks need glibc 2.30.

    Attributes:
        memory: The shared memory.
        buckets: The bucket in which each parameter begins, except parameters without elements.

    Raises:
        MismatchError: Parameters share memory on one worker and not on another.
    """

    def __init__(self, model: nn.Module, group: Group, locked: bool = False) -> None:
        storages = storages_of(model.parameters())
        starts, total = {}, 0
        for address, storage in storages.items():
            starts[address] = total
            total += -(-storage.nbytes() // _LINE) * _LINE
        lines = [
            f"parameter {name} from element {parameter.storage_offset()} of what begins at byte "
            f"{starts.get(parameter.untyped_storage().data_ptr())} of {total}"
            for name, parameter in model.named_parameters()
        ]
        check_agreement(group, "where the model's parameters lie", lines)
        self.memory: SharedMemory = group.share(total, 1 + total // _BUCKET if locked else 0)
        self.buckets = {
            parameter: starts[parameter.untyped_storage().data_ptr()] // _BUCKET
            for parameter in model.parameters()
            if parameter.numel() > 0
        }
        octets = self.memory.data.numpy()
        pieces = {
            # A separate storage for each, so that saving a parameter within an epoch doesn't save all of them.
            address: torch.from_numpy(octets[starts[address] :][: storage.nbytes()]).untyped_storage()
            for address, storage in storages.items()
        }
        if group.rank == 0:
            for address, piece in pieces.items():
                piece.copy_(storages[address])
        group.barrier()
        _move(model, pieces)
        self._model = model
        self._addresses = {id(parameter): parameter.untyped_storage().data_ptr() for parameter in model.parameters()}

    def release(self) -> None:
        """Copy the parameters from the shared memory into private memory of this worker.

        Raises:
            ConfigurationError: A trained parameter was moved out of the shared memory, so the workers' values differ.
                This isn't checked for untrained parameters, which are averaged.
        """
        moved = [
            name
            for name, parameter in self._model.named_parameters()
            if parameter.requires_grad and self._addresses.get(id(parameter)) != parameter.untyped_storage().data_ptr()
        ]
        if moved:
            raise ConfigurationError(
                "in an epoch weights must stay in the memory that all workers share, got other memory in the place of "
                f"{', '.join(moved[:3])}{' and more' if len(moved) > 3 else ''}: let the model write into it, as "
                "weight.data.copy_(...) does and weight.data = ... doesn't, or change it between two epochs"
            )
        shared = storages_of(self._model.parameters())
        _move(self._model, {address: storage.clone() for address, storage in shared.items()})  # type: ignore[no-untyped-call]


def _move(model: nn.Module, storages: Mapping[int, UntypedStorage]) -> None:
    """Replace the storages of a model's tensors by other storages, given by the old ones' addresses."""
    for tensor in (*model.parameters(), *model.buffers()):
        storage = storages.get(tensor.untyped_storage().data_ptr())
        if storage is not None:
            empty = tensor.data.new_empty(0)
            tensor.data = empty.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())


def storages_of(tensors: Iterable[Tensor]) -> dict[int, UntypedStorage]:
    """Return the storages of tensors by their addresses, except of tensors without elements."""
    return {tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in tensors if tensor.numel() > 0}


_OTHER_OPTIMIZER = "an optimizer that looks over all parameters"


class Hogwild(LocalSteps):
    """Steps without locks. Each worker has its own optimizer state, as in torch's Hogwild example.

    A checkpoint contains rank 0's optimizer state as `optimizer`, and the other workers' states in addition. These are
    used if the trial resumes with the same number of workers.
    """

    name: ClassVar[str] = "hogwild"
    _locked: ClassVar[bool] = False
    capabilities: ClassVar[StrategyCapabilities] = dataclasses.replace(LocalSteps.capabilities, reproducible=False)

    def __init__(self, options: Options, group: Group | None) -> None:
        super().__init__(options, group)
        hosts = [list(ranks) for ranks in self.group.hosts]
        if len(hosts) > 1:
            raise ConfigurationError(
                f"parallel.strategy {self.name} needs all workers on one host, whose memory they share, got {hosts}: "
                "lower resources.workers_per_trial to what a host has, or take another strategy"
            )
        self._other_states: list[Any] = []

    def prepare(self, trained: Trained) -> None:
        """Broadcast rank 0's weights and buffers, which must be in the host's memory."""
        elsewhere = next(
            (parameter.device for parameter in trained.model.parameters() if parameter.device.type != "cpu"), None
        )
        if elsewhere is not None:
            raise ConfigurationError(
                f"parallel.strategy {self.name} needs the weights in the host's memory, which all workers write to, "
                f"got a model on {elsewhere}: run it where no GPU is seen (resources.gpus_per_worker 0), or take "
                "another strategy"
            )
        super().prepare(trained)

    def is_bound(self, trained: Trained) -> bool:
        """Return whether the bound objects are unchanged on all workers; a collective."""
        return all(self.group.allgather_object(super().is_bound(trained)))

    def begin_epoch(self, epoch: int) -> None:
        """Move the weights into shared memory.

        Between two epochs every worker has a private copy. So if all workers change the model, for example halve its
        weights, the change is applied once to each copy.
        """
        super().begin_epoch(epoch)
        self._copy = OneCopy(self.trained.model, self.group, self._locked)

    def step(self) -> None:
        """Step, and report progress to the other workers."""
        super().step()
        self._copy.memory.advance()

    def end_epoch(self) -> None:
        """Wait for the steps of all workers, copy the weights to private memory, and gather the optimizer states.

        Raises:
            ConfigurationError: The model has moved a trained parameter out of the shared memory.
        """
        self._copy.memory.wait()
        self.group.barrier()
        self._copy.release()
        del self._copy
        self._other_states = gather_worker_states(self.trained.optimizer.state_dict()["state"], self.group)[1:]
        self._average_moving_average(self._of_workers(self._epoch_rows))

    def state_dict(self) -> dict[str, Any]:
        """Return the other workers' optimizer states on rank 0, and an empty dict on other ranks."""
        kind = type(self.trained.optimizer).__qualname__
        return {"optimizer_class": kind, "states": self._other_states} if self._other_states else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load this worker's own optimizer state. If the number of workers has changed, all start from rank 0's."""
        states, rank = state.get("states", []), self.group.rank
        optimizer_class = type(self.trained.optimizer).__qualname__
        if len(states) != self.group.size - 1 or state["optimizer_class"] != optimizer_class:
            states = []
        self._other_states = list(states) if rank == 0 else []
        if rank > 0 and states:
            take_state(self.trained.optimizer, states[rank - 1])


class Locked(Hogwild):
    """Updates the buckets of weights one after another, each under its lock."""

    name: ClassVar[str] = "locked"
    _locked: ClassVar[bool] = True
    capabilities: ClassVar[StrategyCapabilities] = dataclasses.replace(
        Hogwild.capabilities,
        refuses={
            **Hogwild.capabilities.refuses,
            _OTHER_OPTIMIZER: "it steps with the parameters of one bucket at a time; one of your own whose step treats "
            "each parameter by itself says so by an attribute `trains_each_parameter = True`",
        },
    )

    def prepare(self, trained: Trained) -> None:
        """See `Hogwild.prepare`."""
        if not trains_each_parameter(trained.optimizer):
            self.refuse(_OTHER_OPTIMIZER)
        super().prepare(trained)

    def begin_epoch(self, epoch: int) -> None:
        """Also assign the optimizer's current parameters to buckets."""
        super().begin_epoch(epoch)
        buckets = self._copy.buckets
        groups = [group["params"] for group in self.trained.optimizer.param_groups]
        used = sorted({buckets[parameter] for params in groups for parameter in params if parameter.numel() > 0})
        first = len(used) * self.group.rank // self.group.size  # each worker starts at a different bucket
        self._order = [
            (bucket, [[parameter for parameter in params if buckets.get(parameter) == bucket] for params in groups])
            for bucket in (*used[first:], *used[:first])
        ]

    def step_optimizer(self) -> None:
        """Update one bucket at a time. If the optimizer has hooks or common state, update all under all locks."""
        optimizer, locks = self.trained.optimizer, self._copy.memory.locks
        if self.hooked or not steps_in_parts(optimizer):
            buckets = sorted(bucket for bucket, _ in self._order)  # the same order on all workers, to avoid deadlock
            with contextlib.ExitStack() as held_locks:
                for bucket in buckets:
                    held_locks.enter_context(locks[bucket])
                super().step_optimizer()
            return
        groups = optimizer.param_groups
        all_params = [group["params"] for group in groups]
        try:
            for bucket, parts in self._order:
                for group, params in zip(groups, parts, strict=True):
                    group["params"] = params
                with locks[bucket]:
                    optimizer.step()
        finally:
            for group, params in zip(groups, all_params, strict=True):
                group["params"] = params
