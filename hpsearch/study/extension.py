"""Extension of a sweep that has begun: more trials or brackets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hpsearch.errors import SweepError
from hpsearch.events import Extended
from hpsearch.study.build import build_scheduler
from hpsearch.sweep.sweep import Sweep


def extension(stored: Sweep, requested: Sweep) -> Extended | None:
    """Return the extension from a study's sweep to `requested`; None if `requested` has nothing more to do.

    Raises:
        SweepError: `requested` differs in anything else, or has less to do; the message lists the differences.
    """
    before, after = stored.early_terminate, requested.early_terminate
    settings: Mapping[str, object] = {}
    if before is not None and after is not None and type(after) is type(before):
        requested = replace(requested, early_terminate=after.as_stored(before), read_back=True)
        settings = dict(after.raised(before, stored.run_cap))
    more = Extended(requested.run_cap if _raises_run_cap(stored, requested) else None, settings)
    differences = extended(stored, more).difference(requested)
    if differences:
        raisable = [f"`early_terminate.{name}`" for name in (before.raisable if before is not None else ())]
        raise SweepError(
            f"the sweep must be the study's own, or extend it by more of {' or '.join(['`run_cap`', *raisable])}; "
            "it differs in\n  "
            + "\n  ".join(differences)
            + "\nrun it in a directory of its own, or undo these"
            + ("; hpsearch change changes parameters" if any(map(_is_of_space, differences)) else "")
        )
    if more == Extended(None):
        return None
    try:
        build_scheduler(stored).extend(more.run_cap, more.settings)
    except ValueError as error:
        raise SweepError(f"a sweep can only be extended: {error}") from None
    return more


def extended(sweep: Sweep, more: Extended) -> Sweep:
    """Return the sweep with an extension applied."""
    if more.run_cap is not None:
        sweep = replace(sweep, run_cap=more.run_cap, read_back=True)
    if more.settings and sweep.early_terminate is not None:
        early = sweep.early_terminate.with_settings(more.settings)
        sweep = replace(sweep, early_terminate=early, read_back=True)
    return sweep


def _is_of_space(difference: str) -> bool:
    return difference.startswith(("parameters", "constraints"))


def _raises_run_cap(stored: Sweep, requested: Sweep) -> bool:
    if requested.run_cap is None:
        return False
    if stored.run_cap is None:
        # Without `run_cap`, one round of brackets runs; with it, as many brackets as fit. The scheduler checks that
        # these are more. A full grid can't be extended.
        return stored.early_terminate is not None
    return requested.run_cap > stored.run_cap
