"""Priors: where the draws near them lie, and that they change no other draw."""

from __future__ import annotations

import hashlib
import json
import math
import pickle
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from hpsearch.errors import SweepError
from hpsearch.objective import Metric, Objective
from hpsearch.searchers import GridSearcher, Problem, RandomSearcher, Suggestion
from hpsearch.searchers.qmc import QMC
from hpsearch.seeds import DRAW_BITS, draw_bits, is_near_prior
from hpsearch.space import (
    Categorical,
    Distribution,
    IntUniform,
    LogIntUniform,
    LogNormal,
    LogUniform,
    Normal,
    Space,
    Uniform,
    distribution_from_json,
)
from tests.hpsearch.support.any_life import problem_of
from tests.hpsearch.support.first_then import FirstThen

BITS = st.integers(0, 2**DRAW_BITS - 1)
SEEDS = st.integers(0, 2**32 - 1)
NUMBERS = st.integers(1, 10**9)

PLAIN: dict[str, Any] = {
    "u": Uniform(-1, 2),
    "uq": Uniform(0, 1, step=0.1),
    "lu": LogUniform(1e-5, 1),
    "luq": LogUniform(20, 300, step=32),
    "i": IntUniform(-5, 1000),
    "iq": IntUniform(0, 99, step=3),
    "li": LogIntUniform(1, 4096),
    "liq": LogIntUniform(16, 512, step=16),
    "n": Normal(1, 2),
    "nq": Normal(0, 9, step=1),
    "ln": LogNormal(-3, 1),
    "c": ["a", None, 1, [2, 3]],
    "cp": Categorical(["x", "y", "z"], [0.7, 0.3, 0.0]),
    "k": 3,
}
BELIEVED: dict[str, Any] = PLAIN | {
    "u": Uniform(-1, 2, prior=2),
    "uq": Uniform(0, 1, step=0.1, prior=0.3),
    "lu": LogUniform(1e-5, 1, prior=1e-3),
    "luq": LogUniform(20, 300, step=32, prior=64),
    "i": IntUniform(-5, 1000, prior=-5),
    "iq": IntUniform(0, 99, step=3, prior=33),
    "li": LogIntUniform(1, 4096, prior=64),
    "liq": LogIntUniform(16, 512, step=16, prior=512),
    "c": Categorical(["a", None, 1, [2, 3]], prior=(2, 3)),
    "cp": Categorical(["x", "y", "z"], [0.7, 0.3, 0.0], prior="y"),
}
BEFORE = "68c99707a5e0868974160ba65dd0f08d84715855e107536185b1448628c64d99"
"""The hash of what the last version without priors gave."""
PRIORS = {name: given.prior for name, given in BELIEVED.items() if getattr(given, "prior", None) is not None}


def near(distribution: Distribution, count: int) -> list[Any]:
    """Draw through a space until so many trials were near the prior."""
    space = Space.from_parameters({"x": distribution})
    numbers = (number for number in range(1, 3 * count) if is_near_prior(0, number))
    return [space.draw(0, number)["x"] for number, _ in zip(numbers, range(count), strict=False)]


def assert_shares(values: list[Any], shares: dict[Any, float]) -> None:
    """Hold counts to shares, by six deviations: one seed in 10**8 would fail, and the seed is fixed."""
    assert math.isclose(sum(shares.values()), 1.0)
    counts = Counter(values)
    assert set(counts) <= set(shares)
    for value, share in shares.items():
        expected = len(values) * share
        assert abs(counts[value] - expected) < 6 * math.sqrt(expected * (1 - share) + 1), value


def around(center: float, deviation: float = 0.25) -> Any:
    return stats.truncnorm(-center / deviation, (1 - center) / deviation, center, deviation)


@pytest.mark.some_cases(2)
@pytest.mark.parametrize(
    ("distribution", "center"),
    [
        (Uniform(-1, 3, prior=0), 0.25),
        (Uniform(-1, 3, prior=3), 1.0),
        (LogUniform(1e-4, 1.0, prior=1e-3), 0.25),
        (LogUniform(1e-5, 1.0, prior=1e-5), 0.0),
        (LogUniform(1e-2, 1e4, prior=10.0), 0.5),
    ],
    ids=repr,
)
def test_floats_near_a_prior_are_a_truncated_normal_on_their_scale(distribution, center):
    places = [distribution.position(value) for value in near(distribution, 20_000)]
    assert len(places) == 20_000
    assert stats.kstest(places, around(center).cdf).pvalue > 1e-3
    assert stats.kstest(places, around(center, 0.3).cdf).pvalue < 1e-6


