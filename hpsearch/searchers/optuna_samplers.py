"""Searchers that use Optuna's samplers: `tpe`, `bohb`, `gp`, `cmaes`, `nsga2`, and any other sampler."""

from __future__ import annotations

import copy
import inspect
import json
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from hpsearch.config.checks import InvalidKey, shown
from hpsearch.objective import Objective, values_of
from hpsearch.searchers.base import Observation, Past, Problem, SearcherCapabilities, Suggestion, listed
from hpsearch.searchers.history import Evidence
from hpsearch.searchers.learning import REDRAWS, LearningSearcher
from hpsearch.searchers.optuna_space import OptunaSpace
from hpsearch.seeds import SEED_LIMIT, suggestion_seed
from hpsearch.space import Broken
from hpsearch.trial import Params, Report, Score, Trial, Value

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.storages import InMemoryStorage
    from optuna.study import Study
    from optuna.trial import FrozenTrial
    from optuna.trial import Trial as OptunaTrial

    from hpsearch.searchers.feasibility import Feasibility

_WHOSE_TENTH = 10
"""Minimum number of trials of which a tenth is at least one trial."""


def _check_optuna(method: str) -> None:
    """Check that Optuna is installed, so that a missing package isn't reported as an error in the options.

    Raises:
        InvalidKey: Optuna isn't installed.
    """
    try:
        import optuna.samplers  # noqa: F401
    except ImportError as error:
        problem = f"must be one that can run here, but {method} needs Optuna: {error}"
        raise InvalidKey(("method",), problem, "pip install optuna, or take evolution") from error


class OptunaSearcher(LearningSearcher):
    """Uses an Optuna sampler, which is created for each suggestion.

    The sampler is seeded by (seed, number). In its Optuna study, trials that ran long enough (see `History`) are
    complete, running trials are running, and failed trials have the worst value. Trials of other searches come first,
    as complete trials.
    """

    needs_all_params: ClassVar[bool] = True
    """The sampler only supports parameters that all configurations have; see `OptunaSpace`."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self._space = OptunaSpace(problem.space, self.needs_all_params)
        self._trials: dict[int, tuple[Score | None, FrozenTrial]] = {}
        """Trial number to the score and Optuna's trial."""

    @classmethod
    def check(cls, problem: Problem) -> None:
        """Check that Optuna is installed, that a parameter isn't constant, and the sampler's options."""
        _check_optuna(cls.kind)
        if cls.needs_all_params:
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
        """Request a suggestion after two trials: samplers accept options of any type, and fail only when used."""
        for number in range(2):
            trial = Trial(number, self.problem.space.draw(self.problem.seed, number), 0, "random")
            self.started(trial)
            report = Report(number, 1, dict.fromkeys(self.problem.objective.names, float(number)), 0.0)
            self.observe(Observation(trial, 1, 1, (report,), True))
        with suppress(Broken):
            self._ask(list(self._mirrored().values()), 0, self._feasibility(0))

    def _proposals(self, number: int, feasibility: Feasibility) -> Iterator[Suggestion]:
        study = list(self._mirrored().values())
        for attempt in range(REDRAWS if study else 0):
            seed = suggestion_seed(self.problem.seed, number, attempt)
            with suppress(Broken):
                yield Suggestion(self._ask(study, seed, feasibility), self.origin)

    def _sampler(self, seed: int) -> BaseSampler:
        """Create the sampler of one suggestion.

        Raises:
            TypeError, ValueError: The sampler doesn't accept these options.
        """
        raise NotImplementedError

    @property
    def _options(self) -> Mapping[str, Any]:
        return self.problem.settings.options or {}

    def _mirrored(self) -> dict[int, FrozenTrial]:
        """Return number to Optuna's trial, for the trials of the sampler's study; empty if there is no evidence."""
        trials = {evidence.trial: self._mirror(evidence) for evidence in self._evidence()}
        return {number: trial for number, trial in trials.items() if trial is not None}

    def _mirror(self, evidence: Evidence) -> FrozenTrial | None:
        """Return Optuna's trial of a trial; None if it has a value of probability 0."""
        from hpsearch.searchers.optuna_mirror import mirrored

        cached = self._trials.get(evidence.trial)
        if cached is None or cached[0] != evidence.value:
            point = self._space.encode(evidence.params)
            if point is None:
                return None
            every = self._space.distributions
            distributions = {name: every[name] for name in every if name in point}
            trial = mirrored(point, evidence.value, distributions, self._attributes(evidence.trial))
            cached = self._trials[evidence.trial] = evidence.value, trial
        return cached[1]

    def _attributes(self, trial: int) -> dict[str, Any]:
        """Return the attributes that the sampler wrote to a trial."""
        return {}

    def _ask(self, trials: list[FrozenTrial], seed: int, feasibility: Feasibility) -> dict[str, Value]:
        """Return the suggestion of a sampler whose study has these trials.

        A suggestion that may be unusable is added to the trials, so that the next one differs. If it violates a
        constraint or likely fails, it is added with the worst value. If it has conditional parameters, so that
        different suggestions may be the same configuration, it is added as running.

        Raises:
            Broken: The suggestion violates a constraint, or likely fails.
        """
        from hpsearch.searchers.optuna_mirror import mirrored

        study, storage = self._study(seed)
        params = None
        with _quiet():
            study.add_trials(trials)
            # A sampler suggests related parameters together when the trial starts: here all of them.
            trial = study.ask(self._space.distributions if self.needs_all_params else None)
            try:
                built = self._space.build(partial(_suggested, trial))
                if not feasibility.accepts(built):
                    raise Broken(("parameters",), "must be likely to be trained")
                params = built
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
        with _quiet():
            return optuna.create_study(storage=storage, directions=directions, sampler=self._sampler(seed)), storage

    def _after_suggestion(self, params: Params | None, study: Study, storage: InMemoryStorage) -> None:
        """Keep the attributes that the sampler wrote; `params` is None if its suggestion violates a constraint."""


