"""Failures teach: where trials run out of memory or time, or report NaN, searchers that learn suggest less."""

from __future__ import annotations

import math

import pytest

from hpsearch.searchers import KNOWN, Observation, Past, searcher_named
from hpsearch.searchers.feasibility import EXPLORED, Feasibility
from hpsearch.searchers.history import History
from hpsearch.space import Categorical, LogUniform, Ordinal, Space, Uniform
from hpsearch.trial import Failure, Params, Report, Trial
from tests.hpsearch.support.any_life import Asking, problem_of
from tests.hpsearch.support.structured import UNBOUNDED

SPACE = Space.from_parameters(
    {
        "width": LogUniform(16, 4096),
        "batch": Ordinal([16, 32, 64, 128]),
        "kind": Categorical(["conv", "attention"]),
        "lr": Uniform(0, 1),
        "seed": 7,
    }
)
LEARNING = [kind for kind, cls in KNOWN.items() if cls.capabilities.avoids_failures]


def needs_too_much(params: Params) -> bool:
    return bool(params["width"] * params["batch"] * (4 if params["kind"] == "attention" else 1) > 40_000)


def drawn(count: int, seed: int = 1) -> list[Params]:
    return [SPACE.draw(seed, number) for number in range(count)]


def model(points: list[Params], share: float = 0.5) -> Feasibility:
    failed = [point for point in points if needs_too_much(point)]
    return Feasibility(SPACE, [point for point in points if not needs_too_much(point)], failed, share)


def test_it_learns_what_needs_too_much_from_few_trials():
    new = drawn(200, seed=2)
    for count, least in ((20, 0.85), (60, 0.9)):
        known = model(drawn(count))
        right = sum((known.probability(point) < 0.5) == needs_too_much(point) for point in new)
        assert right / len(new) > least


def test_what_is_likely_is_always_accepted_and_what_is_not_by_its_probability_and_one_in_twenty():
    points = drawn(60)
    likely = max(points, key=model(points).probability)
    unlikely = min(points, key=model(points).probability)
    shares = [(number + 0.5) / 100 for number in range(100)]
    assert all(model(points, share).accepts(likely) for share in shares[::10])
    accepted = [share for share in shares if model(points, share).accepts(unlikely)]
    assert accepted == [share for share in shares if share < max(EXPLORED, model(points).probability(unlikely))]
    assert Feasibility(SPACE, points, [], 0.99).accepts(unlikely)  # where nothing failed, anything goes


def test_failures_alone_say_to_stay_away_from_them():
    points = [{**point, "lr": 0.9} for point in drawn(5)]
    known = Feasibility(SPACE, [], points, 0.5)
    assert known.probability(points[0]) < known.probability({**points[0], "lr": 0.0}) < 0.5


def test_it_sees_how_many_blocks_there_are_also_where_their_number_has_no_bound():
    points = [UNBOUNDED.draw(1, number) for number in range(80)]
    deep = [point["layers"] > 1 for point in points]
    failed = [point for point, is_deep in zip(points, deep, strict=True) if is_deep]
    known = Feasibility(UNBOUNDED, [point for point in points if point not in failed], failed, 0.5)
    new = [UNBOUNDED.draw(2, number) for number in range(80)]
    right = sum((known.probability(point) < 0.5) == (point["layers"] > 1) for point in new)
    assert right >= 70


@pytest.mark.parametrize(
    ("failure", "value", "counts"),
    [
        (None, 0.5, True),
        (None, math.inf, True),
        (None, math.nan, False),
        ("memory", 0.5, False),
        ("timeout", None, False),
        ("raised", 0.5, None),
        ("contract", None, None),
        ("died", None, None),
        (None, None, None),
    ],
)
def test_memory_time_and_nan_count_and_mistakes_of_the_code_do_not(failure, value, counts):
    history = History(problem_of(SPACE).objective)
    trial = Trial(0, drawn(1)[0], 0, "random")
    history.started(trial)
    reports = () if value is None else (Report(0, 1, {"loss": value}, 1.0),)
    why = None if failure is None else Failure(failure, "no", "")
    history.observe(Observation(trial, len(reports), 3, reports, True, why))
    trained, failed = history.trained_and_failed()
    assert (trained, failed) == ([trial.params] * (counts is True), [trial.params] * (counts is False))
    history.reverted(trial, 0)  # it runs again
    assert history.trained_and_failed() == ([], [])


def test_trials_of_other_searches_count_and_running_ones_do_not():
    history = History(problem_of(SPACE).objective)
    first, second, third = drawn(3)
    history.recall([Past(first, {1: math.nan}, 1), Past(second, {1: 0.1, 3: 0.2}, 3)])
    history.started(Trial(0, third, 0, "random"))
    assert history.trained_and_failed() == ([second], [first])


def rate(method: str, avoids: bool, kind: str, count: int, seed: int = 3) -> float:
    """Return the share of suggestions, from the 15th on, that need too much."""
    searcher = searcher_named(method).build(problem_of(SPACE, seed, avoid_failures=avoids, startup=10))
    first, seen = searcher.draws_first, []
    for number in range(count):
        suggestion = None if number < first else searcher.suggest(number)
        params = SPACE.draw(seed, number) if suggestion is None else suggestion.params
        trial = Trial(number, params, 0, "random")
        searcher.started(trial)
        seen.append(needs_too_much(params))
        loss = 1 - math.log(params["width"] * params["batch"]) / 13 + params["lr"] / 10  # it draws beyond the limit
        failure = Failure("memory", "out of memory", "") if seen[-1] and kind == "memory" else None
        loss = math.nan if seen[-1] and kind == "nan" else loss
        reports = () if failure else (Report(number, 1, {"loss": loss}, 1.0),)
        searcher.observe(Observation(trial, len(reports), 1, reports, True, failure))
    return sum(seen[15:]) / len(seen[15:])


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(method, marks=[] if method in ("evolution", "tpe") else [pytest.mark.exhaustive])
        for method in LEARNING
        if method not in ("bayes", "cmaes")  # the first is tpe, the second takes no choices
    ],
)
def test_every_method_that_learns_suggests_less_of_what_fails(method):
    for kind, count in (("memory", 40), ("nan", 40)) if method != "gp" else (("memory", 25),):
        with_model = rate(method, True, kind, count)
        assert with_model < 0.25
        assert with_model <= rate(method, False, kind, count)


def test_without_failures_nothing_changes():
    for method in ("tpe", "evolution", "bohb"):
        suggestions = [
            Asking(method, problem_of(SPACE, 5, avoid_failures=avoids), 5, 0.0, value=lambda params: params["lr"]).run(
                15
            )
            for avoids in (True, False)
        ]
        assert suggestions[0] == suggestions[1]
