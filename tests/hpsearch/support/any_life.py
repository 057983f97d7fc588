"""A searcher that learns, driven without a sweep: whatever it may be told, in any order."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hpsearch.objective import Metric, Objective, OutcomeConstraint
from hpsearch.searchers import Observation, Problem, Search, Searcher, Suggestion, searcher_named
from hpsearch.space import Space
from hpsearch.trial import Failure, Params, Report, Trial

KINDS = ("one goal", "two goals", "constrained")
"""What problems may decide by: `loss`; that and a small `cost`; `loss` where the cost is at most 0.5."""

VALUES = (0.5, 1.0, 1.0, 2.0, -3.0, 1e200, -1e300, math.nan, math.inf, -math.inf)


def problem_of(space: Space, seed: int = 0, goal: str = "minimize", kind: str = "one goal", **search: Any) -> Problem:
    loss = Metric("loss", goal)  # type: ignore[arg-type]
    metric = (loss, Metric("cost")) if kind == "two goals" else loss
    constraints = (OutcomeConstraint.parse("cost <= 0.5"),) if kind == "constrained" else ()
    return Problem(space, Objective(metric, constraints), seed, Search(**search))


@dataclass
class Asking:
    """Asks for suggestions, starts them, and lets anything become of them.

    Args:
        method: The searcher's.
        problem: What it searches.
        seed: Of what becomes of the trials.
        trouble: How likely a trial fails, is taken back, dropped, or says nothing valid.
        value: What each trial gives, where nothing else may become of it.
    """

    method: str
    problem: Problem
    seed: int = 0
    trouble: float = 0.5
    value: Callable[[Params], float | Mapping[str, float]] | None = None
    suggestions: list[Suggestion | None] = field(default_factory=list)
    calls: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.searcher: Searcher = searcher_named(self.method).build(self.problem)
        self.open: dict[int, tuple[Trial, int]] = {}
        self.asleep: list[Trial] = []

    def tell(self, method: str, *arguments: Any) -> None:
        self.calls.append((method, arguments))
        getattr(self.searcher, method)(*arguments)

    def run(self, count: int) -> list[Suggestion | None]:
        for number in range(count):
            self.calls.append(("suggest", (number,)))
            suggestion = self.searcher.suggest(number)
            self.suggestions.append(suggestion)
            if suggestion is None:
                break
            trial = Trial(number, suggestion.params, number, suggestion.origin)
            self.tell("started", trial)
            self.open[number] = trial, 0
            while self.open and self.chance.random() < 0.6:
                self.happen()
        return self.suggestions

    def happen(self) -> None:
        number = self.chance.choice(list(self.open))
        trial, at = self.open[number]
        if self.value is not None:
            value = self.value(trial.params)
            report = Report(number, 1, value if isinstance(value, Mapping) else {"loss": value}, 0.1)
            self.tell("observe", Observation(trial, 1, 1, [report], True))
            del self.open[number]
            return
        reports = [Report(number, i, self.metrics(), 0.1) for i in (at + 1, at + 2)]
        kind = (
            self.chance.choice(["failed", "reverted", "dropped", "saved"])
            if self.chance.random() < self.trouble
            else ""
        )
        if kind == "dropped":
            self.tell("dropped", trial)
            self.open[number] = trial, 0
        elif kind == "reverted":
            back = self.chance.randint(0, at)
            self.tell("reverted", trial, back)
            self.open[number] = trial, back
        elif kind == "saved":
            self.tell("observe", Observation(trial, at + 1, 2 + at // 2 * 2, reports[:1], False))
            self.open[number] = trial, at + 1
        else:
            failure = Failure("raised", "no", "") if kind else None
            until = at + 2 if at % 2 == 0 else at + 1
            self.tell("observe", Observation(trial, until, until, reports[: until - at], True, failure))
            if failure or self.chance.random() < 0.7:
                del self.open[number]
            else:
                self.open[number] = trial, until

    def metrics(self) -> dict[str, float]:
        names = self.problem.objective.names
        if self.chance.random() >= self.trouble:
            return {name: self.chance.random() for name in names}
        if self.chance.random() < 0.8:
            return {name: self.chance.choice(VALUES) for name in names}
        return {"other": 1.0, **dict.fromkeys(names[1:], 1.0)}

    def repeated(self) -> list[Suggestion | None]:
        """Make all calls again, to another searcher; return what it suggests."""
        other = searcher_named(self.method).build(self.problem)
        return [
            found for name, arguments in self.calls for found in [getattr(other, name)(*arguments)] if name == "suggest"
        ]
