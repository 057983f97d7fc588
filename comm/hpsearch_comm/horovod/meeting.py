"""The rendezvous of a job's ranks: from the environment, or through a launcher that continues without dead ranks."""

from __future__ import annotations

import functools
import itertools
import logging
import os
from collections.abc import Callable
from typing import TypeVar

from hpsearch_comm import environment
from hpsearch_comm.bootstrap.listener import Listener
from hpsearch_comm.bootstrap.rendezvous import KnownAddresses
from hpsearch_comm.errors import CommTimeoutError, PeerLost, RefusedError, RendezvousError
from hpsearch_comm.group import Group
from hpsearch_comm.roster import LauncherLine

_MOST_FAILURES = 3
"""Failed attempts in sequence with the same number of ranks. The count restarts when a rank has died."""
_APART = (RendezvousError, PeerLost, CommTimeoutError, RefusedError)
"""Errors of a rendezvous in which a rank was lost. Its port may already be in use by another rank's next attempt."""
_starts = itertools.count()
_log = logging.getLogger(__name__)
_T = TypeVar("_T")


def meet(begin: Callable[[Group], _T]) -> _T:
    """Connect to the other ranks, and create a job with them.

    Args:
        begin: A function that creates the job from the group; all ranks call it together.

    Raises:
        ConfigurationError: A variable of the environment is invalid; the error names it.
        RendezvousError: Not all ranks came, or the launcher is gone.
    """
    line = _launcher()
    if line is None:
        # Each start has a unique name, so that a rank can't connect to one that is still in the previous job.
        return _begin(environment.init(name=f"horovod {next(_starts)}"), begin)
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
                return _begin(environment.init(rendezvous=addresses, listener=listener, name=name), begin)
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


def _begin(group: Group, begin: Callable[[Group], _T]) -> _T:
    try:
        return begin(group)
    except BaseException as error:
        group.close(error)
        raise
