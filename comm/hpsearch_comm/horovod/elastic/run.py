"""Runs a training again from its last commit after a collective has failed."""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Callable
from typing import Any, TypeVar

from hpsearch_comm.errors import RendezvousError, UsageError
from hpsearch_comm.horovod.elastic.state import State
from hpsearch_comm.horovod.errors import HorovodInternalError, MissingError
from hpsearch_comm.horovod.job import size
from hpsearch_comm.horovod.lifetime import init, shutdown
from hpsearch_comm.horovod.meeting import is_elastic, set_done
from hpsearch_comm.horovod.objects import allgather_object

MOST_FAILURES = 3
"""Failures of as many ranks without a commit between them: a training that can't get further fails each time."""

_numbers = itertools.count(1)
"""Of the calls of functions that may go on."""
_log = logging.getLogger(__name__)
_T = TypeVar("_T")


def run(func: Callable[..., _T]) -> Callable[..., _T]:
    """Make a function continue after HorovodInternalError: `@hvd.elastic.run` before `def train(state): ...`.

    The function starts with the state of rank 0 on all ranks. When it ends with HorovodInternalError, its ranks leave
    the job, restore their last commits, meet in a new job, and call it again. They are the processes that the launcher
    has started: a dead one doesn't come back, and none joins later. If the launcher continues without dead ranks
    (`--min-np`), the others meet without them and are renumbered.

    Args:
        func: Takes the state and other arguments. It starts where the state says.

    Raises:
        HorovodInternalError: It failed three times without a commit or the loss of a rank in between.
        UsageError: Ranks are in different calls of such functions, as some had returned when a collective failed, or
            were started again.
        RendezvousError: A process didn't come to the new job, as it has died or ended, and the launcher doesn't
            continue without it; names its rank.
    """

    @functools.wraps(func)
    def train(state: State, *args: Any, **kwargs: Any) -> _T:
        failures, commits, ranks = 0, state.commits, size()
        anew, number = False, next(_numbers)
        set_done(False)
        while True:
            try:
                if anew:
                    state.restore()
                    state.on_reset()
                _check_together(number, anew)
                state.sync()
                result = func(state, *args, **kwargs)
                set_done()
                return result
            except MissingError:
                raise
            except HorovodInternalError as error:
                _log.warning("going on from the last commit, as a collective has failed: %s", error)
                _meet_anew()
                # That a rank was lost is no fault of the training's.
                failures = 0 if size() < ranks else failures + 1 if commits == state.commits else 1
                commits, ranks = state.commits, size()
                if failures == MOST_FAILURES:
                    raise
                anew = True

    return train


def _check_together(number: int, anew: bool) -> None:
    """Check that all ranks are in the same call: a call can continue only from its own state."""
    calls = allgather_object(f"call {number}{' again' if anew else ''}", "elastic_run")
    if len(set(calls)) > 1:
        raise UsageError(
            f"the ranks of hvd.elastic.run must be in the same call of it, are in {', '.join(calls)}, by rank: some "
            "had ended the call whose last collective failed on others, or are new processes, that a program between "
            "the launcher and them has started. Start the script anew, and let it begin from a checkpoint"
        )


def _meet_anew() -> None:
    shutdown()
    try:
        init()
    except RendezvousError as error:
        if is_elastic():
            raise
        raise RendezvousError(
            "hvd.elastic.run continues with the processes that the launcher has started, and not all of them came "
            f"back: {error}. To continue without ranks that die, start them with `python -m hpsearch_comm.launch "
            "--min-np N`; or start the script anew, and let it begin from a checkpoint"
        ) from error
