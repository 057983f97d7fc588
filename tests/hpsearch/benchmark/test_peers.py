"""Peers on the tables and the clock of `hpsearch benchmark`."""

from __future__ import annotations

import optuna
import pytest
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.samplers import BaseSampler, CmaEsSampler, GPSampler, RandomSampler, TPESampler

from hpsearch.benchmark.rows import read_rows
from hpsearch.benchmark.runs import RunKey, carry_out, task_of
from hpsearch.benchmark.suite import load_suite
from tests.benchmarks.peers import optuna_methods, output
from tests.hpsearch.benchmark.test_suites import write

NUMBERS: dict[str, BaseDistribution] = {"x": FloatDistribution(0, 1), "y": FloatDistribution(0, 1)}
CHOICES: dict[str, BaseDistribution] = {"x": FloatDistribution(0, 1), "y": CategoricalDistribution([0.0, 1.0])}


@pytest.mark.parametrize(
    ("space", "complete", "expected"),
    [
        (NUMBERS, 0, RandomSampler),
        (NUMBERS, 1, GPSampler),
        (NUMBERS, 249, GPSampler),
        (NUMBERS, 250, CmaEsSampler),
        (CHOICES, 1, TPESampler),
        (CHOICES, 250, TPESampler),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_the_rule_takes_the_sampler_that_autosampler_takes(space, complete, expected):
    study = optuna.create_study(sampler=RandomSampler(seed=0))
    for number in range(complete):
        params = {"x": number / 250, "y": float(number % 2)}
        study.add_trial(optuna.create_trial(params=params, distributions=space, value=float(number)))
    seen: list[BaseSampler] = []
    for _ in range(2):
        optuna_methods.follow_auto_rule(study, 0, space is CHOICES)
        seen.append(study.sampler)
    assert isinstance(study.sampler, expected)
    assert seen[0] is seen[1]  # it keeps what it has learned


def test_a_peer_has_the_clock_and_the_judgement_of_our_runs(tmp_path, monkeypatch):
    suite = load_suite(write(tmp_path))
    task, key = task_of(suite, "one.yaml"), RunKey("one.yaml", "random", 2, 0)
    course = optuna_methods.run(suite, task, key)
    assert course == optuna_methods.run(suite, task, key)
    assert course.trials == pytest.approx(carry_out(suite, key).trials, abs=2)
    assert 0 < course.at[0] < course.at[-1] <= suite.budgets[-1]
    assert list(course.regret) == sorted(course.regret, reverse=True)
    words = [str(tmp_path / "suite.yaml"), str(tmp_path / "out.csv"), "--workers", "2", "--seeds", "2"]
    monkeypatch.setattr("sys.argv", ["optuna_methods", *words])
    for _ in range(2):  # the second time everything is there already
        output.write_peer(None, "optuna", "random", 1, optuna_methods.run)
    rows = read_rows([tmp_path / "out.csv"])
    assert [(row.task, row.method, row.seed) for row in rows] == [
        (name, "optuna_random", seed) for name in suite.tasks for seed in range(2)
    ]
    assert rows[0].hits[10] == course.hit[-1]