def _suggested(trial: OptunaTrial, name: str, distribution: BaseDistribution) -> Any:
    """Suggest one parameter of an Optuna trial."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    match distribution:
        case FloatDistribution(low=low, high=high, log=log, step=step):
            return trial.suggest_float(name, low, high, step=step, log=log)
        case IntDistribution(low=low, high=high, log=log, step=step):
            return trial.suggest_int(name, low, high, step=step, log=log)
        case CategoricalDistribution(choices=choices):
            return trial.suggest_categorical(name, choices)
    raise TypeError(f"a distribution must be one of numbers or choices, got {distribution!r}")


@contextmanager
def _quiet() -> Iterator[None]:
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


class TPE(OptunaSearcher):
    """Tree-structured Parzen estimator: maximizes the ratio of the density of good configurations to that of others.

    Bergstra et al., "Algorithms for Hyper-Parameter Optimization", NeurIPS 2011, section 4. The densities are over all
    parameters jointly, as in Falkner et al., "BOHB", ICML 2018. Running trials count as not good (constant liar). Each
    group of conditional parameters that are active together has its own densities.

    With several goals the good configurations are those of the first Pareto fronts. From the last of these fronts, the
    trials that add most to the hypervolume are selected: Ozaki et al., "Multiobjective Tree-Structured Parzen
    Estimator", JAIR 73, 2022.
    """

    kind: ClassVar[str] = "tpe"
    capabilities: ClassVar[SearcherCapabilities] = replace(
        OptunaSearcher.capabilities, several_goals=True, outcome_constraints=True
    )
    needs_all_params: ClassVar[bool] = False

    def _sampler(self, seed: int) -> BaseSampler:
        from optuna.samplers import TPESampler

        defaults = {"multivariate": True, "group": True, "constant_liar": True, "n_startup_trials": 0}
        defaults["warn_independent_sampling"] = False
        with _quiet():
            return TPESampler(seed=seed, **{**defaults, **self._options})


class Bayes(TPE):
    """W&B's name for model-based search; an alias of `tpe`."""

    kind: ClassVar[str] = "bayes"
    known_as: ClassVar[str | None] = TPE.kind

    @property
    def origin(self) -> str:
        """The origin of `tpe`."""
        return TPE.kind


class BOHB(TPE):
    """Successive halving whose trials are suggested by TPE, except for a third that is sampled at random.

    Falkner et al., "BOHB: Robust and Efficient Hyperparameter Optimization at Scale", ICML 2018. The scheduler is ASHA
    unless the sweep has `early_terminate`.
    """

    kind: ClassVar[str] = "bohb"
    over: ClassVar[str | None] = "asha"

    random_share: ClassVar[float] = 1 / 3

    def _proposals(self, number: int, feasibility: Feasibility) -> Iterator[Suggestion]:
        if suggestion_seed(self.problem.seed, number, REDRAWS) >= self.random_share * SEED_LIMIT:
            yield from super()._proposals(number, feasibility)


