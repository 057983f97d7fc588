"""What searchers through Optuna share: an Optuna study in memory that mirrors the sweep."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from hpsearch.config.checks import InvalidKey, shown
from hpsearch.objective import Objective
from hpsearch.searchers.base import Observation, Problem, Suggestion, listed
from hpsearch.searchers.history import Evidence
from hpsearch.searchers.learning import REDRAWS, LearningSearcher
from hpsearch.searchers.optuna_space import OptunaSpace
from hpsearch.seeds import suggestion_seed
from hpsearch.space import Broken
from hpsearch.trial import Params, Report, Score, Trial, Value

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.storages import InMemoryStorage
    from optuna.study import Study
    from optuna.trial import FrozenTrial
    from optuna.trial import Trial as OptunaTrial

__all__ = ["OptunaSearcher", "check_optuna", "quiet"]


def check_optuna(method: str) -> None:
    """Check that Optuna is installed: a missing one isn't an error of the options.

    Raises:
        InvalidKey: It isn't.
    """
    try:
        import optuna.samplers  # noqa: F401
    except ImportError as error:
        problem = f"must be one that can run here, but {method} needs Optuna: {error}"
        raise InvalidKey(("method",), problem, "pip install optuna, or take evolution") from error


class OptunaSearcher(LearningSearcher):
    """Suggests by an Optuna sampler that is created for each suggestion.

    A sampler seeded by (seed, number) sees a study in which trials that ran long enough (see `History`) are complete
    and running trials are running. Failed trials have the worst value. Trials of other searches come first, as
    complete.
    """

    whole: ClassVar[bool] = True
    """The sampler only sees parameters that all configurations have; see `OptunaSpace`."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self._space = OptunaSpace(problem.space, self.whole)
        self._trials: dict[int, tuple[Score | None, FrozenTrial]] = {}
        """Scores and Optuna's trials, by number."""

    @classmethod
    def check(cls, problem: Problem) -> None:
        """Check that Optuna is installed, that there is something to search, and the sampler's options."""
        check_optuna(cls.kind)
        if cls.whole:
            listed(problem, cls.kind)
        if not OptunaSpace(problem.space).dimensions:
            raise InvalidKey(("parameters",), "must hold a parameter that isn't constant, or there is nothing to learn")
        try:
            cls(problem)._sampler(0)
            if problem.settings.options:
                cls(replace(problem, objective=Objective(problem.objective.goals[0])))._rehearse()
        except Exception as error:
            options = ", ".join(f"{name}: {shown(value)}" for name, value in (problem.settings.options or {}).items())
            problem_text = (
                f"must be arguments that Optuna's sampler of {cls.kind} takes, got {options or None}: {error}"
            )
            raise InvalidKey(("search", "options"), problem_text) from error
        try:
            if problem.objective.several:
                cls(problem)._rehearse()
        except Exception as error:
            advice = "take tpe, gp, nsga2 or evolution"
            raise InvalidKey(("metric",), f"must be one metric where method is {cls.kind}: {error}", advice) from error

    def _rehearse(self) -> None:
        """Make a suggestion after two trials: samplers accept options of any type, and fail later."""
        for number in range(2):
            trial = Trial(number, self.problem.space.draw(self.problem.seed, number), 0, "random")
            self.started(trial)
            report = Report(number, 1, dict.fromkeys(self.problem.objective.names, float(number)), 0.0)
            self.observe(Observation(trial, 1, 1, (report,), True))
        with suppress(Broken):
            self._ask(list(self._mirrored().values()), 0)

    def _proposals(self, number: int) -> Iterator[Suggestion]:
        study = list(self._mirrored().values())
        for attempt in range(REDRAWS if study else 0):
            with suppress(Broken):
                yield Suggestion(self._ask(study, suggestion_seed(self.problem.seed, number, attempt)), self.origin)

    def _sampler(self, seed: int) -> BaseSampler:
        """Create the sampler of one suggestion.

        Raises:
            TypeError, ValueError: It doesn't take these options.
        """
        raise NotImplementedError

    @property
    def _options(self) -> Mapping[str, Any]:
        return self.problem.settings.options or {}

    def _mirrored(self) -> dict[int, FrozenTrial]:
        """Return the trials that the sampler sees, by number; none where nothing is known."""
        trials = {known.trial: self._mirror(known) for known in self._evidence()}
        return {number: trial for number, trial in trials.items() if trial is not None}

    def _mirror(self, known: Evidence) -> FrozenTrial | None:
        """Return a trial as Optuna's; None if it has a value of probability 0."""
        from hpsearch.searchers.optuna_mirror import mirrored

        kept = self._trials.get(known.trial)
        if kept is None or kept[0] != known.value:
            point = self._space.encode(known.params)
            if point is None:
                return None
            theirs = {name: theirs for name, theirs in self._space.distributions.items() if name in point}
            trial = mirrored(point, known.value, theirs, self._attributes(known.trial))
            kept = self._trials[known.trial] = known.value, trial
        return kept[1]

    def _attributes(self, trial: int) -> dict[str, Any]:
        """Return the attributes that the sampler wrote to a trial."""
        return {}

    def _ask(self, trials: list[FrozenTrial], seed: int) -> dict[str, Value]:
        """Return the suggestion of a sampler that sees these trials.

        A suggestion that may be unusable is added to the trials, so that the next one differs: one that breaks a
        constraint with the worst value, and one with conditional parameters, of which many may be the same
        configuration, as running.

        Raises:
            Broken: It breaks a constraint.
        """
        from hpsearch.searchers.optuna_mirror import mirrored

        study, storage = self._study(seed)
        params = None
        with quiet():
            study.add_trials(trials)
            # A sampler suggests related parameters together when the trial begins: here all of them.
            trial = study.ask(self._space.distributions if self.whole else None)
            try:
                params = self._space.build(partial(_suggested, trial))
            finally:
                if params is None or self.problem.space.conditional:
                    value = self._worst(trials) if params is None else None
                    trials.append(mirrored(trial.params, value, trial.distributions, {}))
                self._after_suggestion(params, study, storage)
        return params

    def _worst(self, trials: Sequence[FrozenTrial]) -> Score | None:
        from hpsearch.searchers.optuna_mirror import score_of

        scores = [score for score in map(score_of, trials) if score is not None]
        return self.problem.objective.worst(scores) if scores else None

    def _study(self, seed: int) -> tuple[Study, InMemoryStorage]:
        import optuna

        storage = optuna.storages.InMemoryStorage()
        directions = [goal.goal for goal in self.problem.objective.goals]
        with quiet():
            return optuna.create_study(storage=storage, directions=directions, sampler=self._sampler(seed)), storage

    def _after_suggestion(self, params: Params | None, study: Study, storage: InMemoryStorage) -> None:
        """Keep what the sampler has written; `params` is None if its suggestion breaks a constraint."""


def _suggested(trial: OptunaTrial, name: str, theirs: BaseDistribution) -> Any:
    """Suggest one parameter of an Optuna trial."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    match theirs:
        case FloatDistribution(low=low, high=high, log=log, step=step):
            return trial.suggest_float(name, low, high, step=step, log=log)
        case IntDistribution(low=low, high=high, log=log, step=step):
            return trial.suggest_int(name, low, high, step=step, log=log)
        case CategoricalDistribution(choices=choices):
            return trial.suggest_categorical(name, choices)
    raise TypeError(f"a distribution must be one of numbers or choices, got {theirs!r}")


@contextmanager
def quiet() -> Iterator[None]:
    """Silence Optuna's warnings about experimental options, and its message about each new study."""
    logger = logging.getLogger("optuna.storages._in_memory")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
