"""Searchers through Optuna: a model over a study in memory that mirrors what the sweep's journal tells."""

from __future__ import annotations

import copy
import inspect
import json
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

__all__ = ["BOHB", "GP", "TPE", "Bayes", "CmaEs", "OptunaSearcher", "through_optuna"]

_REDRAWS = 10
"""Suggestions of points that were tried already, before an untried one is drawn."""

_WHOSE_TENTH = 10
"""Trials of which a tenth is at least one."""


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
            for attempt in range(_REDRAWS):
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
        with _quiet():
            study.add_trials(trials)
            point = study.ask(self._space.distributions).params
        params = self._space.decode(point)
        self._asked(params, study, storage)
        return params

    def _study(self, seed: int) -> tuple[Study, InMemoryStorage]:
        import optuna

        storage = optuna.storages.InMemoryStorage()
        direction = self._problem.objective.metric.goal
        with _quiet():
            return optuna.create_study(storage=storage, direction=direction, sampler=self._sampler(seed)), storage

    def _asked(self, params: Params, study: Study, storage: InMemoryStorage) -> None:
        """Take what the sampler may have written."""


class TPE(OptunaSearcher):
    """Tree-structured Parzen estimator: densities of the good and of the other points, and the best of their ratios.

    Bergstra et al., "Algorithms for Hyper-Parameter Optimization", NeurIPS 2011, section 4; over all parameters at once
    as in Falkner et al., "BOHB", ICML 2018. Trials that are under way count among the others (a constant liar).
    """

    kind: ClassVar[str] = "tpe"

    def _sampler(self, seed: int) -> BaseSampler:
        from optuna.samplers import TPESampler

        own = {"multivariate": True, "group": True, "constant_liar": True, "n_startup_trials": 0}
        with _quiet():
            return TPESampler(seed=seed, **{**own, **self._options})


class Bayes(TPE):
    """W&B's word; the model is `tpe`."""

    kind: ClassVar[str] = "bayes"
    known_as: ClassVar[str | None] = TPE.kind

    @property
    def origin(self) -> str:
        """That of the method that it is."""
        return TPE.kind


class BOHB(TPE):
    """Successive halving whose trials are suggested by TPE, but for every third, which is random.

    Falkner et al., "BOHB: Robust and Efficient Hyperparameter Optimization at Scale", ICML 2018. Over ASHA where the
    sweep names no `early_terminate`.
    """

    kind: ClassVar[str] = "bohb"
    over: ClassVar[str | None] = "asha"

    random_share: ClassVar[float] = 1 / 3

    def suggest(self, number: int) -> Suggestion | None:
        """Give a point that wasn't tried yet; None where none is left."""
        if suggestion_seed(self._problem.seed, number, _REDRAWS) < self.random_share * 2**32:
            drawn = self._tried.draw(self._problem.seed, number)
            return None if drawn is None else Suggestion(drawn, "random")
        return super().suggest(number)


class GP(OptunaSearcher):
    """A Gaussian process with a Matern-5/2 kernel, and the point of the largest expected improvement by it.

    Jones et al., "Efficient Global Optimization of Expensive Black-Box Functions", Journal of Global Optimization 1998.
    """

    kind: ClassVar[str] = "gp"

    def _sampler(self, seed: int) -> BaseSampler:
        from optuna.samplers import GPSampler

        return GPSampler(seed=seed, **{"n_startup_trials": 0, **self._options})


