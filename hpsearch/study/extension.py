"""Return a study more to do: what may change of a sweep that has begun."""

from __future__ import annotations

from dataclasses import replace

from hpsearch.errors import SweepError
from hpsearch.events import Extended
from hpsearch.study.build import build_scheduler
from hpsearch.sweep.sweep import Sweep

__all__ = ["extended", "extension"]


def extension(stored: Sweep, asked: Sweep) -> Extended | None:
    """Say by what `asked` extends a study's sweep; None when it asks for nothing more.

    Raises:
        SweepError: It differs in anything else, or asks for less; the text lists the differences.
    """
    before, after = stored.early_terminate, asked.early_terminate
    alike = before is not None and type(after) is type(before)
    if alike and after and before:
        asked = replace(asked, early_terminate=after.as_stored(before), read_back=True)
    more = Extended(
        run_cap=asked.run_cap if _raises_run_cap(stored, asked) else None,
        settings=dict(after.raised(before, stored.run_cap)) if alike and after and before else {},
    )
    left = extended(stored, more).difference(asked)
    if left:
        raisable = [f"`early_terminate.{name}`" for name in (before.raisable if before is not None else ())]
        raise SweepError(
            f"the sweep must be the study's own, or extend it by more of {' or '.join(['`run_cap`', *raisable])}; "
            "it differs in\n  " + "\n  ".join(left) + "\nrun it in a directory of its own, or undo these"
        )
    if more == Extended(None):
        return None
    try:
        build_scheduler(stored).extend(more.run_cap, more.settings)
    except ValueError as error:
        raise SweepError(f"a sweep can only be extended: {error}") from None
    return more


def extended(sweep: Sweep, more: Extended) -> Sweep:
    """Return the sweep with more to do."""
    if more.run_cap is not None:
        sweep = replace(sweep, run_cap=more.run_cap, read_back=True)
    if more.settings and sweep.early_terminate is not None:
        early = sweep.early_terminate.with_settings(more.settings)
        sweep = replace(sweep, early_terminate=early, read_back=True)
    return sweep


def _raises_run_cap(stored: Sweep, asked: Sweep) -> bool:
    if asked.run_cap is None:
        return False
    if stored.run_cap is None:
        # One round of brackets becomes as many as fit; the scheduler says whether that is more. A whole
        # grid can't become more.
        return stored.early_terminate is not None
    return asked.run_cap > stored.run_cap
