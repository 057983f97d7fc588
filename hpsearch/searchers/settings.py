"""What a sweep says under `search`: how a searcher that learns is asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from hpsearch.settings import AtLeast, Count, Settings

__all__ = ["Search"]


@dataclass(frozen=True)
class Search(Settings):
    """How a searcher that learns is asked."""

    ahead: bool = True
    """The next suggestion is made before it is needed, with what is known then; where none is ready when a worker is
    free, it takes a random point, whose origin is `stand_in`. `false`: a suggestion is made when a worker is free,
    which waits for it."""
    lag: Count | None = None
    """Suggestion n sees the results of the trials up to n - `lag`, whatever else has ended by then, and waits for
    these: the table is the same on any number of workers, of which no more than so many have new trials."""
    startup: Annotated[int, AtLeast(0)] | None = None
    """Trials that are drawn before the model is asked, points to try included; left out: as the method has it."""
    options: Mapping[str, Any] | None = None
    """Passed to Optuna's sampler by these names."""
