"""How far a bracket has come that was begun."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hpsearch.schedulers.base import Outcome, RungView
from hpsearch.schedulers.brackets import Bracket, Rung

__all__ = ["OpenBracket"]


@dataclass(slots=True, eq=False)
class OpenBracket:
    """A bracket that was begun.

    Its trials are all in one rung: a rung starts when the one before it has ended.
    """

    index: int
    """Counts from 0 over all rounds."""
    plan: Bracket
    position: int = 0
    """The rung that its trials are in."""
    started: int = 0
    """Trials that were started in this rung."""
    finished: int = 0
    """Trials whose outcome in this rung is known."""
    unfilled: Bracket | None = None
    """The plan before all trials of a rung had failed, which left the next ones empty; None where none did."""
    undecided: list[Outcome] = field(default_factory=list)
    """Those of them on which nothing was decided yet."""

    @property
    def rung(self) -> Rung:
        """The rung that its trials are in."""
        return self.plan.rungs[self.position]

    @property
    def in_last_rung(self) -> bool:
        """Whether no rung follows."""
        return self.position == len(self.plan.rungs) - 1

    @property
    def ended(self) -> bool:
        """Whether nothing will run here any more."""
        return self.in_last_rung and self.finished == self.rung.size

    def go_to_next_rung(self) -> None:
        """Begin the next rung, with none of its trials started."""
        self.position += 1
        self.started = self.finished = 0

    def views(self) -> Sequence[RungView]:
        """Show its rungs, the shortest first."""
        views = []
        for position, rung in enumerate(self.plan.rungs):
            if position < self.position:
                started = finished = rung.size
            elif position == self.position:
                started, finished = self.started, self.finished
            else:
                started = finished = 0
            views.append(RungView(self.index, position, rung.until, rung.size, started, finished))
        return tuple(views)
