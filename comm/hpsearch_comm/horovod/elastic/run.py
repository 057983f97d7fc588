"""Restarts a training function from its last commit after a failed collective."""

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
from hpsearch_comm.horovod.lifetime import init, is_elastic, set_done, shutdown
from hpsearch_comm.horovod.objects import allgather_object

MOST_FAILURES = 3
"""Failures in sequence, without a commit or the loss of a rank in between, after which training ends."""

_numbers = itertools.count(1)
"""Numbers of the calls of decorated functions."""
_log = logging.getLogger(__name__)
_T = TypeVar("_T")


def run(func: Callable[..., _T]) -> Callable[..., _T]:
    """Make a function continue after HorovodInternalError: `@hvd.elastic.run` before `def train(state): ...`.

    The function starts with the state of rank 0 on all ranks. When it raises HorovodInternalError, its ranks leave the
    job, form a new job, restore their last commits, and call the function again. The processes stay the same: dead
    processes are not restarted, and no new ones join. If the launcher continues without dead ranks (`--min-np`), the
    new job has the remaining ranks, renumbered.

    Args:
        func: The function. Its first argument is the state, and it must resume from this state.

    Raises:
        HorovodInternalError: The function failed three times without a commit or the loss of a rank in between.
        UsageError: Ranks are in different calls of decorated functions: some had already returned when a collective
            failed, or were restarted.
        RendezvousError: A process didn't join the new job because it has died or ended, and the launcher doesn't
            continue without it. The error names its rank.
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
                # The loss of a rank is not counted as a failure of the training.
                failures = 0 if size() < ranks else failures + 1 if commits == state.commits else 1
                commits, ranks = state.commits, size()
                if failures == MOST_FAILURES:
                    raise
                anew = True

    return train


def _check_together(number: int, anew: bool) -> None:
    """Check that all ranks are in the same call of a decorated function: a call can resume only from its own state."""
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
