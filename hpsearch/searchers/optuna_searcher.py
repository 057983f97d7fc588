"""What searchers through Optuna share: a study in memory that mirrors what the sweep's journal tells."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from hpsearch.checks import InvalidKey, shown
from hpsearch.searchers.base import Observation, Past, Problem, Searcher, Suggestion
from hpsearch.searchers.history import Evidence, History
from hpsearch.searchers.optuna_space import OptunaSpace
from hpsearch.searchers.tried import Tried
from hpsearch.seeds import suggestion_seed
from hpsearch.trial import Params, Report, Trial, Value

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler
    from optuna.storages import InMemoryStorage
    from optuna.study import Study
    from optuna.trial import FrozenTrial

__all__ = ["REDRAWS", "OptunaSearcher", "quiet"]

REDRAWS = 10
"""Suggestions of points that were tried already, before an untried one is drawn."""


class OptunaSearcher(Searcher):
    """Suggests by one of Optuna's samplers, made anew for each suggestion.

    So a suggestion follows from the seed, its number, and what was observed, in the order of the trials: a sampler
    seeded by (seed, number) sees a study with each trial that got far enough (see `History`) as complete and each that
    is under way as running. Failed trials are the worst that there are. A point that was tried already isn't suggested
    again: the sampler is asked anew, under another seed, and in the end an untried point is drawn. Trials of other
    searches that it begins with stand first, as complete; each that
    the model sees saves one of the first draws.
    """

    learns: ClassVar[bool] = True
    remembers: ClassVar[bool] = False
    recalls: ClassVar[bool] = True
    startup: ClassVar[int] = 10
    """Trials that are drawn first, where the sweep doesn't say."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._space = OptunaSpace(problem.space)
        self._history = History(problem.objective)
        self._tried = Tried(problem.space)
        self._trials: dict[int, tuple[float | None, FrozenTrial]] = {}
        """As Optuna has them, by number, with the values that they have there."""
        self._past = 0
        """Trials of other searches, whose numbers are those below 0."""
        self._recalled = 0
        """Those of them that the model sees at first."""

    @classmethod
    def build(cls, problem: Problem) -> Searcher:
        """Build it."""
        return cls(problem)

    @classmethod
    def check(cls, problem: Problem) -> None:
        """Check that there is something to search, and the sampler's options."""
        if not OptunaSpace(problem.space).dimensions:
            raise InvalidKey(("parameters",), "must hold a parameter that isn't constant, or there is nothing to learn")
        try:
            cls(problem)._sampler(0)
            if problem.settings.options:
                cls(problem)._rehearse()
        except Exception as error:
            given = ", ".join(f"{name}: {shown(value)}" for name, value in (problem.settings.options or {}).items())
            problem_text = f"must be arguments that Optuna's sampler of {cls.kind} takes, got {given or None}: {error}"
            raise InvalidKey(("search", "options"), problem_text) from error

    def _rehearse(self) -> None:
        """Make a suggestion after two trials: samplers take options of any type, and fail by them later."""
        for number in range(2):
            trial = Trial(number, self._problem.space.draw(self._problem.seed, number), 0, "random")
            self.started(trial)
            report = Report(number, 1, {self._problem.objective.metric.name: float(number)}, 0.0)
            self.observe(Observation(trial, 1, 1, (report,), True))
        self._ask(list(self._mirrored().values()), 0)

    @property
    def draws_first(self) -> int:
        """Those of the sweep, or as many as the method has; fewer by the trials that it began with."""
        given = self._problem.settings.startup
        return max((self.startup if given is None else given) - self._recalled, 0)

    @property
    def size(self) -> None:
        """There is no end of suggestions, unless every point of a finite space was tried."""
        return None

    def suggest(self, number: int) -> Suggestion | None:
        """Give a point that wasn't tried yet; None where none is left."""
        study = list(self._mirrored().values())
        if study:
            for attempt in range(REDRAWS):
                params = self._ask(study, suggestion_seed(self._problem.seed, number, attempt))
                if params not in self._tried:
                    return Suggestion(params, self.origin)
        drawn = self._tried.draw(self._problem.seed, number)
        return None if drawn is None else Suggestion(drawn, "random")

    def recall(self, past: Sequence[Past]) -> None:
        """Take the trials of other searches."""
        self._history.recall(past)
        self._past = len(past)
        self._recalled = len(self._history.evidence())

    def started(self, trial: Trial) -> None:
        """Take a new trial."""
        self._history.started(trial)
        self._tried.add(trial.params)

    def observe(self, observation: Observation) -> None:
        """Learn from what a trial gave."""
        self._history.observe(observation)

    def reverted(self, trial: Trial, iteration: int) -> None:
        """Forget what a trial reported after an iteration."""
        self._history.reverted(trial, iteration)

    def dropped(self, trial: Trial) -> None:
        """Forget all that a trial reported."""
        self._history.dropped(trial)

    @property
    def origin(self) -> str:
        """What its suggestions are called."""
        return self.kind

    def _sampler(self, seed: int) -> BaseSampler:
        """Make the sampler of one suggestion.

        Raises:
            TypeError, ValueError: The options aren't its.
        """
        raise NotImplementedError

    @property
    def _options(self) -> Mapping[str, Any]:
        return self._problem.settings.options or {}

    def _mirrored(self) -> dict[int, FrozenTrial]:
        """Give the trials that the sampler sees, by number; none where nothing is known."""
        evidence = self._history.evidence()
        finite = [known.value for known in evidence if known.value is not None and math.isfinite(known.value)]
        if not finite:
            return {}
        low, high = min(finite), max(finite)  # no model is fitted to infinities
        trials = {
            known.trial: self._mirror(known, None if known.value is None else min(max(known.value, low), high))
            for known in evidence
        }
        return {number: trial for number, trial in trials.items() if trial is not None}

    def _mirror(self, known: Evidence, value: float | None) -> FrozenTrial | None:
        """Give a trial as Optuna has it; None where it holds a value that is never drawn."""
        from hpsearch.searchers.optuna_mirror import mirrored

        kept = self._trials.get(known.trial)
        if kept is None or kept[0] != value:
            point = self._space.encode(known.params)
            if point is None:
                return None
            made = mirrored(point, value, self._space.distributions, self._attributes(known.trial))
            kept = self._trials[known.trial] = value, made
        return kept[1]

    def _attributes(self, trial: int) -> dict[str, Any]:
        """Give what the sampler wrote to a trial."""
        return {}

    def _ask(self, trials: list[FrozenTrial], seed: int) -> dict[str, Value]:
        study, storage = self._study(seed)
        with quiet():
            study.add_trials(trials)
            point = study.ask(self._space.distributions).params
        params = self._space.decode(point)
        self._asked(params, study, storage)
        return params

    def _study(self, seed: int) -> tuple[Study, InMemoryStorage]:
        import optuna

        storage = optuna.storages.InMemoryStorage()
        direction = self._problem.objective.metric.goal
        with quiet():
            return optuna.create_study(storage=storage, direction=direction, sampler=self._sampler(seed)), storage

    def _asked(self, params: Params, study: Study, storage: InMemoryStorage) -> None:
        """Take what the sampler may have written."""


@contextmanager
def quiet() -> Iterator[None]:
    """Keep what Optuna says of experimental options, and of each study that it makes, from the user."""
    logger = logging.getLogger("optuna.storages._in_memory")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