class GP(OptunaSearcher):
    """Suggests the configuration with the largest expected improvement under a Gaussian process (Matern-5/2 kernel).

    Jones et al., "Efficient Global Optimization of Expensive Black-Box Functions", Journal of Global Optimization 1998.
    With several goals, each has its own process, and the expected hypervolume improvement is maximized: Daulton et al.,
    "Differentiable Expected Hypervolume Improvement", NeurIPS 2020. Each outcome constraint has its own process, too.
    """

    kind: ClassVar[str] = "gp"
    capabilities: ClassVar[SearcherCapabilities] = replace(
        OptunaSearcher.capabilities, several_goals=True, outcome_constraints=True
    )

    def _sampler(self, seed: int) -> BaseSampler:
        from optuna.samplers import GPSampler

        return GPSampler(seed=seed, **{"n_startup_trials": 0, **self._options})


class _Remembering(OptunaSearcher):
    """Uses a sampler that stores its state in attributes of the trials and the study."""

    capabilities: ClassVar[SearcherCapabilities] = replace(OptunaSearcher.capabilities, remembers=True)

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self._study_attributes: dict[str, Any] = {}
        self._suggested: dict[str, dict[str, Any]] = {}
        """Params as JSON to the attributes of a suggestion that hasn't started."""
        self._written: dict[int, dict[str, Any]] = {}
        """Trial number to the attributes that the sampler wrote."""
        self._points: dict[int, dict[str, Any]] = {}
        """Trial number to Optuna's params; numbers of trials of other searches are negative."""

    def recall(self, past: Sequence[Past]) -> None:
        """Add the trials of other searches."""
        super().recall(past)
        self._points = {number: {} for number in range(-len(past), 0)}

    def started(self, trial: Trial) -> None:
        """Add a new trial."""
        super().started(trial)
        self._points[trial.number] = self._space.encode(trial.params) or {}
        self._written[trial.number] = self._suggested.pop(json.dumps(trial.params), {})

    def _mirrored(self) -> dict[int, FrozenTrial]:
        """Return all trials with their numbers; trials that can't be compared are pruned, with the worst value.

        Samplers refer to the trials of a generation by number, so the trials that rungs leave out must be present, too.
        """
        from optuna.trial import TrialState, create_trial

        mirrored = super()._mirrored()
        worst = self._worst(list(mirrored.values()))
        if worst is None:
            return mirrored
        return {
            trial: mirrored.get(trial)
            or create_trial(
                state=TrialState.PRUNED,
                values=values_of(worst),
                params=point,
                distributions=self._space.distributions if point else {},
                system_attrs=self._attributes(trial),
            )
            for trial, point in sorted(self._points.items())
        }

    def _attributes(self, trial: int) -> dict[str, Any]:
        return self._written.get(trial, {})

    def _study(self, seed: int) -> tuple[Study, InMemoryStorage]:
        study, storage = super()._study(seed)
        for name, value in self._study_attributes.items():
            storage.set_study_system_attr(study._study_id, name, value)
        return study, storage

    def _after_suggestion(self, params: Params | None, study: Study, storage: InMemoryStorage) -> None:
        self._study_attributes = storage.get_study_system_attrs(study._study_id)
        if params is not None:
            self._suggested[json.dumps(params)] = study.get_trials(deepcopy=False)[-1].system_attrs


