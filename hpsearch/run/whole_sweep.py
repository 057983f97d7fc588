"""A whole sweep as `search` is given it: what may stand beside it, and how a sweep file's mapping is read."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpsearch.errors import SweepError
from hpsearch.sweep.file import sweep_from_mapping
from hpsearch.sweep.sweep import Sweep
from hpsearch.sweep.wandb import wandb_notes

__all__ = ["check_whole", "read_whole"]


def check_whole(sweep: object, given: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """See that a whole sweep is one, and that nothing stands beside it that it has itself: only one would count.

    Args:
        sweep: What was given for one.
        given: The arguments that a sweep may be made of, by name; those of them that stand beside it.
        defaults: What they are where nobody gives them.

    Raises:
        SweepError: It isn't, or something does.
    """
    if not isinstance(sweep, Sweep | Mapping):
        how = ": read a file with load_sweep" if isinstance(sweep, str | Path) else ""
        raise SweepError(f"search: sweep must be a Sweep, or what a sweep file holds, got {sweep!r}{how}")
    own = [name for name in defaults if name != "name" or isinstance(sweep, Sweep)]
    beside = [name for name in own if given[name] != defaults[name] and (given[name] or defaults[name])]
    if beside:
        how = "dataclasses.replace(sweep, ...)" if isinstance(sweep, Sweep) else "{**sweep, ...}"
        raise SweepError(
            f"search: {' and '.join(beside)} must not stand beside a whole sweep, which has its own: put it there, as "
            f"with {how}, or leave it out"
        )


def read_whole(given: Mapping[str, Any], trainable: str, name: str, progress: bool) -> Sweep:
    """Read a sweep file's mapping; the trainable stands in place of the script that it may name."""
    own = {key: value for key, value in given.items() if key not in ("program", "command")}
    sweep = sweep_from_mapping({**own, "trainable": trainable}, name=name)
    for note in wandb_notes(own) if progress else ():
        print(f"note: {note}", file=sys.stderr)
    return sweep
