"""Rates of a collective, as nccl-tests defines them, so that figures can be put beside anybody else's.

With S the bytes of the operation and t its seconds:

    algbw = S / t              what the caller sees
    busbw = algbw · factor     what each rank's bus would carry under the best algorithm there is

The factor makes rates of different numbers of ranks n comparable. In an allreduce of S bytes, for instance, each rank
must send its contribution to (n - 1)/n of the elements and the results of its own 1/n of them to n - 1 ranks:
2 S (n - 1)/n bytes, hence 2 (n - 1)/n. Source: NVIDIA/nccl-tests, doc/PERFORMANCE.md, "Bus bandwidth".

    operation                       S                                  factor
    allreduce                       the tensor                         2 (n - 1)/n
    allgather, reduce_scatter       all parts together                 (n - 1)/n
    alltoall                        what one rank sends                (n - 1)/n
    broadcast                       the tensor                         1
"""

from __future__ import annotations

__all__ = ["algorithm_bandwidth", "bus_bandwidth", "bus_factor"]

_SHARED = frozenset({"allgather", "reduce_scatter", "alltoall"})


def bus_factor(operation: str, size: int) -> float:
    """Return busbw / algbw of an operation among `size` ranks; 1 for operations that have no such convention."""
    if operation == "allreduce":
        return 2 * (size - 1) / size
    if operation in _SHARED:
        return (size - 1) / size
    return 1.0


def algorithm_bandwidth(nbytes: int, seconds: float) -> float:
    """Return algbw in GB/s (10⁹ bytes per second); 0 where no time has passed."""
    return nbytes / seconds / 1e9 if seconds > 0 else 0.0


def bus_bandwidth(operation: str, nbytes: int, seconds: float, size: int) -> float:
    """Return busbw in GB/s (10⁹ bytes per second)."""
    return algorithm_bandwidth(nbytes, seconds) * bus_factor(operation, size)
