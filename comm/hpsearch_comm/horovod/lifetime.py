"""How a process enters and leaves a job, and its trace, which rank 0 writes."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Sequence
from pathlib import Path

from hpsearch_comm.errors import ConfigurationError
from hpsearch_comm.horovod import recording
from hpsearch_comm.horovod.errors import MissingError
from hpsearch_comm.horovod.job import Job, is_initialized, rank, set_current_job
from hpsearch_comm.horovod.meeting import meet
from hpsearch_comm.horovod.process_sets import ProcessSet, add_process_set
from hpsearch_comm.horovod.settings import Settings

__all__ = ["init", "shutdown", "start_timeline", "stop_timeline"]

_lock = threading.RLock()


def init(comm: Sequence[int] | None = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
    """Start or join the job that the launcher has described in the environment; without one, a job of one rank.

    A second call changes nothing. After `shutdown` on every rank it starts another job of the same ranks; under a
    launcher that continues without dead ranks (`--min-np`), of the remaining ones, renumbered.

    Args:
        comm: None or an empty list: all ranks.
        process_sets: Sets to create at once, the same on every rank; "dynamic" means none, as process sets can always
            be added later.

    Raises:
        ValueError: A process set can't be created.
        MissingError: comm is something else.
        ConfigurationError: The environment can't be used; names the variable.
        RendezvousError: Not all ranks started; names the missing ones.
    """
    with _lock:
        if is_initialized():
            return
        if comm is not None and (not isinstance(comm, Sequence) or len(comm)):
            raise MissingError(
                f"hvd.init() makes a job of all ranks that the launcher has started, got comm={comm!r}: use "
                "hvd.add_process_set() for some of them"
            )
        settings = Settings.read(os.environ)
        set_current_job(meet(lambda group: Job(group, settings)))
        # Registered after the group's own, it runs before that.
        atexit.register(shutdown)
        try:
            if settings.timeline:
                start_timeline(settings.timeline, settings.mark_cycles)
            for process_set in [] if process_sets is None or isinstance(process_sets, str) else process_sets:
                add_process_set(process_set)
        except BaseException:
            shutdown()
            raise


def shutdown() -> None:
    """Leave the job. Other ranks that still need this one get HorovodInternalError."""
    with _lock:
        atexit.unregister(shutdown)
        job = set_current_job(None)
    if job is not None:
        job.close()
        stop_timeline()


def start_timeline(file_path: str | os.PathLike[str], mark_cycles: bool = False) -> None:
    """Start a trace of this job's operations, which rank 0 writes; a running one ends.

    Args:
        file_path: The file, on rank 0's host.
        mark_cycles: Whether exchanges between ranks are marked.

    Raises:
        ConfigurationError: The file can't be written.
        ValueError: There is no job.
    """
    path = Path(file_path)
    if path.is_dir():
        raise ConfigurationError(f"the timeline's path must be a file, got the directory {path}")
    if rank() == 0:
        recording.record(None)
        recording.record(recording.Recording(path, 0, mark_cycles))


def stop_timeline() -> None:
    """End the trace, if there is one."""
    recording.record(None)