class _Remembering(OptunaSearcher):
    """A sampler that writes to trials and study what it needs later."""

    remembers: ClassVar[bool] = True

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self._study_attributes: dict[str, Any] = {}
        self._suggested: dict[str, dict[str, Any]] = {}
        """What was written to suggestions that haven't started, by their points."""
        self._written: dict[int, dict[str, Any]] = {}
        """And to trials."""
        self._points: dict[int, dict[str, Any]] = {}
        """Those of all trials, as Optuna has them."""

    def started(self, trial: Trial) -> None:
        """Take a new trial."""
        super().started(trial)
        self._points[trial.number] = self._space.encode(trial.params) or {}
        self._written[trial.number] = self._suggested.pop(json.dumps(trial.params), {})

    def _mirrored(self) -> dict[int, FrozenTrial]:
        """Give all trials, so that each keeps its place: those that can't be compared as pruned, with the worst value.

        Samplers write which trials a generation comes from, by their places in the study; rungs may leave some out.
        """
        from optuna.trial import TrialState, create_trial

        seen = super()._mirrored()
        values = [trial.value for trial in seen.values() if trial.value is not None]
        if not values:
            return seen
        worst = max(values) if self._problem.objective.metric.goal == "minimize" else min(values)
        points = dict.fromkeys(range(-self._past, 0)) | self._points
        return {
            trial: seen.get(trial)
            or create_trial(
                state=TrialState.PRUNED,
                value=worst,
                params=point,
                distributions=self._space.distributions if point else {},
                system_attrs=self._attributes(trial),
            )
            for trial, point in sorted(points.items())
        }

    def _attributes(self, trial: int) -> dict[str, Any]:
        return self._written.get(trial, {})

    def _study(self, seed: int) -> tuple[Study, InMemoryStorage]:
        study, storage = super()._study(seed)
        for name, value in self._study_attributes.items():
            storage.set_study_system_attr(study._study_id, name, value)
        return study, storage

    def _asked(self, params: Params, study: Study, storage: InMemoryStorage) -> None:
        self._study_attributes = storage.get_study_system_attrs(study._study_id)
        self._suggested[json.dumps(params)] = study.get_trials(deepcopy=False)[-1].system_attrs


class CmaEs(_Remembering):
    """Covariance matrix adaptation: a normal distribution that moves towards the better half of each generation.

    Hansen and Ostermeier, "Completely Derandomized Self-Adaptation in Evolution Strategies", Evolutionary Computation
    2001. It moves numbers; choices are drawn at random. Where it begins with trials of other searches, the first normal
    distribution is that of the best tenth of them (Nomura et al., "Warm Starting CMA-ES for Hyperparameter
    Optimization", AAAI 2021); of fewer than ten it begins at the best.
    """

    kind: ClassVar[str] = "cmaes"
    startup: ClassVar[int] = 1

    @classmethod
    def check(cls, problem: Problem) -> None:
        """Check that there are numbers to move."""
        if len(OptunaSpace(problem.space).numbers) < 2:
            raise InvalidKey(
                ("method",),
                "must be another one where fewer than two parameters are numbers, got cmaes",
                "take tpe or gp",
            )
        super().check(problem)

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self._beginning: dict[str, Any] = {}
        """What the sampler takes from the trials of other searches."""

    def recall(self, past: Sequence[Past]) -> None:
        """Take the trials of other searches."""
        super().recall(past)
        numbers = self._space.numbers
        trials = []
        for known in self._mirrored().values():  # nothing else is known yet
            if known.state.is_finished() and known.value is not None:
                trial = copy.copy(known)
                trial.params = {name: value for name, value in known.params.items() if name in numbers}
                trial.distributions = numbers
                trials.append(trial)
        if len(trials) >= _WHOSE_TENTH:
            self._beginning = {"source_trials": trials}
        elif trials:
            place = self._problem.objective.place
            self._beginning = {"x0": min(trials, key=lambda trial: place(trial.value)).params}

    def _sampler(self, seed: int) -> BaseSampler:
        from optuna.samplers import CmaEsSampler

        own: dict[str, Any] = {"n_startup_trials": 0, "warn_independent_sampling": False}
        if not {"x0", "sigma0", "source_trials", "use_separable_cma"} & self._options.keys():
            own |= self._beginning
        with _quiet():
            return CmaEsSampler(seed=seed, **{**own, **self._options})


class _Foreign(_Remembering):
    """Any sampler of Optuna's kind, which may keep a state of its own: one for the whole sweep."""

    sampler: ClassVar[type[BaseSampler]]
    startup: ClassVar[int] = 0
    _made: BaseSampler | None = None

    def suggest(self, number: int) -> Suggestion | None:
        """Give what the sampler suggests, from the first trial on."""
        params = self._ask(list(self._mirrored().values()), 0)
        if params in self._tried:
            return super().suggest(number)
        return Suggestion(params, self.origin)

    def _sampler(self, seed: int) -> BaseSampler:
        if self._made is None:
            takes_seed = "seed" in inspect.signature(self.sampler).parameters
            own = {"seed": self._problem.seed} if takes_seed else {}
            with _quiet():
                self._made = self.sampler(**{**own, **self._options})
        return self._made


def through_optuna(method: str, sampler: type[BaseSampler]) -> type[OptunaSearcher]:
    """Give the searcher that asks a class of samplers, which a sweep names by `method`."""
    return type(sampler.__name__, (_Foreign,), {"kind": method, "sampler": sampler, "__doc__": sampler.__doc__})


@contextmanager
def _quiet() -> Iterator[None]:
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