def test_multiples_near_a_prior_have_the_share_of_what_rounds_to_them():
    normal = around(0.3)
    ends = [0.0, *(0.05 + 0.1 * place for place in range(10)), 1.0]
    shares = {round(0.1 * k, 1): normal.cdf(ends[k + 1]) - normal.cdf(ends[k]) for k in range(11)}
    assert_shares(near(Uniform(0, 1, step=0.1, prior=0.3), 20_000), shares)


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("prior", [2, 4, 10])
def test_integers_near_a_prior_have_the_share_of_their_part_of_the_unit_scale(prior):
    normal = around((prior / 2 - 0.5) / 5)
    shares = {2 * k: normal.cdf(k / 5) - normal.cdf((k - 1) / 5) for k in range(1, 6)}
    assert_shares(near(IntUniform(1, 11, step=2, prior=prior), 20_000), shares)
    assert max(shares, key=lambda value: shares[value]) == prior


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("prior", [1, 3, 7])
def test_integers_of_a_logarithmic_range_near_a_prior_too(prior):
    ends = [math.log(k) / math.log(8) for k in range(1, 9)]
    normal = around((ends[prior - 1] + ends[prior]) / 2)
    shares = {k: normal.cdf(ends[k]) - normal.cdf(ends[k - 1]) for k in range(1, 8)}
    assert_shares(near(LogIntUniform(1, 7, prior=prior), 20_000), shares)
    assert_shares(near(LogIntUniform(16, 127, step=16, prior=16 * prior), 20_000), {16 * k: shares[k] for k in shares})


def test_a_choices_prior_weighs_as_much_as_there_are_values():
    shares = {"a": 1 / 7, "b": 4 / 7, "c": 1 / 7, "d": 1 / 7}
    assert_shares(near(Categorical(["a", "b", "c", "d"], prior="b"), 20_000), shares)
    assert set(near(Categorical(["a"], prior="a"), 10)) == {"a"}


def test_probabilities_share_what_a_choices_prior_leaves():
    shares = {"x": 3 / 5 * 0.7, "y": 2 / 5 + 3 / 5 * 0.3, "z": 0.0}
    assert_shares(near(Categorical(["x", "y", "z"], [0.7, 0.3, 0.0], prior="y"), 20_000), shares)


def test_integers_near_a_prior_of_the_largest_range_are_no_multiples():
    values = near(IntUniform(-(2**63), 2**63 - 1, prior=2**62), 1000)
    assert len({value % 1024 for value in values}) > 500
    assert abs(np.median([value / 2**63 for value in values]) - 0.44) < 0.06


def test_one_half_of_the_trials_is_near_and_parameters_agree_on_which():
    plain, believed = (Space.from_parameters(given) for given in (PLAIN, BELIEVED))
    as_without = 0
    for number in range(1, 2001):
        one, other = plain.draw(5, number), believed.draw(5, number)
        differ = {name for name in one if one[name] != other[name]}
        # Values of a short list may be the same by chance; floats aren't.
        assert not differ or {"u", "lu"} <= differ <= set(PRIORS)
        as_without += not differ
    assert abs(as_without - 1000) < 6 * math.sqrt(500)


def test_the_half_has_nothing_to_do_with_what_is_drawn():
    space = Space.from_parameters({"x": Uniform(0, 1)})
    for seed in (0, 1):
        shares = [space.draw(seed, number)["x"] for number in range(1, 4001) if is_near_prior(seed, number)]
        assert stats.kstest(shares, "uniform").pvalue > 1e-3
    halves = [[is_near_prior(seed, number) for number in range(1, 1001)] for seed in range(20)]
    assert all(abs(sum(half) - 500) < 6 * math.sqrt(250) for half in halves)
    assert len({tuple(half) for half in halves}) == 20


