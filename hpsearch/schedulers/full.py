"""No early termination: each trial runs to its end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpsearch.decision import Decision
from hpsearch.schedulers.base import NewTrial, Outcome, Run, RungView, Scheduler, ran


class FullLength(Scheduler):
    """Runs every trial until the end of iteration `max_iter`.

    Args:
        max_iter: Last iteration of each trial; None: until the trainable returns.
        run_cap: Maximum number of trials; None: as many as the searcher suggests.
        repeats: Trials of each configuration, one after the other.
    """

    def __init__(self, max_iter: int | None, run_cap: int | None = None, repeats: int = 1) -> None:
        super().__init__(run_cap, [[max_iter]])
        self._max_iter, self._repeats = max_iter, repeats

    def upcoming(self) -> Iterator[NewTrial | Run]:
        """Yield the trials that are still to be created."""
        for number in self.new_numbers():
            if self._repeats == 1:
                yield NewTrial(number, self._max_iter)
            else:
                configuration, repeat = divmod(number, self._repeats)
                yield NewTrial(number, self._max_iter, configuration=configuration, repeat=repeat)

    def ready(self) -> int:
        """Return the number of trials that are still to be created; 1 if it has no bound."""
        return self._to_create()

    def observe(self, outcome: Outcome) -> Sequence[Decision]:
        """Receive a trial's outcome: the trial is complete, or it failed and there is no decision.

        Raises:
            ValueError: The trial isn't running.
        """
        self.end_segment(outcome)
        if outcome.value is None:
            return ()
        return (Decision(outcome.trial, "complete", ran(outcome, self._max_iter)),)

    def rungs(self) -> Sequence[RungView]:
        """Return a single rung with all trials; none before the first trial."""
        started, finished = self._started[0, 0], self._finished[0, 0]
        return (RungView(0, 0, self._max_iter, self._trials(), started, finished),) if started else ()

    def plan(self, bracket: int) -> Sequence[tuple[int | None, int | None]]:
        """Return (until, trials) of the single rung; empty before the first trial."""
        return ((self._max_iter, self._trials()),) if self._started[bracket, 0] else ()

    def total(self) -> tuple[int, int] | None:
        """Return (trials, iterations) of the whole sweep; None without `max_iter` or a bound on trials."""
        trials = self._trials()
        if trials is None or self._max_iter is None:
            return None
        return trials, trials * self._max_iter
