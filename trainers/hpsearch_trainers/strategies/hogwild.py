"""Asynchronous in one memory: Hogwild (Niu et al., 2011, algorithm 1), and the same with locks.

There is one copy of the weights, in memory that the workers of a host share. Each worker computes a gradient from its
own rows and the weights as they are, and steps straight into them, whatever the others do meanwhile:

    worker 0    read w ─ gradient ─ w += step      read w ─ gradient ─ w += step
    worker 1          read w ─ gradient ─ w += step    read w ─ gradient ─ w += step

An element is read and written whole, but two workers that add to one at the same moment may lose one of the sums. Where
gradients are sparse that is rare: a step of SGD, SparseAdam or Adagrad with the gradient of
`nn.Embedding(..., sparse=True)` touches the rows that were looked up, and no others.

`locked` is what the paper compares with (AIG there): weights are read as they are too, but each bucket of them is
updated under a lock of its own, so that no step in it is lost.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor, UntypedStorage, nn

from hpsearch_comm import Group, SharedMemory
from hpsearch_comm.data_parallel.agreement import check_agreement, describe_layouts
from hpsearch_comm.errors import ConfigurationError
from hpsearch_trainers.strategies.averaging import LocalSteps
from hpsearch_trainers.strategies.common_state import gather_worker_states, take_state
from hpsearch_trainers.strategies.optimizer_shard import steps_in_parts, trains_each_parameter
from hpsearch_trainers.strategies.strategy import Options, Trained

_LINE = 64
"""Bytes of a cache line, at which each piece begins."""


class OneCopy:
    """Moves a model's parameters into memory that all workers share, where they begin with rank 0's; a collective.

    The parameters stay the objects that they were, so an optimizer of them goes on unawares, and so do what shares
    memory with one of them, as another parameter or a buffer may.

    Args:
        model: The same on every worker, on the CPU.
        group: The workers.
        locks: How many the memory is to have.

    Attributes:
        memory: It.

    Raises:
        MismatchError: The workers have built different models.
    """

    def __init__(self, model: nn.Module, group: Group, locks: int) -> None:
        check_agreement(group, "the model's parameters", describe_layouts(model.named_parameters()))
        storages = storages_of(model.parameters())
        starts, total = [], 0
        for storage in storages:
            starts.append(total)
            total += -(-storage.nbytes() // _LINE) * _LINE
        start_of_address = {storage.data_ptr(): start for storage, start in zip(storages, starts, strict=True)}
        lines = [
            f"parameter {name} from element {parameter.storage_offset()} of what begins at byte "
            f"{start_of_address.get(parameter.untyped_storage().data_ptr())} of {total}"
            for name, parameter in model.named_parameters()
        ]
        check_agreement(group, "where the model's parameters lie", lines)
        self.memory: SharedMemory = group.share(total, locks)
        octets = self.memory.data.numpy()
        pieces = {
            # Of a storage of its own, so that what is saved within an epoch holds one parameter and not all.
            storage.data_ptr(): torch.from_numpy(octets[start : start + storage.nbytes()]).untyped_storage()
            for storage, start in zip(storages, starts, strict=True)
        }
        if group.rank == 0:
            for storage in storages:
                pieces[storage.data_ptr()].copy_(storage)
        group.barrier()
        _move(model, pieces)
        self._model = model
        self._addresses = {id(parameter): parameter.untyped_storage().data_ptr() for parameter in model.parameters()}

    def release(self) -> None:
        """Copy the parameters, as they are now, into memory of this worker alone.

        Raises:
            ConfigurationError: One that is trained lies elsewhere, so that the others haven't what this worker has. Of
                others, as slow copies of these, the mean is taken.
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
        _move(self._model, {storage.data_ptr(): storage.clone() for storage in shared})  # type: ignore[no-untyped-call]


def _move(model: nn.Module, storages: Mapping[int, UntypedStorage]) -> None:
    """Put a model's tensors into other memory, in place of that at some addresses."""
    for tensor in (*model.parameters(), *model.buffers()):
        storage = storages.get(tensor.untyped_storage().data_ptr())
        if storage is not None:
            empty = tensor.data.new_empty(0)
            tensor.data = empty.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())


def storages_of(tensors: Iterable[Tensor]) -> list[UntypedStorage]:
    """Return the memory of tensors, each piece once; tensors without elements have none."""
    storages = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in tensors if tensor.numel() > 0
    }
    return list(storages.values())


_OTHER_OPTIMIZER = "an optimizer that looks over all parameters"
_BUCKET = 1 << 20
"""Bytes of weights from which on a bucket takes no more parameters."""


