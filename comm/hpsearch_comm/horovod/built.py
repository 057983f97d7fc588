"""What scripts ask about a build of Horovod: of the libraries that it knows, torch's CUDA and NCCL are used here."""

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


def mpi_built() -> bool:
    """Return False: ranks use this package's own connections."""
    return False


def mpi_enabled() -> bool:
    """Return False."""
    return False


def mpi_threads_supported() -> bool:
    """Raise an error, as there is no MPI.

    Raises:
        ValueError: Always.
    """
    raise ValueError("there is no MPI under hpsearch_comm.horovod whose threads could be asked for")


def gloo_built() -> bool:
    """Return False."""
    return False


def gloo_enabled() -> bool:
    """Return False."""
    return False


def nccl_built() -> int:
    """Return the version of the NCCL that torch has, such as 22809; 0 for a torch without it."""
    return nccl_version()


def ddl_built() -> bool:
    """Return False."""
    return False


def ccl_built() -> bool:
    """Return False."""
    return False


def cuda_built() -> bool:
    """Return whether torch is built for CUDA."""
    return torch.version.cuda is not None


def rocm_built() -> bool:
    """Return False."""
    return False
