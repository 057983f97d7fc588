"""init and shutdown of a job, and the timeline that rank 0 writes.

The ranks meet by the environment, or through a launcher that continues without dead ranks.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import logging
import os
import threading
from collections.abc import Sequence
from pathlib import Path

from hpsearch_comm import environment
from hpsearch_comm.bootstrap.listener import Listener
from hpsearch_comm.bootstrap.rendezvous import KnownAddresses
from hpsearch_comm.errors import CommTimeoutError, ConfigurationError, PeerLost, RefusedError, RendezvousError
from hpsearch_comm.group import Group
from hpsearch_comm.horovod import recording
from hpsearch_comm.horovod.errors import MissingError
from hpsearch_comm.horovod.job import Job, is_initialized, rank, set_current_job
from hpsearch_comm.horovod.process_sets import ProcessSet, add_process_set
from hpsearch_comm.horovod.settings import Settings
from hpsearch_comm.roster import LauncherLine

__all__ = ["init", "shutdown", "start_timeline", "stop_timeline"]

_lock = threading.RLock()
_MOST_FAILURES = 3
"""Failed attempts in sequence with the same number of ranks. The count restarts when a rank has died."""
_APART = (RendezvousError, PeerLost, CommTimeoutError, RefusedError)
"""Errors of a rendezvous in which a rank was lost. Its port may already be in use by another rank's next attempt."""
_starts = itertools.count()
_log = logging.getLogger(__name__)


def init(comm: Sequence[int] | None = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
    """Start or join the job that the launcher describes in the environment. Without a launcher, the job has one rank.

    A second call changes nothing. After `shutdown` on every rank, `init` starts another job of the same ranks. Under a
    launcher that continues without dead ranks (`--min-np`), the new job has the remaining ranks, renumbered.

    Args:
        comm: None or an empty list, which mean all ranks.
        process_sets: Process sets to create, the same on every rank. "dynamic" creates none: process sets can always
            be added later.

    Raises:
        ValueError: A process set can't be created.
        MissingError: comm names ranks, or is an MPI communicator.
        ConfigurationError: A variable of the environment is invalid; the error names it.
        RendezvousError: Not all ranks started; the error names the missing ranks.
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
        set_current_job(_meet(settings))
        # atexit runs handlers in reverse order: this one runs before that of the group.
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
    if job is not None and not job.inherited:
        job.close()
        stop_timeline()


def start_timeline(file_path: str | os.PathLike[str], mark_cycles: bool = False) -> None:
    """Start a timeline of this job's operations, written by rank 0. A running timeline ends.

    Args:
        file_path: The file, on rank 0's host.
        mark_cycles: Whether each exchange of the negotiation is marked.

    Raises:
        ConfigurationError: The file can't be written.
        ValueError: There is no job.
    """
    path = Path(file_path)
    if path.is_dir():
        raise ConfigurationError(f"the timeline's path must be a file, got the directory {path}")
    if rank() == 0:
        recording.record(recording.Recording(path, mark_cycles))


def stop_timeline() -> None:
    """End the timeline. Without a running timeline, do nothing."""
    recording.record(None)


def _meet(settings: Settings) -> Job:
    """Connect to the other ranks, and create a job with them.

    Raises:
        ConfigurationError: A variable of the environment is invalid; the error names it.
        RendezvousError: Not all ranks came, or the launcher is gone.
    """
    line = _launcher()
    if line is None:
        # Each start has a unique name, so that a rank can't connect to one that is still in the previous job.
        return _begin(environment.init(name=f"horovod {next(_starts)}"), settings)
    arguments = environment.read_environment(os.environ)
    interface, host = arguments.options.get("interface"), arguments.options.get("host")
    towards = None if arguments.rendezvous is None else arguments.rendezvous.host
    size = failures = 0
    while True:
        with Listener(interface, towards, host) as listener:
            roster = line.meet(listener.address.to_text())
            size, failures = len(roster.addresses), failures if len(roster.addresses) == size else 0
            os.environ.update(roster.variables())
            addresses, name = KnownAddresses(roster.addresses), f"horovod {roster.number}"
            try:
                return _begin(environment.init(rendezvous=addresses, listener=listener, name=name), settings)
            except _APART as error:
                failures += 1
                if failures == _MOST_FAILURES:
                    raise
                _log.warning("meeting anew, as not all ranks have met: %s", error)


def set_done(is_done: bool = True) -> None:
    """Report to the launcher whether this process is done, so that the launcher sets no deadline for it."""
    if line := _launcher():
        line.send_done(is_done)


def is_elastic() -> bool:
    """Return whether the launcher manages the rendezvous and continues without dead ranks (`--min-np`)."""
    return _launcher() is not None


@functools.cache
def _launcher() -> LauncherLine | None:
    return LauncherLine.open(os.environ)


def _begin(group: Group, settings: Settings) -> Job:
    try:
        return Job(group, settings)
    except BaseException as error:
        group.close(error)
        raise