class Hogwild(LocalSteps):
    """Steps without locks. The optimizer's state is each worker's own, as in torch's example of Hogwild.

    A checkpoint has rank 0's in the usual place, and the others' beside it, for a trial that goes on with as many
    workers.
    """

    name: ClassVar[str] = "hogwild"
    reproducible: ClassVar[bool] = False

    def __init__(self, options: Options, group: Group | None) -> None:
        super().__init__(options, group)
        hosts = [list(ranks) for ranks in self.group.hosts]
        if len(hosts) > 1:
            raise ConfigurationError(
                f"parallel.strategy {self.name} needs all workers on one host, whose memory they share, got {hosts}: "
                "lower resources.workers_per_trial to what a host has, or take another strategy"
            )
        self._copy: OneCopy | None = None
        self._other_states: list[Any] = []

    def bind(self, trained: Trained) -> None:
        """Take what is trained; every worker begins with rank 0's."""
        elsewhere = next(
            (parameter.device for parameter in trained.model.parameters() if parameter.device.type != "cpu"), None
        )
        if elsewhere is not None:
            raise ConfigurationError(
                f"parallel.strategy {self.name} needs the weights in the host's memory, which all workers write to, "
                f"got a model on {elsewhere}: run it where no GPU is seen (resources.gpus_per_worker 0), or take "
                "another strategy"
            )
        super().bind(trained)

    def is_bound(self, trained: Trained) -> bool:
        """Return whether all workers have what they had; a collective. One alone may have replaced something."""
        return all(self.group.allgather_object(super().is_bound(trained)))

    def start_epoch(self, trained: Trained, epoch: int) -> None:
        """Begin an epoch: the weights move into shared memory.

        Between two epochs every worker has its own: what all of them do to a model, such as to halve its weights, is
        then done once to each copy.
        """
        super().start_epoch(trained, epoch)
        self._copy = OneCopy(trained.model, self.group, self._locks())

    def update(self) -> None:
        """Step, and tell the others that this worker goes on."""
        super().update()
        assert self._copy is not None
        self._copy.memory.advance()

    def end_epoch(self) -> None:
        """Wait for the steps of all, take a copy of the weights, and gather what only one worker has.

        Raises:
            ConfigurationError: The model has put other memory in the place of what is shared.
        """
        super().end_epoch()
        assert self._copy is not None
        self._copy.memory.wait()
        self.group.barrier()
        self._copy.release()
        self._copy = None
        self._other_states = gather_worker_states(self.trained.optimizer.state_dict()["state"], self.group)
        self._average_moving_average(self._of_workers(self._epoch_rows))

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the other workers' optimizers; on rank 0."""
        kind = type(self.trained.optimizer).__qualname__
        return {"optimizer_class": kind, "states": self._other_states} if self._other_states else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with this worker's own state where there were as many workers, else with rank 0's."""
        states, rank = state.get("states", []), self.group.rank
        optimizer_class = type(self.trained.optimizer).__qualname__
        if len(states) != self.group.size - 1 or state["optimizer_class"] != optimizer_class:
            states = []
        self._other_states = list(states) if rank == 0 else []
        if rank > 0 and states:
            take_state(self.trained.optimizer, states[rank - 1])

    def _locks(self) -> int:
        return 0


class Locked(Hogwild):
    """Updates one bucket of weights after the other, each under its lock."""

    name: ClassVar[str] = "locked"
    refuses: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            **Hogwild.refuses,
            _OTHER_OPTIMIZER: "it steps with the parameters of one bucket at a time; one of your own whose step treats "
            "each parameter by itself says so by an attribute `trains_each_parameter = True`",
        }
    )

    def bind(self, trained: Trained) -> None:
        """See `Hogwild.bind`."""
        if not trains_each_parameter(trained.optimizer):
            self.refuse(_OTHER_OPTIMIZER)
        super().bind(trained)

    def start_epoch(self, trained: Trained, epoch: int) -> None:
        """Begin an epoch, with the parameters that the optimizer has now."""
        super().start_epoch(trained, epoch)
        bucket_of_address = self._buckets(trained.model)
        bucket_of = {
            parameter: bucket_of_address[parameter.untyped_storage().data_ptr()]
            for parameter in trained.model.parameters()
            if parameter.numel() > 0
        }
        groups = [group["params"] for group in trained.optimizer.param_groups]
        used = sorted({bucket_of[parameter] for params in groups for parameter in params if parameter.numel() > 0})
        first = len(used) * self.group.rank // self.group.size  # each worker begins with another one
        self._order = [
            (bucket, [[parameter for parameter in params if bucket_of.get(parameter) == bucket] for params in groups])
            for bucket in (*used[first:], *used[:first])
        ]

    def step(self) -> None:
        """Step the parameters of one bucket at a time; all together if the optimizer may do more than step."""
        assert self._copy is not None
        optimizer, locks = self.trained.optimizer, self._copy.memory.locks
        if self.hooked or not steps_in_parts(optimizer):
            buckets = sorted(bucket for bucket, _ in self._order)  # in another order on each, two would wait for ever
            with contextlib.ExitStack() as held_locks:
                for bucket in buckets:
                    held_locks.enter_context(locks[bucket])
                super().step()
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

    def _locks(self) -> int:
        return 1 + max(self._buckets(self.trained.model).values(), default=-1)

    def _buckets(self, model: nn.Module) -> dict[int, int]:
        """Return the bucket of each piece of memory, by its address."""
        buckets, bucket, filled = {}, 0, 0
        for storage in storages_of(model.parameters()):
            if filled >= _BUCKET:
                bucket, filled = bucket + 1, 0
            buckets[storage.data_ptr()] = bucket
            filled += storage.nbytes()
        return buckets