@settings(deadline=None, max_examples=40)
@given(seed=SEEDS)
def test_the_first_trial_takes_the_priors_and_draws_the_rest(seed):
    plain, believed = (Space.from_parameters(given) for given in (PLAIN, BELIEVED))
    assert believed.draw(seed, 0) == {**plain.draw(seed, 0), **PRIORS}
    assert tuple(believed.draw(seed, 0)) == plain.names


@settings(deadline=None, max_examples=40)
@given(kept=st.sets(st.sampled_from(sorted(PRIORS)), min_size=1), seed=SEEDS, number=NUMBERS)
def test_a_prior_changes_no_draw_of_another_parameter(kept, seed, number):
    some = Space.from_parameters(PLAIN | {name: BELIEVED[name] for name in kept}).draw(seed, number)
    whole = Space.from_parameters(BELIEVED).draw(seed, number)
    plain = Space.from_parameters(PLAIN).draw(seed, number)
    assert some == {name: (whole if name in kept else plain)[name] for name in plain}


@settings(deadline=None, max_examples=40)
@given(seed=SEEDS, number=st.integers(0, 10**9))
def test_without_a_prior_a_draw_is_that_of_its_own_bits(seed, number):
    space = Space.from_parameters(PLAIN)
    own = {p.name: p.distribution.draw(draw_bits(seed, number, p.path)) for p in space.parameters}
    assert space.draw(seed, number) == own


def test_draws_and_json_without_priors_are_those_of_before_there_were_any():
    space = Space.from_parameters(PLAIN)
    drawn = [space.draw(seed, number) for seed in (0, 7, 2**32 - 1) for number in range(300)]
    text = json.dumps([space.to_json(), drawn])
    assert hashlib.sha256(text.encode()).hexdigest() == BEFORE


FLOATS = st.floats(allow_nan=False, allow_infinity=False)
POSITIVE = st.floats(min_value=5e-324, allow_infinity=False)
INTS = st.integers(-(2**63), 2**63 - 1)


@st.composite
def believed_ranges(draw) -> Any:
    """A range of any two numbers, perhaps with a step that fits them, and one of its values as the prior."""
    make = draw(st.sampled_from([Uniform, LogUniform, IntUniform, LogIntUniform]))
    whole = make in (IntUniform, LogIntUniform)
    numbers: Any = INTS if whole else FLOATS
    if make in (LogUniform, LogIntUniform):
        numbers = st.integers(1, 2**63 - 1) if whole else POSITIVE
    low, high = sorted(draw(st.lists(numbers, min_size=2, max_size=2, unique=True)))
    counts = st.integers(1, 10**6)
    fitting = counts.map(lambda count: max(abs(low), abs(high)) // count if whole else max(abs(low), abs(high)) / count)
    step = draw(st.none() | fitting | st.integers(1, 10**9))
    try:
        prior = make(low, high, step=step).draw(draw(BITS))
    except SweepError:
        assume(False)
        raise
    return make(low, high, step=step, prior=prior)


@settings(deadline=None, max_examples=100)
@given(distribution=believed_ranges(), bits=BITS)
@pytest.mark.parametrize("end", [None, 0, 2**DRAW_BITS - 1])
def test_what_is_drawn_near_a_prior_could_be_drawn_without_it(distribution, bits, end):
    value = distribution.near(bits if end is None else end)
    assert type(value) is type(distribution.prior)
    assert distribution.min <= value <= distribution.max
    assert distribution.accept(value) == value


@settings(deadline=None, max_examples=80)
@given(distribution=believed_ranges(), bits=st.tuples(BITS, BITS))
def test_more_of_the_bits_gives_no_less(distribution, bits):
    low, high = sorted(bits)
    assert distribution.near(low) <= distribution.near(high)


@pytest.mark.parametrize(
    "distribution",
    [
        Uniform(0, 5e-324, prior=0),
        Uniform(-1.7e308, 1.7e308, prior=1.7e308),
        LogUniform(1.0, math.nextafter(1.0, 2), prior=1.0),
        LogUniform(1e300, math.nextafter(1e300, math.inf), prior=1e300),
    ],
    ids=repr,
)
def test_ranges_at_the_ends_of_floats_have_priors_too(distribution):
    for bits in (0, 1, 2**127, 2**DRAW_BITS - 1):
        assert distribution.min <= distribution.near(bits) <= distribution.max


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: Uniform(0, 1, prior=2), r"^Uniform: prior: must be between 0.0 and 1.0, got 2.0$"),
        (lambda: Uniform(0, 1, step=0.5, prior=0.3), "Uniform: prior: must be a multiple of 0.5, got 0.3"),
        (lambda: LogUniform(1e-5, 1, prior=0), "LogUniform: prior: must be between 1e-05 and 1.0, got 0.0"),
        (lambda: Uniform(0, 1, prior=math.nan), "Uniform: prior: must be a finite number, got nan"),
        (lambda: Uniform(0, 1, prior=any_("a")), "Uniform: prior: must be a number, got 'a'"),
        (lambda: IntUniform(0, 9, prior=any_(0.5)), "IntUniform: prior: must be an integer, got 0.5"),
        (lambda: LogIntUniform(4, 9, step=4, prior=5), "LogIntUniform: prior: must be a multiple of 4, got 5"),
        (lambda: Categorical([1, 2], prior=3), r"Categorical: prior: must be one of the values \(1, 2\), got 3"),
        (lambda: Categorical([1, 2], prior=True), r"Categorical: prior: must be one of the values"),
        (
            lambda: Categorical(["a", "b"], [1, 0], prior="b"),
            "Categorical: prior: must be a value that is drawn, but the probability of 'b' is 0",
        ),
    ],
)
def test_a_prior_that_cannot_be_drawn_is_refused(make, problem):
    with pytest.raises(SweepError, match=problem):
        make()