class CmaEs(_Remembering):
    """Covariance matrix adaptation: a normal distribution that moves towards the better half of each generation.

    Hansen and Ostermeier, "Completely Derandomized Self-Adaptation in Evolution Strategies", Evolutionary Computation
    2001. It searches numbers and the indices of ordered choices. If it is warm-started with trials of other searches,
    the first normal distribution is fitted to the best tenth of them (Nomura et al., "Warm Starting CMA-ES for
    Hyperparameter Optimization", AAAI 2021). With fewer than ten trials, it is centered at the best one.
    """

    kind: ClassVar[str] = "cmaes"
    startup = 1

    @classmethod
    def check(cls, problem: Problem) -> None:
        """Check that the space has no unordered choices and at least two numbers to search."""
        _check_optuna(cls.kind)
        listed(problem, cls.kind)
        space = OptunaSpace(problem.space)
        if space.choices:
            text = f"must be another one than cmaes, which moves numbers, where {space.choices[0]} is a choice"
            advice = "take tpe, gp or evolution; or say of values that rise or fall that they are ordered"
            raise InvalidKey(("method",), text, advice)
        if len(space.numbers) < 2:
            raise InvalidKey(
                ("method",),
                "must be another one where fewer than two parameters are numbers, got cmaes",
                "take tpe or gp",
            )
        super().check(problem)

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self._beginning: dict[str, Any] = {}
        """Arguments of the sampler that follow from the trials of other searches."""

    def recall(self, past: Sequence[Past]) -> None:
        """Add the trials of other searches."""
        super().recall(past)
        numbers = self._space.numbers
        trials = []
        for frozen in self._mirrored().values():  # no other trials are known yet
            if frozen.state.is_finished() and frozen.values is not None:
                trial = copy.copy(frozen)
                trial.params = {name: value for name, value in frozen.params.items() if name in numbers}
                trial.distributions = numbers
                trials.append(trial)
        if len(trials) >= _WHOSE_TENTH:
            self._beginning = {"source_trials": trials}
        elif trials:
            sort_key = self.problem.objective.sort_key
            self._beginning = {"x0": min(trials, key=lambda trial: sort_key(trial.value)).params}

    def _sampler(self, seed: int) -> BaseSampler:
        from optuna.samplers import CmaEsSampler

        defaults: dict[str, Any] = {"n_startup_trials": 0, "warn_independent_sampling": False}
        if not {"x0", "sigma0", "source_trials", "use_separable_cma"} & self._options.keys():
            defaults |= self._beginning
        with _quiet():
            return CmaEsSampler(seed=seed, **{**defaults, **self._options})


class _Foreign(_Remembering):
    """Uses any Optuna sampler. It may have internal state, so one object serves the whole sweep."""

    # If a sampler doesn't support several goals, the check fails with the sampler's error.
    capabilities: ClassVar[SearcherCapabilities] = replace(_Remembering.capabilities, several_goals=True)
    startup = 0
    _built_sampler: BaseSampler | None = None
    _defaults: Mapping[str, Any] = MappingProxyType({})
    """Default arguments of the sampler."""

    def _proposals(self, number: int, feasibility: Feasibility) -> Iterator[Suggestion]:
        with suppress(Broken):  # also the first trial is the sampler's
            yield Suggestion(self._ask(list(self._mirrored().values()), 0, feasibility), self.origin)
        yield from super()._proposals(number, feasibility)

    def _sampler(self, seed: int) -> BaseSampler:
        if self._built_sampler is None:
            sampler = self._class()
            defaults = {**self._defaults, "seed": self.problem.seed}
            accepted = inspect.signature(sampler).parameters
            with _quiet():
                self._built_sampler = sampler(
                    **{**{name: defaults[name] for name in defaults if name in accepted}, **self._options}
                )
        return self._built_sampler

    @classmethod
    def _class(cls) -> type[BaseSampler]:
        """Return the sampler's class."""
        raise NotImplementedError


class NSGA2(_Foreign):
    """Evolves generations. The parents are the first Pareto fronts, and the least crowded trials of the last of them.

    Deb et al., "A Fast and Elitist Multiobjective Genetic Algorithm: NSGA-II", IEEE TEC 6(2), 2002. A generation has
    10 trials by default (`population_size`), for searches of some hundred trials (docs/benchmarks.md).
    """

    kind: ClassVar[str] = "nsga2"
    capabilities: ClassVar[SearcherCapabilities] = replace(_Foreign.capabilities, outcome_constraints=True)
    _defaults = MappingProxyType({"population_size": 10})

    @classmethod
    def _class(cls) -> type[BaseSampler]:
        from optuna.samplers import NSGAIISampler

        return NSGAIISampler


def through_optuna(method: str, sampler: type[BaseSampler]) -> type[OptunaSearcher]:
    """Return a searcher for an Optuna sampler's class; `method` is its name in a sweep."""
    constrained = "constraints_func" in inspect.signature(sampler).parameters
    attributes = {
        "kind": method,
        "capabilities": replace(_Foreign.capabilities, outcome_constraints=constrained),
        "_class": classmethod(lambda cls: sampler),
        "__doc__": sampler.__doc__,
    }
    return type(sampler.__name__, (_Foreign,), attributes)
