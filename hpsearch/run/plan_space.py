"""The part of a plan on conditional parameters and constraints."""

from __future__ import annotations

from hpsearch.schedulers import settings_named
from hpsearch.searchers import KNOWN, refusals
from hpsearch.sweep.sweep import Sweep
from hpsearch.tables.wording import counted

__all__ = ["space_lines"]

_DRAWS, _CALLED_DRAWS = 1_000, 100
"""Of which the share that keeps the constraints is told; fewer where a function is called for each."""


def space_lines(sweep: Sweep) -> list[str]:
    """Describe the space's size, the fraction of valid configurations, and the methods that can search it."""
    space = sweep.parameters
    if not space.conditional and not space.constraints:
        return []
    always = len(space.columns([]))
    if space.bounded:
        sometimes = len(space.parameters) - always
        told = f"{counted(len(space.parameters), 'parameter')}, {sometimes:,} of which don't always apply"
    else:
        told = f"{counted(always, 'parameter')} that always apply, and no end of others"
    size = space.size
    lines = [f"space        {told}" + ("" if size is None else f"; {counted(size, 'point')}")]
    if space.constraints:
        draws = _CALLED_DRAWS if space.calls else _DRAWS
        kept = space.count_valid(sweep.seed, draws)
        lines.append(f"             {kept:,} of {draws:,} draws keep the constraints; others are drawn again")
    refused = refusals(sweep.problem)
    for method, searcher in KNOWN.items():
        over = None if searcher.over is None else settings_named(searcher.over)
        if (
            over is not None
            and over.capabilities.forks
            and refused[method] is None
            and over.capabilities.unsupported_key(sweep.objective)
        ):
            refused[method] = "forks trials by one number"
    lines.append(f"methods      {', '.join(method for method, why in refused.items() if why is None)}")
    lines += [f"             not {method}: {why}" for method, why in refused.items() if why is not None]
    return lines