def any_(value: Any) -> Any:
    return value


def test_a_prior_is_kept_as_it_would_be_drawn():
    assert type(Uniform(0, 2, prior=1).prior) is float
    assert Uniform(0, 1, step=0.1, prior=0.1 + 0.2).prior == 0.3
    assert type(IntUniform(1, 5, prior=any_(np.int64(2))).prior) is int
    assert type(Categorical([1, 2], prior=2.0).prior) is int
    assert Categorical([False, True], prior=False).prior is False


@pytest.mark.parametrize("name", PRIORS)
def test_json_gives_a_prior_back(name):
    distribution = BELIEVED[name]
    back = distribution_from_json(json.loads(json.dumps(distribution.to_json())))
    assert repr(back) == repr(distribution) == repr(pickle.loads(pickle.dumps(distribution)))
    assert [back.near(bits << 124) for bits in range(16)] == [distribution.near(bits << 124) for bits in range(16)]


def test_a_trial_that_changes_its_params_does_not_change_the_prior():
    space = Space.from_parameters({"layers": Categorical([[64, 64], [128]], prior=[64, 64])})
    for number in range(20):
        drawn: Any = space.draw(0, number)["layers"]
        drawn.append(1)
    assert space.draw(0, 0) == {"layers": [64, 64]}


def test_points_come_first_and_what_they_leave_out_takes_the_prior_in_trial_0_alone():
    space = Space.from_parameters({"lr": LogUniform(1e-4, 1, prior=0.01), "depth": IntUniform(1, 9, prior=3)})
    searcher = RandomSearcher(problem_of(space, 1))
    tried = FirstThen(searcher, [{"depth": 7}, {"depth": 8}], space, 1)
    assert tried.suggest(0) == Suggestion({"lr": 0.01, "depth": 7}, "points_to_try")
    assert tried.suggest(1) == Suggestion({**space.draw(1, 1), "depth": 8}, "points_to_try")
    assert [tried.suggest(n) for n in range(2, 20)] == [searcher.suggest(n) for n in range(2, 20)]
    assert FirstThen(searcher, [{}], space, 1).suggest(0) == Suggestion({"lr": 0.01, "depth": 3}, "points_to_try")


def test_a_grid_takes_no_prior():
    space = Space.from_parameters({"group": {"n": IntUniform(1, 3, prior=2)}})
    with pytest.raises(SweepError, match=r"group\.n\.prior: has no effect on a grid.*\n.*points_to_try"):
        GridSearcher.check(Problem(space, Objective(Metric("loss")), 0))
    with pytest.raises(SweepError, match=r"group\.n\.prior: has no effect on qmc"):
        QMC.check(Problem(space, Objective(Metric("loss")), 0))
    assert GridSearcher(problem_of(space)).size == 3
