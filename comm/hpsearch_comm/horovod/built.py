"""Horovod's build queries. Only CUDA and NCCL can be available: those that torch was built with."""

from __future__ import annotations

import torch

from hpsearch_comm.cuda.nccl import nccl_version

__all__ = [
    "ccl_built",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rocm_built",
]


def _no() -> bool:
    """Return False: this package has its own transport, and uses CUDA and NCCL through torch."""
    return False


mpi_built = mpi_enabled = gloo_built = gloo_enabled = ddl_built = ccl_built = rocm_built = _no


def mpi_threads_supported() -> bool:
    """Raise an error, as there is no MPI.

    Raises:
        ValueError: Always.
    """
    raise ValueError("there is no MPI under hpsearch_comm.horovod whose threads could be asked for")


def nccl_built() -> int:
    """Return the version of torch's NCCL, such as 22809; 0 if torch was built without NCCL."""
    return nccl_version()


def cuda_built() -> bool:
    """Return whether torch is built for CUDA."""
    return torch.version.cuda is not None
