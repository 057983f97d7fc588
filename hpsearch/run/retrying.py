"""Which failed trials are to run again when the user says so."""

from __future__ import annotations

from collections.abc import Sequence

from hpsearch.errors import SweepError
from hpsearch.events import Retried
from hpsearch.study.state import StudyState
from hpsearch.sweep.sweep import Sweep

__all__ = ["retries"]

_MOST_NAMED = 20


def retries(study_state: StudyState, sweep: Sweep, asked: Sequence[int]) -> list[Retried]:
    """Give the events that let failed trials run again.

    Args:
        study_state: Where the sweep stands, with what it was extended by.
        sweep: As it is to be run.
        asked: Numbers of trials; none: all that have failed and were not retried.

    Raises:
        SweepError: One of them hasn't failed, or there is no room for the new trials that they need.
    """
    failed = study_state.failed()
    if not failed:
        raise SweepError("no trial has failed that was not retried; there is nothing to retry")
    wrong = sorted(set(asked) - set(failed))
    if wrong:
        raise SweepError(
            f"only a trial that has failed and was not retried can be retried, got {_named(wrong)}; "
            f"there {'is' if len(failed) == 1 else 'are'} {_named(failed)}"
        )
    chosen = sorted(set(asked)) or failed
    anew = [trial for trial in chosen if not study_state.may_run_again(trial)]
    room = study_state.room()
    if room is not None and len(anew) > room:
        raise SweepError(
            f"the rungs of {_named(anew)} are decided, so that each would run as a new trial, and the sweep creates "
            f"only {room} more; {_extension(study_state, sweep, len(anew) - room)}name other trials"
        )
    return [Retried(trial) for trial in chosen]


def _extension(study_state: StudyState, sweep: Sweep, missing: int) -> str:
    """Name the `--set` that makes room, where one does."""
    early = sweep.early_terminate
    for name in early.raisable if early is not None else ():
        if (bound := getattr(early, name)) is not None:
            return f"add --set early_terminate.{name}={bound + 1} (or more), or "
    total = study_state.total()
    return "" if total is None else f"add --set run_cap={total[0] + missing}, or "


def _named(trials: Sequence[int]) -> str:
    names = ", ".join(str(trial) for trial in trials[:_MOST_NAMED])
    more = f" and {len(trials) - _MOST_NAMED} more" if len(trials) > _MOST_NAMED else ""
    return f"{'trial' if len(trials) == 1 else 'trials'} {names}{more}"
