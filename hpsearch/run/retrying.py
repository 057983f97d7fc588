"""Select the failed trials that a user retries."""

from __future__ import annotations

from collections.abc import Sequence

from hpsearch.errors import SweepError
from hpsearch.events import Retried
from hpsearch.study.state import SweepState
from hpsearch.sweep.sweep import Sweep

__all__ = ["flag", "named", "retries", "room_by"]

_MOST_NAMED = 20


def retries(sweep_state: SweepState, requested: Sequence[int], where: str | None = None) -> list[Retried]:
    """Return the events that retry failed trials.

    Args:
        sweep_state: The sweep's state, with its extensions.
        requested: Numbers of trials; empty: all failed ones that were not retried.
        where: The study's directory, quoted for a shell, if room is made by another command; None: by an option of
            `hpsearch retry`.

    Raises:
        SweepError: One of them hasn't failed, or there is no room for the new trials that they need.
    """
    failed = sweep_state.failed()
    if not failed:
        raise SweepError("no trial has failed that was not retried; there is nothing to retry")
    wrong = sorted(set(requested) - set(failed))
    if wrong:
        raise SweepError(
            f"only a trial that has failed and was not retried can be retried, got {named(wrong)}; "
            f"there {'is' if len(failed) == 1 else 'are'} {named(failed)}"
        )
    chosen = sorted(set(requested)) or failed
    anew = [trial for trial in chosen if not sweep_state.may_run_again(trial)]
    room = sweep_state.room()
    if room is not None and len(anew) > room:
        raise SweepError(
            f"the rungs of {named(anew)} are decided, so that each would run as a new trial, and the sweep creates "
            f"only {room} more; {_extension(sweep_state, len(anew) - room, where)}name other trials"
        )
    return [Retried(trial) for trial in chosen]


def room_by(total: int | None, sweep: Sweep, missing: int) -> tuple[str, int] | None:
    """Return the key of a sweep that makes room for more trials, and its value; None where none does.

    Args:
        total: Trials that the sweep creates now; None: unbounded or unknown.
        sweep: The current sweep.
        missing: Number of additional trials.
    """
    early = sweep.early_terminate
    for name in early.raisable if early is not None else ():
        if (bound := getattr(early, name)) is not None:
            return f"early_terminate.{name}", bound + 1
    return None if total is None else ("run_cap", total + missing)


def _extension(sweep_state: SweepState, missing: int, where: str | None) -> str:
    """Describe how to make room, if that is possible."""
    total = sweep_state.total()
    by = room_by(None if total is None else total[0], sweep_state.sweep, missing)
    if by is None:
        return ""
    key, value = by
    if where is None:
        return f"add --set {key}={value}{' (or more)' if key != 'run_cap' else ''}, or "
    return f"make room with: hpsearch extend {where} {flag(key)} {value}; or "


def flag(key: str) -> str:
    """Return the word of `hpsearch extend` that raises a key."""
    return f"--{key.rpartition('.')[2].replace('_', '-')}"


def named(trials: Sequence[int]) -> str:
    """Format the numbers of trials, abbreviated if there are many."""
    names = ", ".join(str(trial) for trial in trials[:_MOST_NAMED])
    more = f" and {len(trials) - _MOST_NAMED} more" if len(trials) > _MOST_NAMED else ""
    return f"{'trial' if len(trials) == 1 else 'trials'} {names}{more}"
