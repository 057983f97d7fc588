"""What searchers make of trials of other searches: evidence at the length of training that they had, and no more."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import pytest

from hpsearch.errors import SearcherError
from hpsearch.objective import Metric, Objective
from hpsearch.schedulers.halving import SuccessiveHalving
from hpsearch.searchers import Observation, Past, Search
from hpsearch.searchers.history import History
from hpsearch.space import Categorical, Space, Uniform
from hpsearch.study.build import build_searcher
from hpsearch.trial import Report, Trial
from tests.hpsearch.support.warm import SPACE, bowl_loss, warm_sweep
from tests.rarely import rarely

OBJECTIVE = Objective(Metric("loss"))


def past_of(count: int, seed: int, scale: float = 1.0) -> list[Past]:
    """Return random trials of the bowl, trained to the end."""
    space = Space.from_parameters(SPACE)
    drawn = [space.draw(seed, number) for number in range(count)]
    return [Past(params, {2: scale * bowl_loss(**params)}, 2) for params in drawn]


def losses(method: str, seed: int, trials: int, past: Sequence[Past] = ()) -> list[float]:
    """Return the losses of the suggestions in order, including the first ones, which are sampled."""
    sweep = warm_sweep(method=method, seed=seed)
    searcher = build_searcher(sweep, past)
    out = []
    for number in range(trials):
        if number < searcher.draws_first:
            params = sweep.parameters.draw(seed, number)
        else:
            suggestion = searcher.suggest(number)
            assert suggestion is not None
            params = dict(suggestion.params)
        trial = Trial(number, params, 0, "test")
        loss = bowl_loss(**params)
        searcher.started(trial)
        searcher.observe(Observation(trial, 2, 2, [Report(number, 2, {"loss": loss}, 0.1)], True))
        out.append(loss)
    return out


def reached(of: list[float], good: float) -> int:
    """Count the trials until one was good."""
    return next((count for count, loss in enumerate(of, 1) if loss <= good), len(of) + 1)


SEEDS = range(6)


@pytest.mark.exhaustive
@pytest.mark.parametrize("method", ["tpe", "cmaes", "gp"])
def test_with_random_trials_of_the_same_function_a_good_one_comes_sooner(method):
    trials, seeds = (20, SEEDS) if method != "gp" else (12, SEEDS[:2])  # its suggestions take a tenth of a second
    cold = [reached(losses(method, seed, trials), 0.1) for seed in seeds]
    warm = [reached(losses(method, seed, trials, past_of(30, seed + 100)), 0.1) for seed in seeds]
    assert statistics.mean(warm) < 0.7 * statistics.mean(cold)


@pytest.mark.parametrize("scale", [10.0, *rarely(0.1)])
def test_values_of_another_scale_are_compared_as_they_are(scale):
    """With losses ten times as high there, all own trials pass for good ones; the model still finds its way."""
    warm = [reached(losses("tpe", seed, 20, past_of(30, seed + 100, scale)), 0.1) for seed in SEEDS]
    assert statistics.mean(warm) < 15


@pytest.mark.parametrize(
    "method",
    [
        *("tpe", "cmaes", "bohb", "evolution", "spectral", "optuna.samplers:TPESampler"),
        *(pytest.param(rare, marks=pytest.mark.exhaustive) for rare in ("bayes", "gp")),
    ],
)
def test_it_follows_from_what_was_recalled(method):
    changes = {"early_terminate": SuccessiveHalving(2, eta=2, min_iter=1), "max_iter": None} if method == "bohb" else {}
    sweep = warm_sweep(method=method, **changes)
    one, same, other = (build_searcher(sweep, past_of(12, seed)) for seed in (1, 1, 2))
    numbers = range(3, 7)
    assert [one.suggest(n) for n in numbers] == [same.suggest(n) for n in numbers]
    assert [build_searcher(sweep, past_of(12, 1)).suggest(n) for n in numbers] != [other.suggest(n) for n in numbers]


def test_only_those_save_a_draw_that_got_as_far_as_the_model_looks():
    past = [Past({"lr": 0.1, "width": n}, {1: 1.0}, 1) for n in range(1, 9)]
    far = [Past({"lr": 0.01, "width": n}, {1: 1.0, 2: 0.5}, 2) for n in range(1, 7)]
    assert build_searcher(warm_sweep(), [*past, *far]).draws_first == 10 - len(far)
    assert build_searcher(warm_sweep(), past).draws_first == 10 - len(past)
    assert build_searcher(warm_sweep(), [Past({"lr": 0.1, "width": 1}, {1: math.nan}, 1)]).draws_first == 10


@pytest.mark.parametrize(("past", "left"), [(0, 10), (4, 6), (10, 0), (40, 0)])
def test_each_trial_saves_one_of_the_first_draws(past, left):
    assert build_searcher(warm_sweep(), past_of(past, 1)).draws_first == left
    sweep = warm_sweep(search=Search(startup=0))
    assert build_searcher(sweep, past_of(past, 1)).draws_first == 0


@pytest.mark.parametrize("count", [1, 9, 10, 11])
def test_cmaes_begins_near_the_best_of_them_however_many_there_are(count):
    space = Space.from_parameters(
        {"a": Uniform(0, 1), "b": Uniform(0, 1), "c": Categorical(["x"]), "one": Uniform(0.5, 1.2, step=1)}
    )
    sweep = warm_sweep(method="cmaes", parameters=space)
    past = [Past({"a": 0.9, "b": 0.1 + i / 100, "c": "x", "one": 1}, {2: float(i)}, 2) for i in range(count)]
    suggested = [build_searcher(sweep, past).suggest(n) for n in range(12)]
    assert statistics.mean(s.params["a"] for s in suggested if s is not None) > 0.65
    # Whoever says where it begins is obeyed.
    own = warm_sweep(method="cmaes", parameters=space, search=Search(options={"x0": {"a": 0.1, "b": 0.1, "one": 1.0}}))
    suggested = [build_searcher(own, past).suggest(n) for n in range(12)]
    assert statistics.mean(s.params["a"] for s in suggested if s is not None) < 0.4


def test_what_was_tried_elsewhere_may_be_tried_here():
    space = Space.from_parameters({"c": Categorical(["bad", "good"])})
    sweep = warm_sweep(parameters=space)
    searcher = build_searcher(sweep, [Past({"c": c}, {2: loss}, 2) for c, loss in (("bad", 1.0), ("good", 0.0))])
    found = []
    for number in range(2):
        suggestion = searcher.suggest(number)
        assert suggestion is not None
        found.append(suggestion.params["c"])
        searcher.started(Trial(number, suggestion.params, 0, "tpe"))
    assert sorted(found) == ["bad", "good"]
    assert searcher.suggest(2) is None


def history(*past: Past) -> History:
    known = History(OBJECTIVE)
    known.recall(past)
    return known


def test_what_got_less_far_than_another_is_no_evidence():
    short, long = Past({"x": 1}, {1: 0.5, 3: 0.3}, 3), Past({"x": 2}, {9: 0.2}, 9)
    assert [(e.trial, e.value) for e in history(short).evidence()] == [(-1, 0.3)]
    known = history(short, long)
    assert [(e.trial, e.value) for e in known.evidence()] == [(-1, 0.2)]
    own = Trial(0, {"x": 3}, 0, "test")
    known.started(own)
    known.observe(Observation(own, 3, 3, [Report(0, i, {"loss": 0.4}, 0.1) for i in (1, 2, 3)], True))
    assert [(e.trial, e.value) for e in known.evidence()] == [(-1, 0.2)]


def test_a_value_that_isnt_one_is_the_worst_as_of_an_own_trial():
    known = history(Past({"x": 1}, {1: 0.5}, 1), Past({"x": 2}, {1: math.nan}, 1), Past({"x": 3}, {1: math.inf}, 1))
    assert [e.value for e in known.evidence()] == [0.5, math.inf, math.inf]
    assert history(Past({"x": 2}, {1: math.nan}, 1)).evidence() == []


def test_it_counts_where_no_trial_has_a_length():
    known = history(Past({"x": 1}, {7: 0.5}, None), Past({"x": 2}, {3: 0.4}, 3))
    assert [(e.trial, e.value) for e in known.evidence()] == [(-2, 0.5)]


def test_whoever_doesnt_recall_says_so():
    with pytest.raises(
        SearcherError, match=r"RandomSearcher\.recall raised NotImplementedError: RandomSearcher can't begin"
    ):
        build_searcher(warm_sweep(method="random"), past_of(1, 1))
