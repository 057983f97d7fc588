"""What every process that hpsearch starts needs: threads for its numerical libraries, and to outlive a preemption.

A batch system sends signals when it is about to end a job: Slurm's `--signal=USR1@60`, say. It may send them to the
job's own process, to its process group or to every process. The one that runs the sweep ends it in good order
meanwhile, so all others must outlive them.
"""

from __future__ import annotations

import signal

__all__ = ["PREEMPTION", "block_preemption", "ignore_preemption", "thread_environment"]

PREEMPTION = (signal.SIGUSR1, signal.SIGUSR2)
"""By default they kill."""


def thread_environment(count: int) -> dict[str, str]:
    """Give the environment variables that leave OpenMP, OpenBLAS, MKL and NumExpr so many threads each.

    The libraries read them when they are loaded.
    """
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
    return dict.fromkeys(names, str(count))


def block_preemption() -> None:
    """Block the signals in this thread, and in all processes that it starts."""
    signal.pthread_sigmask(signal.SIG_BLOCK, PREEMPTION)


def ignore_preemption() -> None:
    """Ignore the signals in this process; what it starts ignores them until it handles them itself.

    One that came while they were blocked is forgotten.
    """
    for number in PREEMPTION:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PREEMPTION)
