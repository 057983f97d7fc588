from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hpsearch
from hpsearch.errors import SweepError
from hpsearch.run.plan import make_plan, plan_text
from hpsearch.schedulers.halving import Hyperband, SuccessiveHalving
from hpsearch.simulation.simulation import relative_time
from hpsearch.space import Space, Uniform
from hpsearch.sweep.parts import Limits, Metric, Resources
from hpsearch.trainable.running_trial import RunningTrial
from tests.hpsearch.support.lives import sweeps
from tests.hpsearch.support.scripted import sweep_of


@pytest.mark.parametrize(
    ("early", "trials", "segments", "resumed", "from_zero"),
    [
        (Hyperband(81), 143, 206, 1581, 1902),
        (Hyperband(81, variant="table"), 128, 187, 1404, 1701),
        (Hyperband(27), 49, 69, 357, 423),
        (SuccessiveHalving(9), 9, 13, 21, 27),
    ],
)
def test_the_papers_numbers(early, trials, segments, resumed, from_zero):
    plan = make_plan(sweep_of(early_terminate=early), 1)
    assert (plan.trials, plan.segments, plan.iterations, plan.iterations_from_zero) == (
        trials,
        segments,
        resumed,
        from_zero,
    )
    assert plan.makespan == resumed  # on one worker


def counting(epochs: Path, checkpoints: bool):
    """Return a trainable that appends a line to a file for each epoch that it really runs."""

    def train(trial: RunningTrial) -> None:
        for iteration in trial.iterations():
            with epochs.open("a") as file:
                file.write(f"{trial.number} {iteration}\n")
            loss = trial.params["x"] / iteration
            trial.report({"loss": loss}, checkpoint={"iteration": iteration} if checkpoints else None)

    return train


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("checkpoints", [True, False])
def test_a_trainable_that_counts_its_epochs_on_disk_counts_what_the_plan_says(tmp_path, checkpoints):
    epochs = tmp_path / "epochs.txt"
    study = hpsearch.search(
        counting(epochs, checkpoints),
        parameters={"x": hpsearch.Uniform(0.0, 1.0)},
        metric="loss",
        early_terminate=hpsearch.Hyperband(27, eta=3),
        directory=tmp_path / "study",
        backend="inline",
        observers=[],
        progress=False,
    )
    plan = make_plan(study.sweep, 1)
    lines = epochs.read_text().splitlines()
    assert len(study.trials) == plan.trials == 49
    assert len(lines) == study.iterations == (plan.iterations if checkpoints else plan.iterations_from_zero)
    if checkpoints:
        assert len(lines) == len(set(lines)) == 357
    assert {line.split()[0] for line in lines} == {str(number) for number in range(49)}


@settings(deadline=None, max_examples=25)
@given(sweeps(settled=True))
def test_the_plan_of_any_sweep_keeps_its_own_books(sweep):
    one, many = make_plan(sweep, 1), make_plan(sweep, 5)
    assert (one.trials, one.segments, one.iterations) == (many.trials, many.segments, many.iterations)
    assert one.iterations <= one.iterations_from_zero
    assert one.makespan == one.iterations
    assert one.iterations / 5 <= many.makespan <= one.iterations
    assert one.segments == sum(rung.finished for rung in one.rungs)
    assert one.trials == sum(rung.finished for rung in one.rungs if rung.rung == 0)


def test_workers_are_those_that_are_given_or_as_many_as_the_machine_has_room_for(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 12)
    assert make_plan(sweep_of(), 3).workers == 3
    assert make_plan(sweep_of(), None).workers == 12
    assert make_plan(sweep_of(resources=Resources(cpus_per_worker=5)), None).workers == 2
    assert make_plan(sweep_of(resources=Resources(cpus_per_worker=50)), None).workers == 1


def test_the_text_says_brackets_sums_and_makespan():
    text = plan_text(make_plan(sweep_of(early_terminate=Hyperband(27)), 4))
    assert "s: random, Hyperband from 1 to 27 iterations by 3" in text
    assert "bracket 0: 27 to iteration 1, then 9 to iteration 3, then 3 to iteration 9, then 1 to iteration 27" in text
    assert "bracket 3: 4 to iteration 27" in text
    assert "trials       49\n" in text
    assert "trial-rungs  69\n" in text
    assert "iterations   357 when each promotion resumes from its checkpoint" in text
    assert "423 from zero" in text
    assert "iterations long on 4 workers, which are busy" in text


def test_the_text_of_a_long_sweep_is_short():
    text = plan_text(make_plan(sweep_of(run_cap=1000), 1))
    assert len(text.splitlines()) < 25
    assert "more brackets" in text
    assert "1 worker," in text


