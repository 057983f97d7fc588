"""Runs a training anew from its last commit, where a collective has failed."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, TypeVar

from hpsearch_comm.errors import RendezvousError
from hpsearch_comm.horovod.elastic.state import State
from hpsearch_comm.horovod.errors import HorovodInternalError, MissingError
from hpsearch_comm.horovod.lifetime import init, shutdown

__all__ = ["run"]

MOST_FAILURES = 3
"""Failures without a commit between them: a training that can't get further fails each time."""

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


def run(func: Callable[..., _T]) -> Callable[..., _T]:
    """Let a function go on behind HorovodInternalError: `@hvd.elastic.run` before `def train(state): ...`.

    The function begins with the state of rank 0 on all ranks. When it ends with HorovodInternalError, its ranks leave
    the job, have their last committed states again, meet in a new job, and call it once more. They are the processes
    that the launcher has started: one that has died doesn't come back, and none joins later.

    Args:
        func: Takes the state, and whatever else it is called with. It begins where the state says.

    Raises:
        HorovodInternalError: It failed three times without a commit in between.
        RendezvousError: A process didn't come to the new job, as it has died or ended; names its rank.
    """

    @functools.wraps(func)
    def train(state: State, *args: Any, **kwargs: Any) -> _T:
        failures, commits = 0, state.commits
        while True:
            try:
                state.sync()
                return func(state, *args, **kwargs)
            except MissingError:
                raise
            except HorovodInternalError as error:
                failures = failures + 1 if commits == state.commits else 1
                commits = state.commits
                if failures == MOST_FAILURES:
                    raise
                _log.warning("going on from the last commit, as a collective has failed: %s", error)
            _meet_anew()
            state.restore()
            state.on_reset()

    return train


def _meet_anew() -> None:
    shutdown()
    try:
        init()
    except RendezvousError as error:
        raise RendezvousError(
            f"hvd.elastic.run goes on among the processes that the launcher has started, on a fixed list of hosts, and "
            f"not all of them came again: {error}. Processes that come and go aren't supported: start the script anew, "
            "and let it begin from a checkpoint"
        ) from error
