"""What every searcher that learns from results does, whichever it is."""

from __future__ import annotations

import functools
import json
import math
import os
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpsearch.searchers import KNOWN, Observation, Suggestion, searcher_named
from hpsearch.space import Categorical, IntUniform, LogNormal, LogUniform, Repeat, Space, Uniform, When
from hpsearch.trial import Params, Report, Trial
from tests.hpsearch.support.any_life import KINDS, Asking, problem_of
from tests.hpsearch.support.command_line import ROOT, environment
from tests.hpsearch.support.documented import HillClimbing
from tests.hpsearch.support.spaces import FINITE, in_order, spaces
from tests.hpsearch.support.structured import FINITE as FINITE_STRUCTURES
from tests.hpsearch.support.structured import structured

FOREIGN = [f"optuna.samplers:{name}" for name in ("NSGAIISampler", "RandomSampler", "QMCSampler")]
METHODS = [*(kind for kind, cls in KNOWN.items() if cls.capabilities.learns), *FOREIGN, HillClimbing.kind]
JOINT = ["tpe", "bohb", "gp", "nsga2", "evolution", "optuna.samplers:NSGAIIISampler"]
"""Those that are asked to take several goals, and one with a constraint on an outcome."""
CASES = [(method, KINDS[0]) for method in METHODS] + [(method, kind) for method in JOINT for kind in KINDS[1:]]

SPACE = Space.from_parameters(
    {
        "lr": LogUniform(1e-4, 1.0),
        "model": {"hidden": IntUniform(32, 96, step=32), "layers": Categorical([[64], [64, 64], True, 1, 1.0])},
        "dropout": Uniform(0, 0.5, step=0.25),
        "scale": LogNormal(),
        "epochs": 3,
    }
)

# bayes is tpe by another word and bohb asks it, gp takes time; what is Optuna's own is as nsga2.
RARELY = ("bayes", "bohb", "gp", *FOREIGN)
OFTEN = [("nsga2", "two goals"), ("evolution", "constrained")]
"""Where more than one goal decides: tpe takes longest, bohb asks it, and the third version of NSGA is as the second."""


def is_rare(method: str, kind: str) -> bool:
    return method in RARELY or (kind != KINDS[0] and (method, kind) not in OFTEN)


pytestmark = pytest.mark.parametrize(
    ("method", "kind"),
    [
        pytest.param(
            *case,
            marks=[pytest.mark.exhaustive] if is_rare(*case) else [],
            id=case[0] if case[1] == KINDS[0] else "-".join(case),
        )
        for case in CASES
    ],
)


def examples(method: str, count: int) -> settings:
    """A suggestion of gp takes a tenth of a second."""
    return settings(deadline=None, max_examples=2 if method == "gp" else count)


def plain(value: object) -> bool:
    if isinstance(value, list):
        return type(value) is list and all(map(plain, value))
    if isinstance(value, dict):
        return type(value) is dict and all(map(plain, value.values()))
    return value is None or type(value) in (bool, int, float, str)


def key(suggestion: Suggestion | None) -> str:
    return json.dumps(suggestion and suggestion.params)


@pytest.mark.some_cases(1)
def test_whatever_it_is_told_it_suggests_points_of_the_space_each_once_and_the_same_ones_again(method, kind):
    @examples(method, 10)
    @given(spaces(), st.integers(0, 2**32 - 1), st.sampled_from(["minimize", "maximize"]), st.sampled_from([0.0, 0.5]))
    def check(space, seed, goal, trouble):
        space = in_order(space) if method == "cmaes" else space
        problem = problem_of(space, seed, goal, kind)
        searcher_named(method).check(problem)
        asking = Asking(method, problem, seed, trouble)
        given = [found for found in asking.run(5 if method == "gp" else 12) if found is not None]
        for suggestion in given:
            params = suggestion.params
            assert json.dumps(space.check(params)) == json.dumps(params)
            assert tuple(params) == space.names
            assert plain(params)
            assert suggestion.origin in (method, "random", "tpe")
        assert len(set(map(key, given))) == len(given)
        assert asking.repeated() == asking.suggestions

    check()


@pytest.mark.some_cases(2)
def test_a_finite_space_is_tried_to_the_last_point_and_then_there_is_none(method, kind):
    @examples(method, 5)
    @given(spaces(FINITE, most=2), st.integers(0, 99))
    def check(space, seed):
        points = space.every_point(10 if method == "gp" else 30)
        if points is None:
            return
        *given, last = Asking(method, problem_of(space, seed, kind=kind), seed, 0.3).run(len(points) + 1)
        assert last is None
        assert sorted(map(key, given)) == sorted(map(json.dumps, points))

    check()


@pytest.mark.some_cases(2)
def test_over_parameters_that_hang_on_each_other_it_does_so_too(method, kind):
    """No point breaks a constraint, equal cells count as one, and what doesn't apply is absent."""

    if method == "spectral":
        pytest.skip("it takes no such space")
    space = structured(method)
    problem = problem_of(space, 3, kind=kind)
    searcher_named(method).check(problem)
    for seed, trouble in ((2, 0.4),) if method == "gp" else ((1, 0.0), (2, 0.4)):
        asking = Asking(method, problem, seed, trouble)
        given = [found for found in asking.run(4 if method == "gp" else 16) if found is not None]
        for suggestion in given:
            assert json.dumps(space.check(suggestion.params)) == json.dumps(suggestion.params)
            assert tuple(suggestion.params) == space.columns([suggestion.params])
            assert plain(suggestion.params)
        assert len({space.key(found.params) for found in given}) == len(given)
        if method != "gp":
            assert asking.repeated() == asking.suggestions


