"""Racing: configurations are repeated block by block, and those that are worse than the best are eliminated."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hpsearch.decision import Decision
from hpsearch.objective import Objective, is_valid, values_of
from hpsearch.objective.repeats import FIRST_TEST, SIGNIFICANT, mean, paired_p_value
from hpsearch.schedulers.base import NewTrial, Outcome, Run
from hpsearch.schedulers.base import ran as how_far
from hpsearch.schedulers.full import FullLength


class Race(FullLength):
    """Runs repeat 0 of all configurations, then repeat 1 of all, and so on, to the last repeat of those that are left.

    When a block is complete, from the third on, each configuration is compared with the one that has the best mean by a
    paired t-test, and eliminated if its p-value is below 0.05: `testType = "t-test"` of irace (López-Ibáñez et al.,
    "The irace package", Operations Research Perspectives 3, 2016), without a correction for several tests. A
    configuration with a repeat that failed or reported NaN is eliminated, too. Trials of such a block wait for the
    decision, so that no decision depends on completion order. The last block is not followed by a decision.

    Args:
        objective: The only goal.
        repeats: Repeats of each configuration, more than `FIRST_TEST`.
        max_iter: Iterations of each trial; None: until the trainable returns.
        run_cap: Maximum number of trials, a multiple of `repeats`; None: as many configurations as the searcher has.
    """

    def __init__(self, objective: Objective, repeats: int, max_iter: int | None, run_cap: int | None) -> None:
        super().__init__(max_iter, run_cap, repeats)
        (self._goal,) = objective.goals
        self._size = None if run_cap is None else run_cap // repeats
        """Number of configurations; None until the searcher is exhausted."""
        self._left = list(range(self._size or 0))
        """The configurations that aren't eliminated, once their number is known."""
        self._open = FIRST_TEST
        """Number of blocks that may run."""
        self._block, self._index = 0, 0
        """The next trial's block, and its position there."""
        self._planned = run_cap
        """Number of trials if no more configurations are eliminated."""
        self._trials_of: list[list[int]] = []
        """The trials of each configuration, by repeat."""
        self._places: dict[int, tuple[int, int]] = {}
        """Trial to (configuration, repeat)."""
        self._values: dict[int, float | None] = {}
        """Value of each trial that ended, to be minimized; None if it has none."""
        self._waiting: dict[int, Outcome] = {}
        """Configurations to the outcome of their trial in the newest block, if a decision will follow."""

    def upcoming(self) -> Iterator[NewTrial | Run]:
        """Yield the trials of the open blocks that are still to be created."""
        for number, (configuration, repeat) in enumerate(self._to_create_next(), self._numbered):
            yield NewTrial(number, self._max_iter, configuration=configuration, repeat=repeat)

    def _to_create_next(self) -> Iterator[tuple[int, int]]:
        """Yield (configuration, repeat)."""
        block, index = self._block, self._index
        while block < self._open:
            members: Iterable[int] = itertools.count() if self._size is None else self._left
            yield from ((member, block) for member in itertools.islice(members, index, None))
            block, index = block + 1, 0

    def ready(self) -> int:
        """Return the number of trials that could start now; 1 if the number of configurations isn't known yet."""
        return 1 if self._size is None else sum(1 for _ in self._to_create_next())

    def started(self, answer: NewTrial | Run) -> None:
        """Update the state: the next trial was created."""
        assert isinstance(answer, NewTrial)
        assert answer.configuration is not None
        self._index = self._index + 1 if answer.repeat == self._block else 1
        self._block = answer.repeat
        if answer.repeat == 0:
            self._trials_of.append([])
        self._trials_of[answer.configuration].append(answer.number)
        self._places[answer.number] = answer.configuration, answer.repeat

    def exhausted(self) -> Sequence[Decision]:
        """Take back the last `NewTrial`: the race is among the configurations before it.

        Raises:
            ValueError: The newest trial isn't running.
        """
        decisions = super().exhausted()
        self._trials_of.pop()
        self._index -= 1
        self._size = len(self._trials_of)
        self._left = list(range(self._size))
        self._planned = self._size * self._repeats
        return decisions

    def extend(self, run_cap: int | None, settings: Mapping[str, Any]) -> None:
        """Refuse more configurations: they would lack the blocks that have run.

        Raises:
            ValueError: A bound is to be raised.
        """
        if run_cap is not None or settings:
            raise ValueError("a race compares all its configurations from its first block on, so it takes no more")

    def observe(self, outcome: Outcome) -> Sequence[Decision]:
        """Receive a trial's outcome; if that completes a block, return the decisions on all of its trials.

        Raises:
            ValueError: The trial isn't running.
        """
        self.end_segment(outcome)
        value = outcome.value
        self._values[outcome.trial] = self._goal.signed(values_of(value)[0]) if is_valid(value) else None
        configuration, repeat = self._places[outcome.trial]
        if value is None:
            return self._decided()
        if self._open < self._repeats and repeat == self._open - 1:
            self._waiting[configuration] = replace(outcome, reports=())
            return self._decided()
        return (Decision(outcome.trial, "complete", how_far(outcome, self._max_iter)), *self._decided())

    def prune(self, trial: int) -> Sequence[Decision]:
        """Treat a trial that a user ended as failed; it may wait for the decision on its block.

        Raises:
            ValueError: The trial neither runs nor waits.
        """
        configuration, _ = self._places[trial]
        waiting = self._waiting.get(configuration)
        if waiting is None or waiting.trial != trial:
            return super().prune(trial)
        del self._waiting[configuration]
        self._values[trial] = None
        return ()

    def may_withdraw(self, trial: int) -> bool:
        """Return whether a trial has failed, and its configuration isn't eliminated yet."""
        return super().may_withdraw(trial) and (self._size is None or self._places[trial][0] in self._left)

    def _decided(self) -> Sequence[Decision]:
        """Eliminate configurations and open the next block, if the open ones are complete."""
        if self.busy or self._open == self._repeats or next(self._to_create_next(), None) is not None:
            return ()
        reasons = self._eliminated()
        decisions = [
            Decision(
                outcome.trial,
                "complete",
                f"{how_far(outcome, self._max_iter)}; configuration {configuration} "
                + reasons.get(configuration, f"goes on after {self._open} repeats"),
            )
            for configuration, outcome in sorted(self._waiting.items())
        ]
        self._waiting.clear()
        self._left = [configuration for configuration in self._left if configuration not in reasons]
        if self._planned is not None:
            self._planned -= len(reasons) * (self._repeats - self._open)
        self._block, self._index = self._open, 0
        self._open += 1
        return decisions

    def _eliminated(self) -> dict[int, str]:
        """Return the configurations to eliminate, each with the reason."""
        reasons: dict[int, str] = {}
        values: dict[int, list[float]] = {}
        for entry in self._left:
            values[entry] = [value for trial in self._trials_of[entry] if (value := self._values[trial]) is not None]
            if len(values[entry]) < self._open:
                reasons[entry] = "is eliminated: a repeat has no value"
        means = {entry: mean(values[entry]) for entry in self._left if entry not in reasons}
        if not means:
            return reasons
        best = min(means, key=lambda entry: (math.isnan(means[entry]), means[entry], entry))
        for entry in means:
            p_value = paired_p_value(values[best], values[entry])
            if p_value < SIGNIFICANT:
                reasons[entry] = (
                    f"is eliminated after {self._open} repeats: mean {self._goal.signed(means[entry]):.6g}, "
                    f"configuration {best} has {self._goal.signed(means[best]):.6g} (paired t-test, p = {p_value:.2g})"
                )
        return reasons

    def _trials(self) -> int | None:
        return self._planned
