"""What scripts ask of a build of Horovod: none of the libraries that it knows is under this one."""

from __future__ import annotations

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
    """Say no: ranks talk over this package's own connections."""
    return False


def mpi_enabled() -> bool:
    """Say no."""
    return False


def mpi_threads_supported() -> bool:
    """Raise, as there is no MPI.

    Raises:
        ValueError: Always.
    """
    raise ValueError("there is no MPI under hpsearch_comm.horovod whose threads could be asked for")


def gloo_built() -> bool:
    """Say no."""
    return False


def gloo_enabled() -> bool:
    """Say no."""
    return False


def nccl_built() -> int:
    """Say 0, in place of a version: CUDA tensors are refused here."""
    return 0


def ddl_built() -> bool:
    """Say no."""
    return False


def ccl_built() -> bool:
    """Say no."""
    return False


def cuda_built() -> bool:
    """Say no: CUDA tensors are refused here."""
    return False


def rocm_built() -> bool:
    """Say no."""
    return False
