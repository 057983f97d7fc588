"""Samplers of Optuna's that remember what they suggested."""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from hpsearch.config.checks import InvalidKey
from hpsearch.objective import values_of
from hpsearch.searchers.base import Past, Problem, SearcherCapabilities, Suggestion, listed
from hpsearch.searchers.optuna_searcher import OptunaSearcher, check_optuna, quiet
from hpsearch.searchers.optuna_space import OptunaSpace
from hpsearch.space import Broken
from hpsearch.trial import Params, Trial

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler
    from optuna.storages import InMemoryStorage
    from optuna.study import Study
    from optuna.trial import FrozenTrial

__all__ = ["NSGA2", "CmaEs", "through_optuna"]

_WHOSE_TENTH = 10
"""Trials of which a tenth is at least one."""


class _Remembering(OptunaSearcher):
    """A sampler that writes to trials and study what it needs later."""

    capabilities: ClassVar[SearcherCapabilities] = replace(OptunaSearcher.capabilities, remembers=True)

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self._study_attributes: dict[str, Any] = {}
        self._suggested: dict[str, dict[str, Any]] = {}
        """What was written to suggestions that haven't started, by their points."""
        self._written: dict[int, dict[str, Any]] = {}
        """And to trials."""
        self._points: dict[int, dict[str, Any]] = {}
        """Those of all trials, as Optuna has them; below 0 the trials of other searches."""

    def recall(self, past: Sequence[Past]) -> None:
        """Take the trials of other searches."""
        super().recall(past)
        self._points = {number: {} for number in range(-len(past), 0)}

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
        worst = self._worst(list(seen.values()))
        if worst is None:
            return seen
        return {
            trial: seen.get(trial)
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

    def _asked(self, params: Params | None, study: Study, storage: InMemoryStorage) -> None:
        self._study_attributes = storage.get_study_system_attrs(study._study_id)
        if params is not None:
            self._suggested[json.dumps(params)] = study.get_trials(deepcopy=False)[-1].system_attrs


class CmaEs(_Remembering):
    """Covariance matrix adaptation: a normal distribution that moves towards the better half of each generation.

    Hansen and Ostermeier, "Completely Derandomized Self-Adaptation in Evolution Strategies", Evolutionary Computation
    2001. It moves numbers, and places in ordered choices. Where it begins with trials of other searches, the first
    normal distribution is that of the best tenth of them (Nomura et al., "Warm Starting CMA-ES for Hyperparameter
    Optimization", AAAI 2021); of fewer than ten it begins at the best.
    """

    kind: ClassVar[str] = "cmaes"
    startup = 1

    @classmethod
    def check(cls, problem: Problem) -> None:
        """Check that there are numbers to move."""
        check_optuna(cls.kind)
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
        """What the sampler takes from the trials of other searches."""

    def recall(self, past: Sequence[Past]) -> None:
        """Take the trials of other searches."""
        super().recall(past)
        numbers = self._space.numbers
        trials = []
        for known in self._mirrored().values():  # nothing else is known yet
            if known.state.is_finished() and known.values is not None:
                trial = copy.copy(known)
                trial.params = {name: value for name, value in known.params.items() if name in numbers}
                trial.distributions = numbers
                trials.append(trial)
        if len(trials) >= _WHOSE_TENTH:
            self._beginning = {"source_trials": trials}
        elif trials:
            sort_key = self.problem.objective.sort_key
            self._beginning = {"x0": min(trials, key=lambda trial: sort_key(trial.value)).params}

    def _sampler(self, seed: int) -> BaseSampler:
        from optuna.samplers import CmaEsSampler

        own: dict[str, Any] = {"n_startup_trials": 0, "warn_independent_sampling": False}
        if not {"x0", "sigma0", "source_trials", "use_separable_cma"} & self._options.keys():
            own |= self._beginning
        with quiet():
            return CmaEsSampler(seed=seed, **{**own, **self._options})


class _Foreign(_Remembering):
    """Any sampler of Optuna's kind, which may keep a state of its own: one for the whole sweep."""

    # Where a sampler doesn't take several goals, the check fails as the sampler does.
    capabilities: ClassVar[SearcherCapabilities] = replace(_Remembering.capabilities, several_goals=True)
    startup = 0
    _made: BaseSampler | None = None
    _own: Mapping[str, Any] = MappingProxyType({})
    """Its arguments, where the sweep gives no others."""

    def suggest(self, number: int) -> Suggestion | None:
        """Give what the sampler suggests, from the first trial on."""
        with suppress(Broken):
            params = self._ask(list(self._mirrored().values()), 0)
            if params not in self._tried:
                return Suggestion(params, self.origin)
        return super().suggest(number)

    def _sampler(self, seed: int) -> BaseSampler:
        if self._made is None:
            sampler = self._class()
            own = {**self._own, "seed": self.problem.seed}
            taken = inspect.signature(sampler).parameters
            with quiet():
                self._made = sampler(**{**{name: own[name] for name in own if name in taken}, **self._options})
        return self._made

    @classmethod
    def _class(cls) -> type[BaseSampler]:
        """Give the sampler's class."""
        raise NotImplementedError


class NSGA2(_Foreign):
    """Generations of which the best fronts, and of the last of them the least crowded trials, are the parents.

    Deb et al., "A Fast and Elitist Multiobjective Genetic Algorithm: NSGA-II", IEEE TEC 6(2), 2002. A generation is of
    10 trials where the options don't say `population_size`, for searches of some hundred trials (docs/benchmarks.md).
    """

    kind: ClassVar[str] = "nsga2"
    capabilities: ClassVar[SearcherCapabilities] = replace(_Foreign.capabilities, outcome_constraints=True)
    _own = MappingProxyType({"population_size": 10})

    @classmethod
    def _class(cls) -> type[BaseSampler]:
        from optuna.samplers import NSGAIISampler

        return NSGAIISampler


def through_optuna(method: str, sampler: type[BaseSampler]) -> type[OptunaSearcher]:
    """Give the searcher that asks a class of samplers, which a sweep names by `method`."""
    constrained = "constraints_func" in inspect.signature(sampler).parameters
    own = {
        "kind": method,
        "capabilities": replace(_Foreign.capabilities, outcome_constraints=constrained),
        "_class": classmethod(lambda cls: sampler),
        "__doc__": sampler.__doc__,
    }
    return type(sampler.__name__, (_Foreign,), own)
