"""Give a study more to do: what may change of a sweep that has begun."""

from __future__ import annotations

from dataclasses import replace

from hpsearch.build import build_scheduler
from hpsearch.errors import SweepError
from hpsearch.events import Extended
from hpsearch.sweep import Hyperband, Sweep

__all__ = ["extended", "extension"]


def extension(stored: Sweep, asked: Sweep) -> Extended | None:
    """Say by what `asked` extends a study's sweep; None when it asks for nothing more.

    Raises:
        SweepError: It differs in anything else, or asks for less; the text lists the differences.
    """
    more = Extended(
        run_cap=asked.run_cap if _raises_run_cap(stored, asked) else None,
        brackets=_brackets(asked) if _raises_brackets(stored, asked) else None,
    )
    left = extended(stored, more).difference(asked)
    if left:
        raise SweepError(
            "the sweep must be the study's own, or extend it by a larger run_cap or more "
            "early_terminate.brackets; it differs in\n  "
            + "\n  ".join(left)
            + "\nrun it in a directory of its own, or undo these"
        )
    if more == Extended(None, None):
        return None
    try:
        build_scheduler(stored).extend(more.run_cap, more.brackets)
    except ValueError as error:
        raise SweepError(f"a sweep can only be extended: {error}") from None
    return more


def extended(sweep: Sweep, more: Extended) -> Sweep:
    """Give the sweep with more to do."""
    if more.run_cap is not None:
        sweep = replace(sweep, run_cap=more.run_cap)
    if more.brackets is not None and isinstance(sweep.early_terminate, Hyperband):
        sweep = replace(sweep, early_terminate=replace(sweep.early_terminate, brackets=more.brackets))
    return sweep


def _raises_run_cap(stored: Sweep, asked: Sweep) -> bool:
    if asked.run_cap is None:
        return False
    if stored.run_cap is None:
        # One round of brackets becomes as many as fit; the scheduler says whether that is more. A whole
        # grid can't become more.
        return stored.early_terminate is not None
    return asked.run_cap > stored.run_cap


def _raises_brackets(stored: Sweep, asked: Sweep) -> bool:
    wanted = _brackets(asked)
    if wanted is None or not isinstance(stored.early_terminate, Hyperband):
        return False
    if stored.early_terminate.brackets is not None:
        return wanted > stored.early_terminate.brackets
    # None is one round, or with a run_cap no bound at all.
    return stored.run_cap is None and wanted > stored.early_terminate.rungs


def _brackets(sweep: Sweep) -> int | None:
    return sweep.early_terminate.brackets if isinstance(sweep.early_terminate, Hyperband) else None
