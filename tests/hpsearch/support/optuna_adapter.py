"""One of our searchers as a sampler of Optuna's, so that Optuna's own test cases can be run on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.search_space import IntersectionSearchSpace
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from hpsearch.objective import Metric, Objective
from hpsearch.searchers import Observation, Problem, Search, Searcher, Suggestion, searcher_named
from hpsearch.searchers.first_trials import FirstTrials
from hpsearch.space import Categorical, Distribution, IntUniform, LogIntUniform, LogUniform, Space, Uniform
from hpsearch.trial import Failure, Report, Trial

ENDED = (TrialState.COMPLETE, TrialState.FAIL)


class SearcherSampler(BaseSampler):
    """Builds a searcher for each point, tells it of the study's trials, and asks it once.

    Parameters that all trials have in common are suggested together, any other one alone, by what the trials say that
    have it.

    Args:
        method: The searcher's.
        search: What it takes.
    """

    def __init__(self, method: str, search: Search) -> None:
        self._method = method
        self._search = search
        self.origins: list[str] = []
        """Of what was suggested."""

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        common = IntersectionSearchSpace().calculate(study)
        return {name: distribution for name, distribution in common.items() if not distribution.single()}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        if not search_space:
            return {}
        suggestion = self._suggestion(study, trial.number, search_space)
        self.origins.append(suggestion.origin)
        return {name: theirs(of, suggestion.params[name]) for name, of in search_space.items()}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return self.sample_relative(study, trial, {param_name: param_distribution})[param_name]

    def _suggestion(self, study: Study, number: int, search_space: Mapping[str, BaseDistribution]) -> Suggestion:
        objective = Objective(Metric("loss", study.direction.name.lower()))  # type: ignore[arg-type]
        space = Space.from_parameters({name: ours(distribution) for name, distribution in search_space.items()})
        problem = Problem(space, objective, 0, self._search)
        searcher_named(self._method).check(problem)
        known = list(known_trials(study, number, search_space))
        # Where every point was tried a sweep ends; Optuna's objective is called again, as if the older trials weren't.
        while (found := self._asked(problem, number, known)) is None:
            known = known[(len(known) + 1) // 2 :]
        return found

    def _asked(self, problem: Problem, number: int, known: Sequence[FrozenTrial]) -> Suggestion | None:
        searcher = searcher_named(self._method).build(problem)
        if len(known) < searcher.draws_first:
            return FirstTrials(searcher, (), problem.space, problem.seed).suggest(len(known))
        for trial in known:
            tell(searcher, problem.space, trial)
        return searcher.suggest(number)


def known_trials(study: Study, number: int, space: Mapping[str, BaseDistribution]) -> Iterator[FrozenTrial]:
    """Yield the other trials that are in this space, with only the parameters of the space."""
    for trial in study.get_trials(deepcopy=False):
        inside = all(
            name in trial.params and of._contains(of.to_internal_repr(trial.params[name])) for name, of in space.items()
        )
        if inside and trial.number != number:
            values = None if trial.state is not TrialState.COMPLETE else [trial.value]
            yield FrozenTrial(
                trial.number,
                trial.state,
                None,
                trial.datetime_start,
                trial.datetime_complete,
                {name: ours_at(of, trial.params[name]) for name, of in space.items()},
                {},
                {},
                {},
                {},
                trial.number,
                values=values,  # type: ignore[arg-type]
            )


def tell(searcher: Searcher, space: Space, theirs: FrozenTrial) -> None:
    """Tell a searcher of a trial, and what became of it."""
    trial = Trial(theirs.number, space.check(theirs.params), 0, "optuna")
    searcher.started(trial)
    if theirs.state in ENDED:
        failed = theirs.state is TrialState.FAIL
        reports = [] if failed else [Report(theirs.number, 1, {"loss": theirs.value or 0.0}, 0.0)]
        failure = Failure("raised", "no value", "") if failed else None
        searcher.observe(Observation(trial, 1, 1, reports, True, failure))


def ours(distribution: BaseDistribution) -> Distribution:
    """Return our distribution for one of Optuna's parameters; choices and multiples of a step become indices."""
    if isinstance(distribution, CategoricalDistribution):
        return Categorical(range(len(distribution.choices)))
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    low, high = distribution.low, distribution.high
    if distribution.log:
        return (LogIntUniform if isinstance(distribution, IntDistribution) else LogUniform)(low, high)  # type: ignore[arg-type]
    if distribution.step is not None:
        return IntUniform(0, round((high - low) / distribution.step))
    return Uniform(low, high)


def ours_at(distribution: Any, value: Any) -> Any:
    """Return our value for one of Optuna's values."""
    if isinstance(distribution, CategoricalDistribution):
        return int(distribution.to_internal_repr(value))
    if is_stepped(distribution):
        return round((value - distribution.low) / distribution.step)
    return value


def theirs(distribution: Any, value: Any) -> Any:
    """Return Optuna's value for one of ours."""
    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices[value]
    if is_stepped(distribution):
        return min(distribution.low + value * distribution.step, distribution.high)
    return value


def is_stepped(distribution: Any) -> bool:
    return distribution.step is not None and not distribution.log