def test_the_text_without_early_termination():
    space = Space.from_parameters({"x": Uniform(0.0, 1.0, points=5)})
    text = plan_text(make_plan(sweep_of(method="grid", parameters=space, early_terminate=None, max_iter=4), 1))
    assert "s: grid, every trial to its end" in text
    assert "iterations   20 when" in text
    assert "trials       5\n" in text
    assert "from zero" not in text
    text = plan_text(make_plan(sweep_of(method="grid", parameters=space, early_terminate=None, run_cap=3), 1))
    assert "trials       3 of the grid's 5 points\n" in text
    text = plan_text(make_plan(sweep_of(early_terminate=None, run_cap=7), 1))
    assert "unknown: no max_iter is given" in text
    assert "trials       7\n" in text


def elastic(early, workers: int, **resources):
    """Plan a sweep whose trials may take all workers."""
    given = Resources(max_workers_per_trial=workers, **resources)
    return make_plan(sweep_of(early_terminate=early, resources=given), workers)


def test_an_elastic_bracket_widens_rung_by_rung():
    plan = elastic(SuccessiveHalving(27), 27)
    assert plan.fixed.makespan == 27
    assert plan.elastic is not None
    # rungs of 1, 2, 6 and 18 iterations
    assert plan.elastic.makespan == pytest.approx(
        sum(n * relative_time(width) for n, width in ((1, 1), (2, 3), (6, 9), (18, 27)))
    )
    assert plan.elastic.widths == {(0, 0): [1], (0, 1): [3], (0, 2): [9], (0, 3): [27]}
    assert plan.elastic.busy == pytest.approx(1.0)
    text = plan_text(plan)
    assert (
        "bracket 0: 27 to iteration 1 (1 worker each), then 9 to iteration 3 (3 workers each), then 3 to iteration 9 "
        "(9 workers each), then 1 to iteration 27 (27 workers)\n"
    ) in text
    assert "makespan     3.82 iterations long on 27 workers, 1 to 27 per trial, which are busy 100% of it\n" in text
    assert "             27 iterations long on 27 workers, 1 worker per trial, which are busy 11% of it\n" in text
    assert (
        "elastic is 7.1 times as short, when each doubling of a trial's workers makes its iterations 1.8 times" in text
    )


@settings(deadline=None, max_examples=30)
@given(sweeps(settled=True), st.integers(1, 9), st.integers(1, 3))
def test_elastic_and_fixed_plans_run_the_same_and_elastic_is_never_much_longer(sweep, workers, least):
    workers = max(workers, least + 1)
    resources = Resources(workers_per_trial=least, max_workers_per_trial=least + 6)
    plan = make_plan(replace(sweep, resources=resources), workers)
    fixed = make_plan(replace(sweep, resources=Resources(workers_per_trial=least)), workers)
    assert (plan.trials, plan.segments, plan.iterations, plan.rungs) == (
        fixed.trials,
        fixed.segments,
        fixed.iterations,
        fixed.rungs,
    )
    assert plan.fixed == fixed.fixed
    assert plan.elastic is not None
    assert fixed.elastic is None
    assert plan.elastic.busy <= 1 + 1e-9
    assert plan.elastic.makespan <= 1.1 * plan.fixed.makespan
    assert set(plan.elastic.widths) == {(rung.bracket, rung.rung) for rung in plan.rungs}
    assert all(least <= width <= workers for widths in plan.elastic.widths.values() for width in widths)


def test_a_fixed_width_above_one_counts():
    plan = make_plan(sweep_of(early_terminate=SuccessiveHalving(9), resources=Resources(workers_per_trial=2)), 4)
    assert plan.elastic is None
    one = make_plan(sweep_of(early_terminate=SuccessiveHalving(9)), 2)
    assert plan.makespan == pytest.approx(one.makespan * relative_time(2))
    text = plan_text(plan)
    assert "on 4 workers, 2 workers per trial, which are busy" in text
    assert "makes its iterations 1.8 times as fast" in text
    assert "each)" not in text


def test_too_few_workers_for_a_trial_are_a_mistake():
    sweep = sweep_of(resources=Resources(workers_per_trial=4))
    with pytest.raises(SweepError, match=r"workers_per_trial = 4 workers at once, got 3 in all: .* \(--workers\)"):
        make_plan(sweep, 3)
    assert make_plan(sweep, 4).workers == 4


def test_a_doubling_is_worth_what_it_is_said_to_be():
    assert relative_time(1) == 1
    assert relative_time(2) == pytest.approx(1 / 1.8)
    assert relative_time(8, 0.5) == pytest.approx(1.0)
    assert relative_time(4, 1.0) == 0.25


