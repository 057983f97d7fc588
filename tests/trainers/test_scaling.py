"""The rules by which batch and rate follow the width, with the numbers of the paper (Goyal et al. 2017)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hpsearch_comm.errors import ConfigurationError
from hpsearch_trainers.lamb import LAMB
from hpsearch_trainers.lars import LARS
from hpsearch_trainers.scaling import RULES, Scaling, Stage, rate_factor, rule_for

WARMUP = 5.0


def test_the_rates_of_the_paper():
    """0.1 for 256 images (8 workers with 32 each); 8,192 images on 256 workers take 3.2."""
    scaling = Scaling(batch="per_worker")
    assert 0.1 * scaling.target(256, 1, "linear") == 0.1
    assert scaling.global_batch(256, 32) == 8192
    assert 0.1 * scaling.target(256, 32, "linear") == pytest.approx(3.2)


def test_the_warmup_of_the_paper():
    """From 0.1 to 3.2 within 5 epochs, by the same amount in every iteration."""
    steps = 156  # 1.28 million images in batches of 8,192
    stages = [Stage(0, 32.0)]
    rates = [0.1 * rate_factor(stages, step / steps, WARMUP) for step in range(6 * steps)]
    assert rates[0] == pytest.approx(0.1)
    rises = [after - before for before, after in itertools.pairwise(rates)]
    assert rises[: 5 * steps] == pytest.approx([3.1 / (5 * steps)] * (5 * steps))
    assert rates[5 * steps :] == pytest.approx([3.2] * steps)


def test_the_square_root_rule():
    assert Scaling(batch="per_worker").target(64, 4, "sqrt") == 2.0
    assert Scaling(batch="per_worker", lr="linear").target(64, 4, "sqrt") == 4.0
    assert Scaling(batch="per_worker", lr="none").target(64, 4, "linear") == 1.0


@given(st.integers(1, 64), st.integers(64, 4096), st.sampled_from(sorted(RULES)))
def test_a_global_batch_leaves_batch_and_rate_alone(width, batch, rule):
    scaling = Scaling()
    assert scaling.global_batch(batch, width) == batch
    assert scaling.target(batch, width, rule) == 1.0


def test_a_largest_global_batch_bounds_batch_and_rate():
    scaling = Scaling(batch="per_worker", max_global_batch=100)
    assert [scaling.global_batch(32, width) for width in (1, 2, 3, 4, 8)] == [32, 64, 96, 100, 100]
    assert scaling.target(32, 8, "linear") == 100 / 32
    assert scaling.global_batch(128, 1) == 128, "it bounds growth, not what the trial asks for"
    assert scaling.target(128, 4, "linear") == 1.0


def test_a_rate_rises_from_where_it_is_and_falls_at_once():
    stages = [Stage(0, 1.0), Stage(10, 4.0), Stage(20, 2.0), Stage(22, 8.0)]
    at = {9.9: 1.0, 10: 1.0, 12.5: 2.5, 15: 4.0, 19.9: 4.0, 20: 2.0, 22: 2.0, 24.5: 5.0, 27: 8.0, 99: 8.0}
    assert {epoch: rate_factor(stages, epoch, WARMUP) for epoch in at} == pytest.approx(at)


def test_a_growth_in_the_middle_of_a_rise_goes_on_from_there():
    stages = [Stage(0, 2.0), Stage(2.5, 4.0)]
    assert rate_factor(stages, 2.5, WARMUP) == pytest.approx(1.5)
    assert rate_factor(stages, 5.0, WARMUP) == pytest.approx(2.75)
    assert rate_factor(stages, 7.5, WARMUP) == pytest.approx(4.0)


def test_without_warmup_the_rate_is_there_at_once():
    assert rate_factor([Stage(0, 8.0)], 0.0, 0.0) == 8.0


STAGES = st.lists(st.tuples(st.integers(0, 40), st.sampled_from([0.5, 1.0, 2.0, 4.0, 8.0])), max_size=6).map(
    lambda pairs: [Stage(epoch, target) for epoch, target in sorted(pairs)]
)


@given(STAGES, st.floats(0, 60), st.sampled_from([0.0, 1.0, 5.0]))
def test_a_rate_is_always_between_those_asked_for_and_arrives(stages, epoch, warmup):
    targets = [1.0] + [stage.target for stage in stages]
    assert min(targets) <= rate_factor(stages, epoch, warmup) <= max(targets)
    assert rate_factor(stages, 100.0, warmup) == (stages[-1].target if stages else 1.0)


@given(STAGES, st.floats(0, 60))
def test_naming_a_stage_again_changes_nothing(stages, epoch):
    """A segment that goes on at the same width is no growth."""
    again = sorted(stages + [Stage(stage.epoch + 0.5, stage.target) for stage in stages[-1:]], key=lambda s: s.epoch)
    assert rate_factor(again, epoch, WARMUP) == rate_factor(stages, epoch, WARMUP)


@given(STAGES, st.floats(0, 50))
def test_a_rate_never_jumps_upwards(stages, epoch):
    before, after = (rate_factor(stages, moment, WARMUP) for moment in (epoch, epoch + 0.01))
    assert after - before <= 8.0 * 0.01 / WARMUP + 1e-9


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (torch.optim.SGD, "linear"),
        (torch.optim.Adam, "sqrt"),
        (torch.optim.AdamW, "sqrt"),
        (torch.optim.RAdam, "sqrt"),
        (torch.optim.RMSprop, "sqrt"),
        (torch.optim.Adadelta, "sqrt"),
        (torch.optim.Adafactor, "sqrt"),
        (torch.optim.Adagrad, "none"),
        (torch.optim.Rprop, "none"),
        (torch.optim.ASGD, "linear"),
        (LAMB, "sqrt"),
        (LARS, "linear"),
    ],
)
def test_the_rule_of_an_optimizer(make, rule):
    assert rule_for(make([torch.nn.Parameter(torch.ones(2))], lr=0.1)) == rule


def spread(make: Callable[..., torch.optim.Optimizer], lr: float, rows: int, steps: int) -> float:
    """Return how far the minima of many parabolas are missed if noise dominates, with this batch size."""
    generator = torch.Generator().manual_seed(1)
    parameter = torch.nn.Parameter(torch.zeros(1000, dtype=torch.float64))
    optimizer = make([parameter], lr=lr)
    squares = []
    for _ in range(steps):
        noise = torch.randn(1000, generator=generator, dtype=torch.float64) * 30 / math.sqrt(rows)
        parameter.grad = parameter.detach() + noise
        optimizer.step()
        squares.append(float(parameter.detach().square().mean()))
    return math.sqrt(sum(squares[steps // 2 :]) / (steps - steps // 2))


@pytest.mark.some_cases(2)
@pytest.mark.parametrize(
    ("make", "lr"),
    [
        (partial(torch.optim.SGD, momentum=0.9), 0.002),
        (torch.optim.Adam, 0.002),
        (torch.optim.Adamax, 0.002),
        pytest.param(torch.optim.NAdam, 0.002, marks=pytest.mark.exhaustive),
        (torch.optim.RAdam, 0.002),
        (torch.optim.RMSprop, 0.002),
        pytest.param(partial(torch.optim.RMSprop, centered=True), 0.002, marks=pytest.mark.exhaustive),
        (partial(torch.optim.RMSprop, momentum=0.9), 0.0005),
        (torch.optim.Adadelta, 0.6),
        (torch.optim.Adafactor, 0.002),
        (torch.optim.Adagrad, 0.06),
    ],
    ids=str,
)
def test_the_rule_of_an_optimizer_keeps_what_noise_does(make, lr):
    """Four times the rows, in a fourth of the steps; another rule would be off by about 2."""
    rule = rule_for(make([torch.nn.Parameter(torch.ones(2))], lr=lr))
    few, many = spread(make, lr, 1, 2000), spread(make, lr * RULES[rule](4), 4, 500)
    assert 1 / 1.3 < many / few < 1.3


def test_the_rule_of_an_optimizer_of_the_users_own():
    class Mine(torch.optim.AdamW):
        pass

    assert rule_for(Mine([torch.nn.Parameter(torch.ones(2))])) == "sqrt"


def test_what_a_sweep_names():
    assert Scaling.from_dict({}) == Scaling("global", None, 5.0, None)
    values = {"batch": "per_worker", "lr": "sqrt", "warmup_epochs": 2, "max_global_batch": 512}
    assert Scaling.from_dict(values) == Scaling("per_worker", "sqrt", 2, 512)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"batch": "worker"}, r"scaling\.batch must be one of global, per_worker, got 'worker'"),
        ({"lr": "cubic"}, r"scaling\.lr must be one of linear, sqrt, none, got 'cubic'"),
        ({"warmup_epochs": -1}, r"scaling\.warmup_epochs must be a number of at least 0, got -1"),
        ({"warmup_epochs": math.nan}, "got nan"),
        ({"warmup_epochs": True}, "got True"),
        ({"max_global_batch": 0}, r"scaling\.max_global_batch must be a whole number of at least 1, got 0"),
        ({"max_global_batch": 1.5}, "got 1.5"),
        ({"warmup": 5}, "got 'warmup'; did you mean warmup_epochs?"),
    ],
)
def test_what_a_sweep_may_not_name(values, words):
    with pytest.raises(ConfigurationError, match=words):
        Scaling.from_dict(values)


def test_fewer_rows_than_workers():
    with pytest.raises(ConfigurationError, match="a row for each of the 8 workers, got 4 rows"):
        Scaling().global_batch(4, 8)
