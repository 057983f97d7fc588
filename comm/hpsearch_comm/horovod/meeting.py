"""How the ranks of a job meet: as the environment says, or as a launcher does that goes on without dead ones."""

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
"""Of equally many ranks to meet: those that die meanwhile make them fewer."""
_APART = (RendezvousError, PeerLost, CommTimeoutError, RefusedError)
"""What a rank that is lost while others meet makes of it: its port may be that of another's next try by then."""
_starts = itertools.count()
_log = logging.getLogger(__name__)
_T = TypeVar("_T")


def meet(begin: Callable[[Group], _T]) -> _T:
    """Meet the other ranks, and begin a job with them.

    Args:
        begin: Makes the job of the group, together with the other ranks.

    Raises:
        ConfigurationError: The environment can't be used; names the variable.
        RendezvousError: Not all ranks came, or the launcher is gone.
    """
    line = _launcher()
    if line is None:
        # Each start has a name of its own, so that no rank meets one that is still in the job before.
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
    """Tell the launcher whether this process may take as long as it likes until it comes to meet others, or ends."""
    if line := _launcher():
        line.send_done(is_done)


def is_elastic() -> bool:
    """Whether a launcher says who meets, and goes on without ranks that have died."""
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
