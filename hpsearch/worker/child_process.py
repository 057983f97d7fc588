"""Settings of processes that hpsearch starts: environment, threads of libraries, and signals before a preemption.

A batch system sends signals before it ends a job, for example Slurm's `--signal=USR1@60`: to the job's process, to its
process group, or to every process. The process that runs the sweep then ends it normally, so all others must
survive the signals.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, Mapping

PREEMPTION = (signal.SIGUSR1, signal.SIGUSR2)
"""Their default action kills the process."""


@contextlib.contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables of this process, and of those that it starts, within the block."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)  # another worker of this process may have ended first
            if value is not None:
                os.environ[name] = value


def thread_environment(count: int) -> dict[str, str]:
    """Return the environment variables that set the number of threads of OpenMP, OpenBLAS, MKL and NumExpr.

    The libraries read them when they are loaded.
    """
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
    return dict.fromkeys(names, str(count))


def block_preemption() -> None:
    """Block the signals in this thread and in all processes that it starts."""
    signal.pthread_sigmask(signal.SIG_BLOCK, PREEMPTION)


def ignore_preemption() -> None:
    """Ignore the signals in this process; its children ignore them, too, until they handle them.

    Signals that arrived while they were blocked are discarded.
    """
    for number in PREEMPTION:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PREEMPTION)
