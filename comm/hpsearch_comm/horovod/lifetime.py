"""How a process enters and leaves a job."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Sequence

from hpsearch_comm.horovod.errors import MissingError
from hpsearch_comm.horovod.job import Job, is_initialized, set_current_job
from hpsearch_comm.horovod.meeting import meet
from hpsearch_comm.horovod.process_sets import ProcessSet, add_process_set, forget_process_sets
from hpsearch_comm.horovod.settings import Settings
from hpsearch_comm.horovod.timeline import start_timeline, stop_timeline

__all__ = ["init", "shutdown"]

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
        forget_process_sets()
    if job is not None:
        job.close()
        stop_timeline()
