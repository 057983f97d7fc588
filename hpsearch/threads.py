"""How many threads the numerical libraries of a process have: they read it when they are loaded."""

from __future__ import annotations

__all__ = ["thread_environment"]


def thread_environment(count: int) -> dict[str, str]:
    """Give the environment variables that leave OpenMP, OpenBLAS, MKL and NumExpr so many threads each."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
    return dict.fromkeys(names, str(count))