@pytest.mark.some_cases(3)
def test_a_finite_space_of_structures_is_tried_to_the_last_point(method, kind):
    space = FINITE_STRUCTURES
    if method in ("cmaes", "spectral"):
        pytest.skip("it takes no choices, or no constraints")
    if method == "gp":
        space = Space.from_parameters({"a": [1, 2], "b": When("a == 2", Repeat([3, 4], 0, 1))}, ["b < 1 or b.0 == 3"])
    points = space.every_point(100)
    assert points is not None
    *given, last = Asking(method, problem_of(space, kind=kind), 3, 0.3).run(len(points) + 1)
    assert last is None
    assert sorted(map(key, given)) == sorted(map(json.dumps, points))


@pytest.mark.some_cases(1)
def test_it_learns(method, kind):
    """Where x is best at 0.3, more suggestions than draws lie beside it; who doesn't learn is left out."""
    if method in ("optuna.samplers:RandomSampler", "optuna.samplers:QMCSampler"):
        pytest.skip("it draws")
    space = Space.from_parameters({"x": Uniform(0.0, 1.0), "y": Uniform(0.0, 1.0)})
    options = {"population_size": 10} if "nsga" in method.lower() else None
    count = 25 if method == "gp" else 90
    for goal, sign in (("minimize", 1.0), ("maximize", -1.0)):
        problem = problem_of(space, 3, goal, kind, options=options)
        asking = Asking(method, problem, 3, value=functools.partial(reported, sign=sign))
        late = [found for found in asking.run(count)[count // 2 :] if found is not None and found.origin != "random"]
        assert sum(abs(found.params["x"] - 0.3) for found in late) / len(late) < (
            0.2 if options else 0.15
        )  # of draws it is 0.29


def reported(params: Params, sign: float) -> dict[str, float]:
    """A loss, or a gain, that is best at 0.3; and a cost that is least there and small enough around it."""
    distance = abs(params["x"] - 0.3) + 0.01 * params["y"]
    return {"loss": sign * distance, "cost": distance * 2.0}


ELSEWHERE = """
import json, sys
from tests.hpsearch.searchers.test_learning_conformance import both
found = [both(*case) for case in json.loads(sys.argv[1])]
print(json.dumps(found))
"""


@functools.cache
def elsewhere(rare: bool) -> list[dict[tuple[str, str], list[object]]]:
    """What each of those that are rare, or aren't, suggests in other processes, whose strings have other hashes."""
    chosen = [case for case in CASES if is_rare(*case) == rare]
    cases = json.dumps([(method, count_of(method), kind) for method, kind in chosen])
    found = []
    mine = os.environ.get("PYTHONHASHSEED")
    for seed in ("1", "2") if rare else ("2" if mine == "1" else "1",):  # gp is compared with itself
        env = {**environment(), "PYTHONHASHSEED": seed, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", ELSEWHERE, cases]
        ended = subprocess.run(command, cwd=ROOT, env=os.environ | env, check=True, capture_output=True)
        found.append(dict(zip(chosen, json.loads(ended.stdout), strict=True)))
    return found


def both(method: str, count: int, kind: str) -> list[object]:
    """What it suggests for two spaces, one of which has structures."""
    spaces = [SPACE] if method == "spectral" else [SPACE, structured(method)]
    return [
        found and found.params
        for place, space in enumerate(spaces)
        for found in Asking(method, problem_of(space, 7, kind=kind), 7, 0.3 * place).run(count)
    ]


def count_of(method: str) -> int:
    return 5 if method == "gp" else 16


@pytest.mark.exhaustive
def test_it_suggests_the_same_in_any_process(method, kind):
    one, *others = elsewhere(is_rare(method, kind))
    assert all(one[method, kind] == other[method, kind] for other in others)
    here = both(method, count_of(method), kind)
    if method == "gp":  # sums made by another number of threads may differ in their last bit
        assert len(here) == len(one[method, kind])
    else:
        assert here == one[method, kind]


def test_the_order_in_which_trials_end_changes_no_suggestion(method, kind):
    def after(order: list[int]) -> Suggestion | None:
        asking = Asking(method, problem_of(SPACE, 7, kind=kind), 7)
        searcher = asking.searcher
        trials = []
        for number in range(6):
            drawn = SPACE.draw(1, number)
            trials.append(Trial(number, drawn, 0, "random"))
            searcher.started(trials[-1])
        for number in order:
            reports = [Report(number, 1, {"loss": number * 7 % 5, "cost": number * 3 % 4 / 5}, 0.1)]
            searcher.observe(Observation(trials[number], 1, 1, reports, True))
        return searcher.suggest(6)

    assert after([0, 1, 2, 3, 4, 5]) == after([5, 3, 1, 0, 2, 4])


def test_before_anything_valid_is_known_it_draws_or_suggests_from_the_space(method, kind):
    asking = Asking(method, problem_of(SPACE, 7, kind=kind), 7, value=lambda _: {"loss": math.nan, "cost": 0.1})
    given = asking.run(8)
    assert all(s is not None and SPACE.check(s.params) == s.params for s in given)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("largest", [1e308, -1e308])
def test_values_as_large_as_floats_go_are_learnt_from(method, kind, largest):
    asked = []
    for scale in (largest, largest / 2.0**900):
        problem = problem_of(Space.from_parameters({"x": Uniform(0, 1)}), 3, kind=kind)
        searcher = searcher_named(method).build(problem)
        for number in range(12):
            trial = Trial(number, {"x": number / 12}, 0, "random")
            searcher.started(trial)
            metrics = {"loss": scale * ((number - 5) ** 2 / 49), "cost": number / 12}
            report = Report(number, 1, metrics, 0.0)
            searcher.observe(Observation(trial, 1, 1, (report,), True))
        asked.append(key(searcher.suggest(12)))
    assert asked[0] == asked[1]
