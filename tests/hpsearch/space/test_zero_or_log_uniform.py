"""Zero or log-uniform: one number for draws, models, importance and charts."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hpsearch
from hpsearch.errors import SweepError
from hpsearch.page.params import axis_of
from hpsearch.results.importance import importance_of
from hpsearch.results.optuna_distributions import optuna_parameter
from hpsearch.searchers.optuna_space import OptunaSpace
from hpsearch.seeds import DRAW_BITS
from hpsearch.space import LogUniform, Space, ZeroOrLogUniform, distribution_from_json
from hpsearch.space.unit_space import UnitSpace
from hpsearch.sweep.distributions import read_distribution, written_distribution

DECAY = ZeroOrLogUniform(1e-6, 1e-1)
BITS = st.integers(0, 2**DRAW_BITS - 1)
SPACE = Space.from_parameters({"decay": DECAY, "lr": hpsearch.Uniform(0, 1)})


def test_a_quarter_of_the_draws_are_zero_and_the_others_log_uniform():
    drawn = [SPACE.draw(0, number)["decay"] for number in range(4000)]
    positive = [math.log10(value) for value in drawn if value]
    assert 900 < len(drawn) - len(positive) < 1100
    assert -6 <= min(positive) < -5.9
    assert -1.1 < max(positive) <= -1
    assert abs(sum(positive) / len(positive) + 3.5) < 0.1
    assert all(type(value) is float for value in drawn)


@given(BITS, BITS)
def test_draws_rise_with_their_bits_and_lie_where_the_scale_says(one, other):
    low, high = sorted((one, other))
    assert DECAY.draw(low) <= DECAY.draw(high)
    value = DECAY.draw(one)
    assert DECAY.accept(value) == value
    assert (DECAY.share(value) < 0.25) == (value == 0)
    again = DECAY.quantile(DECAY.share(value))
    assert again == value == 0 or again == pytest.approx(value, rel=1e-6)


@given(BITS, BITS)
def test_a_mutation_is_another_value_that_may_be(start, bits):
    value = DECAY.draw(start)
    for other in [DECAY.mutate(value, bits), *DECAY.neighbours(value)]:
        assert other != value
        assert DECAY.accept(other) == other
    assert DECAY.neighbours(0.0) == [1e-6]
    assert DECAY.neighbours(1e-6)[0] == 0


@pytest.mark.parametrize("value", [0.0, 1e-6, 3e-4, 1e-1])
def test_models_see_one_number(value):
    point = {"decay": value, "lr": 0.5}
    optuna = OptunaSpace(SPACE)
    encoded = optuna.encode(point)
    assert encoded is not None
    assert optuna.build(lambda name, _: encoded[name])["decay"] == pytest.approx(value, rel=1e-9, abs=0)
    unit = UnitSpace(SPACE)
    shares = unit.encode(point)
    assert shares is not None
    assert len(shares) == 2
    assert unit.decode(shares)["decay"] == pytest.approx(value, rel=1e-9, abs=0)
    found = optuna_parameter(DECAY, [value])
    assert found is not None
    assert found.distribution._contains(value)


def test_it_is_read_from_a_file_and_back():
    config = {"distribution": "log_uniform_values", "min": 1e-6, "max": 1e-1, "or": [0], "prior": 0, "default": 0.001}
    read = read_distribution(config, ("parameters", "decay"))
    assert read == ZeroOrLogUniform(1e-6, 1e-1, prior=0.0, default=0.001)
    assert distribution_from_json(read.to_json()) == read
    assert read_distribution(written_distribution(read), ()) == read
    assert ZeroOrLogUniform(0.01, 1, points=3).grid() == [0.0, 0.01, 0.1, 1.0]
    del config["or"], config["prior"]
    assert read_distribution(config, ()) == LogUniform(1e-6, 1e-1, default=0.001)


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"min": 1e-6, "max": 0.1, "or": 0}, "or: must be \\[0\\], got 0"),
        ({"min": 1e-6, "max": 0.1, "or": [0, 1]}, "or: must be \\[0\\], got"),
        ({"min": 1e-6, "max": 0.1, "or": [0], "q": 0.001}, "q: must not be given with or: \\[0\\]"),
        ({"min": 0, "max": 0.1, "or": [0]}, "min: must be greater than 0"),
        ({"min": 1e-6, "max": 0.1, "or": [0], "prior": 0.5}, "prior: must be 0, or between 1e-06 and 0.1, got 0.5"),
        ({"distribution": "uniform", "min": 0, "max": 0.1, "or": [0]}, "or: has no meaning for uniform"),
    ],
)
def test_what_it_cant_be_is_said(config, problem):
    with pytest.raises(SweepError, match=problem):
        read_distribution({"distribution": "log_uniform_values", **config}, ("parameters", "decay"))


def test_a_chart_has_zero_below_the_range_and_absent_below_that():
    points = [{"decay": 0.0}, {"decay": 1e-6}, {"decay": 1e-1}, {}]
    axis = axis_of("decay", DECAY, points)
    assert axis is not None
    assert axis.values == ["0", 1e-6, 1e-1, "absent"]
    absent, zero, low, high = (axis.scale.fraction(value) for value in ["absent", "0", 1e-6, 1e-1])
    assert 0 == absent < zero < low < high == 1
    assert axis.scale.fraction(10**-3.5) == pytest.approx((low + high) / 2)
    plain = axis_of("decay", DECAY, points[1:3])
    assert plain is not None
    assert plain.scale.fraction(1e-6) == 0


class Decayed(hpsearch.Curves):
    """Best at 0."""

    def curve(self, params: dict[str, float], seed: int) -> hpsearch.Curve:
        decay = params["decay"]
        return hpsearch.Curve({"loss": [0.0 if decay == 0 else 8 + math.log10(decay)]}, 1.0)


@pytest.mark.parametrize("method", ["tpe", "evolution"])
def test_a_search_finds_zero_and_its_importance(method):
    study = hpsearch.search(
        Decayed,
        parameters={"decay": DECAY, "lr": hpsearch.Uniform(0, 1)},
        metric="loss",
        method=method,
        max_iter=1,
        run_cap=40,
        directory=":memory:",
        backend="simulated",
        resources={"workers": 1},
        progress=False,
    )
    values = [row.params["decay"] for row in study.trials]
    assert study.best_params["decay"] == 0
    assert values.count(0.0) > 10
    assert importance_of(study).shares["decay"] > 0.9
