"""ASHA: successive halving that waits for nobody.

Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from hpsearch.config.checks import InvalidKey
from hpsearch.config.settings import Count
from hpsearch.decision import Decision
from hpsearch.objective import Objective
from hpsearch.schedulers.base import NewTrial, Outcome, Run, Scheduler
from hpsearch.schedulers.brackets import hyperband_trials
from hpsearch.schedulers.early_terminate import SchedulerCapabilities
from hpsearch.schedulers.reasons import passed_over, ran, unopened
from hpsearch.schedulers.running_rung import running_rung
from hpsearch.schedulers.successive_halving import Halving

__all__ = ["ASHA", "AsynchronousHalving"]


@dataclass(frozen=True)
class ASHA(Halving):
    """Whoever is among the best 1/eta of those that have ended in a rung so far goes on as soon as a worker is free.

    Li et al., MLSys 2020, Algorithm 2.
    """

    kind: ClassVar[str] = "asha"
    capabilities: ClassVar[SchedulerCapabilities] = replace(Halving.capabilities, endless=True)

    brackets: Count = 1
    """Brackets that run in parallel, each beginning a rung later than the one before. New trials are divided among them
    as in Hyperband."""

    def check(self) -> None:
        """Check that each bracket has a rung."""
        super().check()
        if self.brackets > len(self.ends):
            problem = f"must be at most the number of rungs, which are {len(self.ends)}, got {self.brackets}"
            raise InvalidKey(("brackets",), problem)

    def scheduler(self, objective: Objective, run_cap: int | None) -> Scheduler:
        """Build the scheduler."""
        last = len(self.ends) - 1
        ends = [self.ends[s:] for s in range(self.brackets)]
        shares = [hyperband_trials(last - s, last, self.eta) for s in range(self.brackets)]
        return AsynchronousHalving(ends, shares, self.eta, objective, run_cap)

    def summary(self) -> str:
        """Say from where to where, and over how many brackets where there are several."""
        return super().summary() + (f", {self.brackets} brackets" if self.brackets > 1 else "")


class AsynchronousHalving(Scheduler):
    """Algorithm 2: asked for a job, promote the best that may be; where none may, begin a new trial in a lowest rung.

    May be promoted whoever is among the best floor(n / eta) of the n that have ended in a rung, and wasn't promoted
    yet. That is asked when a worker is free (`next`) and not when an outcome comes: who falls out of the best in
    between isn't promoted. So a promotion is no decision but a `Run`, and a trial that isn't promoted waits, until
    nothing runs, may be promoted or is to be created: then all that wait are stopped. They keep their places in their
    rungs, should the sweep be extended.

    Of several brackets each has its own rungs, and the rung that runs the furthest comes first.

    With several goals a rung is ranked by fronts, and within a front by crowding distance: the rule that Schmucker et
    al., "Multi-objective Asynchronous Successive Halving", 2021, arXiv:2106.12639, call NSGA-II, after Deb et al. (see
    `Fronts`). Theirs are also epsilon-net in place of crowding, and random scalarizations.

    Failed trials don't count in a rung. NaN counts, ranks last, and is never promoted: a number may still come. A trial
    that ended by itself ranks like any other. In the last rung each trial is complete as it ends.

    A call costs O(log n) comparisons in the number of trials in a rung; with several goals O(n), or more.

    Args:
        ends: Of each bracket, the iterations that its rungs run until.
        shares: In what proportion new trials are dealt out among the brackets.
        eta: 1 of `eta` goes on.
        objective: Ranks the trials of a rung.
        run_cap: How many trials may be created in all.
    """

    def __init__(
        self,
        ends: Sequence[Sequence[int]],
        shares: Sequence[int],
        eta: int,
        objective: Objective,
        run_cap: int | None = None,
    ) -> None:
        super().__init__(run_cap, ends)
        self._until = ends
        self._shares = shares
        self._objective = objective
        self._judged = [[running_rung(eta, objective) for _ in bracket[:-1]] for bracket in ends]
        """Of each bracket, all rungs but the last."""
        places = [(bracket, rung) for bracket, rungs in enumerate(self._judged) for rung in range(len(rungs))]
        self._promoting = sorted(places, key=lambda place: (-ends[place[0]][place[1] + 1], place[0]))
        """(bracket, rung) of all rungs that trials may go on from, what runs the furthest first."""

    def upcoming(self) -> Iterator[NewTrial | Run]:
        """Give the promotions, from the highest rung to the lowest and the best first, and then the new trials."""
        yield from self._promotions()
        dealt = [self._started[bracket, 0] for bracket in range(len(self._until))]
        for number in self.new_numbers():
            bracket = self._bracket_of(number, dealt)
            dealt[bracket] += 1
            yield NewTrial(number, self._until[bracket][0], bracket)

    def started(self, answer: NewTrial | Run) -> None:
        """Take the first of `upcoming` as started."""
        if isinstance(answer, Run):
            self._judged[answer.bracket][answer.rung - 1].promote()

    def ready(self) -> int:
        """Count the promotions and the trials that may still be created, which are 1 where they have no bound."""
        return sum(1 for _ in self._promotions()) + self._to_create()

    def observe(self, outcome: Outcome) -> Sequence[Decision]:
        """Take a trial's outcome: it is complete at `max_iter`, and waits elsewhere; at the very end all are stopped.

        Raises:
            ValueError: The trial isn't running.
        """
        bracket, rung = self.end_segment(outcome)
        if outcome.value is None:
            return self._stop_at_the_end()
        if rung < len(self._judged[bracket]):
            self._judge(bracket, rung, outcome)
            return self._stop_at_the_end()
        complete = Decision(outcome.trial, "complete", f"last rung: {ran(outcome, self._until[bracket][rung])}")
        return [complete, *self._stop_at_the_end()]

    def prune(self, trial: int) -> Sequence[Decision]:
        """Take a trial for one that has failed: it counts no more in the rung where it waits.

        Raises:
            ValueError: It neither runs nor waits.
        """
        if trial in self._running:
            return super().prune(trial)
        if not any(judged.remove(trial) for rungs in self._judged for judged in rungs):
            raise ValueError(f"only a trial that runs or waits can be pruned, not trial {trial}")
        return self._stop_at_the_end()

    def exhausted(self) -> Sequence[Decision]:
        """Take the last `NewTrial` back and ask for no more; stop what waits if that was the end.

        Raises:
            ValueError: The newest trial isn't in its first segment, so that there is no answer to take back.
        """
        super().exhausted()
        return self._stop_at_the_end()

    def total(self) -> None:
        """Give none: how many are promoted depends on the order in which they end."""
        return None

    def _judge(self, bracket: int, rung: int, outcome: Outcome) -> None:
        """Take a trial that has ended in a rung before the last."""
        assert outcome.value is not None, "failed trials don't count in a rung"
        self._judged[bracket][rung].add(outcome.value, outcome.trial)

    def _promotions(self) -> Iterator[Run]:
        for bracket, rung in self._promoting:
            for trial in self._judged[bracket][rung].promotable():
                yield Run(trial, self._until[bracket][rung + 1], bracket, rung + 1)

    def _bracket_of(self, number: int, dealt: Sequence[int]) -> int:
        """Give the bracket that most lacks trials, of equals the first; `dealt` are those that each has."""
        whole = sum(self._shares)
        return min(range(len(dealt)), key=lambda bracket: dealt[bracket] * whole - self._shares[bracket] * (number + 1))

    def _stop_at_the_end(self) -> Sequence[Decision]:
        """Stop all that wait where nothing runs, may go on or is to be created."""
        if self._running or self.ready():
            return ()
        return [
            Decision(
                trial,
                "stop",
                passed_over(rung, place, size, judged.top, nan)
                if (bracket, rung) in self._promoting
                else unopened(rung, place, size, nan),
            )
            for bracket, rungs in enumerate(self._judged)
            for rung, judged in enumerate(rungs)
            for trial, place, size, nan in judged.stop()
        ]