def test_nothing_is_said_of_widening_where_there_are_no_workers_for_it():
    sweep = sweep_of(early_terminate=SuccessiveHalving(9), resources=Resources(max_workers_per_trial=4))
    assert make_plan(sweep, 1).elastic is None
    assert make_plan(sweep, 2).elastic is not None


def test_the_plan_says_what_may_end_the_sweep_early_and_counts_all_that_it_could_run():
    plain = make_plan(sweep_of(early_terminate=Hyperband(27)), 4)
    early = sweep_of(
        early_terminate=Hyperband(27), metric=Metric("loss", target=0.1), limits=Limits(max_time=1.0, patience=17)
    )
    plan = make_plan(early, 4)
    assert replace(plan, sweep=plain.sweep) == plain
    assert plan_text(plan).removeprefix(plan_text(plain)).splitlines() == [
        "ends early   when a trial reaches loss 0.1",
        "ends early   when 17 trials in a row ended without a better loss",
        "             which bracket 0 may bring about at iteration 1, where 18 are stopped at once: a larger "
        "limits.patience is wanted",
    ]
    patient = plan_text(make_plan(replace(early, limits=Limits(patience=19)), 4))
    assert "stopped at once" not in patient
    assert "19 trials in a row" in patient
    assert "limits.patience is wanted" not in plan_text(
        make_plan(sweep_of(early_terminate=None, max_iter=3, run_cap=9, limits=Limits(patience=1)), 4)
    )


@pytest.mark.parametrize(
    ("early", "told"),
    [
        (None, "lag 4: suggestion n knows the results of trials 0 to n - 4"),
        (Hyperband(9), "lag 4: suggestion n knows the first rung of trials 0 to n - 4, and all rungs of the brackets"),
    ],
)
def test_a_plan_says_what_a_suggestion_knows(early, told):
    sweep = sweep_of(method="tpe", early_terminate=early, max_iter=None if early else 9, run_cap=20)
    assert "lag" not in plan_text(make_plan(sweep, 1))
    assert told in plan_text(make_plan(replace(sweep, search=hpsearch.Search(lag=4)), 1)).splitlines()[1]


def test_a_plan_and_a_run_say_which_method_bayes_is(tmp_path, capsys):
    sweep = sweep_of(method="bayes", early_terminate=None, max_iter=1, run_cap=1)
    assert plan_text(make_plan(sweep, 1)).startswith("s: bayes (tpe), every trial to its end\n")
    hpsearch.search(
        lambda trial: trial.report({"loss": 0.0}),
        parameters={"x": hpsearch.Uniform(0, 1)},
        metric="loss",
        method="bayes",
        max_iter=1,
        run_cap=1,
        backend="inline",
        directory=tmp_path / "study",
        progress=True,
    )
    assert "method bayes is tpe here" in capsys.readouterr().out


def test_a_plan_says_how_large_a_structured_space_is_and_who_can_search_it():
    branches = hpsearch.Choice({"a": {"x": [1, 2]}, "b": {}})
    space = Space.from_parameters({"branch": branches, "n": [1, 2, 3, 4]}, ["n < 4"])
    lines = plan_text(
        make_plan(sweep_of(parameters=space, run_cap=4, max_iter=1, early_terminate=None), 1)
    ).splitlines()
    assert "space        3 parameters, 1 of which don't always apply; 9 points" in lines
    kept = next(line for line in lines if "draws keep the constraints" in line)
    assert 700 <= int(kept.split()[0]) <= 800
    assert "methods      random, grid, tpe, bayes, bohb, gp, nsga2, evolution, pbt" in lines
    assert any(line.startswith("             not qmc: must not be given for qmc") for line in lines)
    assert any(line.startswith("             not cmaes: ") for line in lines)


def test_a_plan_of_several_goals_offers_no_method_whose_scheduler_refuses_them():
    space = Space.from_parameters({"branch": hpsearch.Choice({"a": {"x": [1, 2]}, "b": {}})})
    goals = (Metric("loss"), Metric("size"))
    changes = {"parameters": space, "run_cap": 4, "max_iter": 1, "early_terminate": None, "metric": goals}
    lines = plan_text(make_plan(sweep_of(**changes), 1)).splitlines()
    offered = next(line for line in lines if line.startswith("methods "))
    assert "evolution" in offered
    assert "pbt" not in offered
    assert "             not pbt: forks trials by one number" in lines


def test_a_plan_of_a_space_without_structures_says_nothing_of_it():
    text = plan_text(make_plan(sweep_of(early_terminate=None, max_iter=1, run_cap=2), 1))
    assert "space" not in text
