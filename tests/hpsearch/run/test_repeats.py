"""Sweeps whose configurations are repeated: killed anywhere and resumed, read from files, and what is shown of them."""

from __future__ import annotations

import json
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hpsearch
from hpsearch.config.checks import InvalidKey
from hpsearch.errors import SweepError
from hpsearch.events import Started
from hpsearch.journal.journal import Journal
from hpsearch.objective.repeats import paired_p_value
from hpsearch.run.plan import make_plan, plan_text
from hpsearch.space import Uniform
from hpsearch.study.warm_start import stored_warm_start
from hpsearch.sweep.file import load_sweep
from hpsearch.sweep.parts import Repeats
from hpsearch.sweep.sweep import Sweep
from hpsearch.tables.repeats import lead_text
from hpsearch.tables.trials import rows_to_csv
from tests.hpsearch.support.command_line import ROOT, call, write_sweep
from tests.hpsearch.support.fork_server import ForkServer
from tests.hpsearch.support.killed_repeats import SWEEPS, Noisy, begin
from tests.hpsearch.support.scripted import events_of
from tests.hpsearch.support.tensorboards import Board


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with ForkServer("tests.hpsearch.support.killed_repeats") as server:
        yield server


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("whole")
    for name in SWEEPS:
        begin(str(folder / name), name, workers=1)
    return {name: folder / name for name in SWEEPS}


def table_of(study: Path) -> str:
    loaded = hpsearch.load(study)
    assert loaded.state == "finished"
    reasons = [row.reason for row in loaded.trials]
    return rows_to_csv(loaded.trials, loaded.names) + "\n".join(reasons)


@pytest.mark.some_cases(2)
@pytest.mark.parametrize("name", SWEEPS)
@pytest.mark.parametrize("workers", [2, 5])
def test_the_table_is_the_same_on_any_number_of_workers(whole, tmp_path, name, workers):
    begin(str(tmp_path / "study"), name, workers)
    assert table_of(tmp_path / "study") == table_of(whole[name])


@pytest.mark.parametrize(
    ("name", "first", "step"),
    [
        ("race", 1, 9),
        *(pytest.param(name, 1, 1, marks=pytest.mark.exhaustive) for name in SWEEPS),
    ],
)
def test_killed_after_each_event_and_resumed_on_other_workers_it_ends_with_the_same_table(
    server, whole, tmp_path, name, first, step
):
    expected, number = table_of(whole[name]), first
    while True:
        study, workers = tmp_path / str(number), (1, 2, 5)[number % 3]
        status = server.call("begin", str(study), name, workers, number)
        if status == 0:
            break
        assert status == -signal.SIGKILL
        assert len(events_of(study)) == number
        assert server.call("begin", str(study), name, (1, 2, 5)[(number // step) % 3]) == 0
        assert table_of(study) == expected
        shutil.rmtree(study)
        number += step
    assert number > 20


def test_a_race_saves_trials_and_keeps_the_best(whole):
    study = hpsearch.load(whole["race"])
    best = study.configurations[0].repeated
    assert best is not None
    assert len(study.trials) < 20
    assert study.total == (len(study.trials), 2 * len(study.trials))
    eliminated = [row.reason for row in study.trials if "is eliminated after" in row.reason]
    assert len(eliminated) == 4 - sum(row.standing is not None for row in study.configurations)
    assert study.best_value == pytest.approx(sum(study.repeated_values(best.configuration)) / 5)
    assert study.best_trial.number == study.configurations[0].number
    assert [row.number for row in study.ranked[:5]] == [
        row.number for row in study.trials if row.repeated and row.repeated.configuration == best.configuration
    ]


def test_seeds_are_those_of_the_repeats_in_all_configurations(whole):
    for name, path in whole.items():
        new = [event.new for event in events_of(path) if isinstance(event, Started) and event.new is not None]
        by_repeat = {repeat: {trial.seed for trial in new if trial.repeat == repeat} for repeat in range(3)}
        assert all(len(seeds) == 1 for seeds in by_repeat.values()), name
        assert len(set.union(*by_repeat.values())) == 3


@pytest.mark.parametrize("repeats", [3, {"n": 3}, Repeats(3)])
def test_python_takes_a_number_a_mapping_or_settings(repeats):
    study = hpsearch.search(
        Noisy,
        {"x": Uniform(0.0, 1.0)},
        metric="loss",
        max_iter=2,
        run_cap=6,
        repeats=repeats,
        resources={"workers": 2},
        directory=":memory:",
        backend="simulated",
        progress=False,
    )
    assert study.sweep.repeats == Repeats(3)
    assert [row.repeated.repeat for row in study.trials if row.repeated] == [0, 1, 2, 0, 1, 2]
    assert list(study.trials_dataframe().columns)[-5:] == ["configuration", "repeat", "mean", "std", "n"]


NOISY = "tests.hpsearch.support.killed_repeats:Noisy"


def test_the_command_line_runs_repeats_and_shows_them(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = write_sweep(tmp_path / "sweep.yaml", NOISY, run_cap=8)
    ran = call(capsys, "run", path, "--dir", "s", "--backend", "simulated", "--workers", 2, "-q", "--set", "repeats=4")
    assert ran.code == 0, ran.err
    study = hpsearch.load(tmp_path / "s")
    assert lead_text(study) in ran.out
    best, other = (row.repeated for row in study.configurations)
    assert best is not None
    assert other is not None
    assert f"configuration {best.configuration}, loss {best.values[0]:.4g} ±" in ran.out
    assert f"(mean of 4); next is configuration {other.configuration}, {other.values[0]:.4g} ±" in ran.out

    table = call(capsys, "trials", "s", "--format", "csv").out.splitlines()
    assert table[0].endswith(",width,configuration,repeat,mean,std,n")
    assert len(table) == 9
    record = json.loads(call(capsys, "best", "s", "--format", "json").out)
    assert record["value"] == best.values[0]
    assert record["lead"] == lead_text(study)
    shown = call(capsys, "best", "s").out
    assert "lead        configuration" in shown
    top = call(capsys, "trials", "s", "--top", "4", "--columns", "configuration,repeat,n").out
    assert [line.split() for line in top.splitlines() if line[-1:] == "4"] == [
        [str(best.configuration), str(repeat), "4"] for repeat in range(4)
    ]
    grouped = call(capsys, "trials", "s", "--by", "configuration", "--format", "csv").out.splitlines()
    assert grouped[1].startswith(f"{best.configuration},4,0,{best.values[0]!r}")
    page = json.loads(call(capsys, "trial", "s", "5", "--format", "json").out)
    assert (page["repeated"]["configuration"], page["repeated"]["repeat"]) == (1, 1)
    assert call(capsys, "extend", "s", "--run-cap", "10").err.endswith("write 8 or 12\n")
    assert call(capsys, "extend", "s", "--run-cap", "12").code == 0


def test_the_lead_is_noise_unless_the_test_says_otherwise(whole):
    study = hpsearch.load(whole["qmc"])
    rows = [row.repeated for row in study.configurations if row.repeated is not None]
    values = [study.repeated_values(entry.configuration) for entry in rows]
    noise = [
        entry.configuration for entry, row in zip(rows, values, strict=True) if paired_p_value(values[0], row) >= 0.05
    ]
    text = lead_text(study)
    assert ("is within noise" in text) == (len(noise) > 1)
    assert ("the lead is more than noise" in text) == (len(noise) == 1)


def test_a_quantile_decides_and_is_not_tested():
    study = hpsearch.search(
        Noisy,
        {"x": Uniform(0.0, 1.0)},
        metric="loss",
        max_iter=2,
        run_cap=9,
        repeats={"n": 3, "quantile": 1},
        resources={"workers": 2},
        directory=":memory:",
        backend="simulated",
        progress=False,
    )
    worst = [max(study.repeated_values(configuration)) for configuration in range(3)]
    assert study.best_value == min(worst)
    assert list(study.trials_dataframe()["quantile"]) == [value for value in worst for _ in range(3)]
    assert "(quantile of 3); next is configuration" in lead_text(study)
    assert "noise" not in lead_text(study)


def test_of_configurations_that_break_a_constraint_none_is_in_the_lead():
    def study_with(constraint: str) -> hpsearch.Study:
        return hpsearch.search(
            Noisy,
            {"parameters": {"x": Uniform(0.0, 1.0)}, "outcome_constraints": [constraint]},
            metric="loss",
            max_iter=2,
            run_cap=9,
            repeats=3,
            resources={"workers": 2},
            directory=":memory:",
            backend="simulated",
            progress=False,
        )

    assert lead_text(study_with("loss <= 0.1")) == ""
    free = study_with("loss <= 9")
    middle = sorted(row.repeated.values[0] for row in free.configurations if row.repeated)[1]
    bounded = study_with(f"loss >= {middle}")
    first = bounded.configurations[0].repeated
    assert first is not None
    assert first.values[0] == middle
    assert lead_text(bounded).startswith(f"configuration {first.configuration}, loss {middle:.4g} ±")


def test_the_page_and_tensorboard_show_mean_spread_and_n(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = write_sweep(tmp_path / "sweep.yaml", NOISY, run_cap=6, repeats=3)
    assert call(capsys, "run", path, "--dir", "s", "--backend", "simulated", "--workers", 2, "-q").code == 0
    assert call(capsys, "report", "s").code == 0
    page = (tmp_path / "s" / "report.html").read_text()
    for head in ("configuration", "mean", "std", "n"):
        assert f'<th scope="col">{head}</th>' in page
    study = hpsearch.load(tmp_path / "s")
    assert lead_text(study)[:40] in page
    groups = Board(tmp_path / "s" / "tensorboard").sessions()
    assert set(groups) == {"configuration 0", "configuration 1"}
    for row in study.configurations:
        repeated = row.repeated
        assert repeated is not None
        group = groups[f"configuration {repeated.configuration}"]
        values = {metric.name.tag: metric.value for metric in group.metric_values}
        assert values["hpsearch/mean"] == pytest.approx(repeated.values[0])
        assert values["loss"] == pytest.approx(repeated.values[0])
        assert values["hpsearch/std"] == pytest.approx(repeated.deviations[0])
        assert values["hpsearch/n"] == 3
        assert len(group.sessions) == 3


def test_a_rerun_of_the_best_configurations_has_other_seeds_and_no_repeats(whole, tmp_path):
    study = hpsearch.load(whole["qmc"])
    rerun = hpsearch.rerun(
        study.directory, top=2, seeds=2, directory=tmp_path / "again", backend="simulated", observers=[], progress=False
    )
    assert [entry.value for entry in rerun.former] == [
        row.repeated.values[0] for row in study.configurations[:2] if row.repeated
    ]
    assert rerun.study.sweep.repeats == Repeats()
    seeds = [
        {event.new.seed for event in events_of(path) if isinstance(event, Started) and event.new is not None}
        for path in (study.directory, rerun.study.directory)
    ]
    assert len(seeds[1]) == 4
    assert not seeds[0] & seeds[1]


def test_a_search_begins_with_the_value_of_each_configuration(whole, tmp_path):
    study = hpsearch.search(
        Noisy,
        {"x": Uniform(0.0, 1.0, points=3)},
        metric="loss",
        method="tpe",
        max_iter=2,
        run_cap=3,
        warm_start=str(whole["qmc"]),
        resources={"workers": 2},
        directory=tmp_path / "s",
        backend="simulated",
        observers=[],
        progress=False,
    )
    with Journal.read(study.directory / "study.db") as journal:
        past = stored_warm_start(journal.study()).past
    rows = sorted(hpsearch.load(whole["qmc"]).configurations, key=lambda row: row.number)
    assert [dict(entry.values) for entry in past] == [{2: row.repeated.values[0]} for row in rows if row.repeated]


def test_the_plan_counts_configurations(whole):
    lines = plan_text(make_plan(hpsearch.load(whole["race"]).sweep, 2)).splitlines()
    assert "trials       20" in lines
    assert "repeats      4 configurations, each trained with the same 5 seeds" in lines
    assert "             fewer trials where the race eliminates some, from 3 repeats on" in lines
    lines = plan_text(make_plan(hpsearch.load(whole["grid"]).sweep, 2)).splitlines()
    assert "repeats      3 configurations, each trained with the same 4 seeds" in lines


def sweep_of(**changes) -> Sweep:
    given: dict[str, Any] = {"name": "s", "trainable": NOISY, "metric": hpsearch.Metric("loss"), "method": "random"}
    given |= {"parameters": {"x": Uniform(0.0, 1.0)}, "max_iter": 2, "run_cap": 10, "repeats": Repeats(5)}
    return Sweep(**{key: value for key, value in (given | changes).items() if value is not None})


RACE = Repeats(5, racing=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"max_iter": None, "early_terminate": hpsearch.Hyperband(9)},
            "repeats: must not be given with early_terminate of type hyperband: repeats are whole trainings\n"
            "  remove one of them; to repeat the best trials of a study that has ended: hpsearch rerun DIR",
        ),
        ({"method": "bohb", "max_iter": 9}, "must not be given with method bohb, which runs over asha"),
        ({"method": "pbt", "max_iter": 9, "run_cap": 20}, "must not be given with method pbt, which runs over pbt"),
        (
            {"method": "evolution", "search": hpsearch.Search(options={"inherit": True})},
            "repeats: must not be given where method evolution forks trials: each is trained from its start",
        ),
        (
            {"run_cap": 12},
            "run_cap: must be a multiple of repeats (5), the trials of each configuration, got 12\n  write 10 or 15",
        ),
        ({"run_cap": 3}, "write 5"),
        ({"method": "tpe", "repeats": RACE}, "repeats.racing: must be false where method is tpe"),
        ({"metric": (hpsearch.Metric("loss"), hpsearch.Metric("cost")), "repeats": RACE}, "by anything but one metric"),
        ({"outcome_constraints": ("cost <= 1",), "repeats": RACE}, "repeats.racing: must be false where"),
        ({"run_cap": None, "repeats": RACE}, "run_cap: is required where repeats.racing is true and method is random"),
        ({"limits": hpsearch.Limits(patience=3), "repeats": RACE}, "limits.patience: must not be given where"),
    ],
)
def test_what_has_no_meaning_with_repeats_is_refused(changes, message):
    with pytest.raises(InvalidKey) as error:
        sweep_of(**changes)
    assert message in str(error.value)


def test_a_file_names_the_line_of_a_mistake(tmp_path):
    path = write_sweep(tmp_path / "sweep.yaml", NOISY, repeats={"n": 3, "racing": True})
    with pytest.raises(SweepError, match=r"sweep.yaml:\d+: repeats.n: must be more than 3 where racing is true, got 3"):
        load_sweep(path)
    with pytest.raises(SweepError, match="--set repeats=0: repeats: must be at least 1, got 0"):
        load_sweep(write_sweep(tmp_path / "other.yaml", NOISY), ["repeats=0"])
    assert load_sweep(write_sweep(tmp_path / "none.yaml", NOISY), ["repeats=none"]).repeats == Repeats()
    assert load_sweep(tmp_path / "none.yaml", ["repeats.n=2"]).repeats == Repeats(2)


def test_a_race_is_not_extended_and_takes_no_configuration(capsys, whole, tmp_path):
    study = tmp_path / "race"
    shutil.copytree(whole["race"], study)
    assert "takes no more" in call(capsys, "extend", study, "--run-cap", "25").err
    assert "the sweep, which creates no more" in call(capsys, "add", study, "--param", "x=0.25").err


@pytest.mark.parametrize(
    ("steer", "message"),
    [
        (("extend", "--max-iter", "50"), "repeats can't train on, .*hpsearch rerun .* --iterations 50"),
        (("change", "--set", "parameters.x.max=2"), "a sweep with repeats can't change its space"),
    ],
)
def test_what_would_mix_the_repeats_of_a_configuration_is_refused(capsys, whole, tmp_path, steer, message):
    study = tmp_path / "study"
    shutil.copytree(whole["tpe"], study)
    before = table_of(study)
    answer = call(capsys, steer[0], study, *steer[1:])
    assert answer.code != 0
    assert re.search(message, answer.err), answer.err
    assert table_of(study) == before


def test_who_asks_for_trials_gets_repeats_and_a_race_waits_for_what_is_told(tmp_path):
    sweep = sweep_of(trainable=None, max_iter=1, run_cap=12, repeats=Repeats(4, racing=True))
    with hpsearch.AskTell(sweep, directory=tmp_path / "s") as study:
        asked: list[hpsearch.AskedTrial] = []
        while not study.finished:
            trial = study.ask()
            if trial is not None:
                asked.append(trial)
            elif asked:
                told = asked.pop()  # the newest first: the order doesn't matter
                study.tell(told, {"loss": told.params["x"] + told.seed % 7 / 100 + told.number % 5 / 1000})
    loaded = hpsearch.load(tmp_path / "s")
    assert loaded.state == "finished"
    assert [row.number for row in loaded.trials if "goes on" in row.reason] == [7]
    assert [row.repeated.configuration for row in loaded.trials[9:] if row.repeated] == [1]
    assert lead_text(loaded).endswith("(mean of 4); the race eliminated all others")


@pytest.mark.exhaustive
def test_repeats_that_are_trained_as_lanes_give_what_each_gives_alone(tmp_path):
    def values(lanes: int) -> list[object]:
        study = hpsearch.search(
            "hpsearch_trainers.digits:mlp",
            {"lr": hpsearch.LogUniform(0.01, 1.0), "hidden": 32},
            metric={"name": "accuracy", "goal": "maximize"},
            max_iter=1,
            run_cap=6,
            repeats=3,
            resources={"workers": 1, "trials_per_worker": lanes},
            directory=tmp_path / str(lanes),
            backend="inline",
            observers=[],
            progress=False,
        )
        assert max(row.lanes for row in study.trials) == lanes
        return [(row.value, row.repeated) for row in study.trials]

    assert values(4) == values(1)


@pytest.mark.exhaustive
def test_the_digits_are_trained_with_several_seeds(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = ROOT / "configs" / "repeats_digits.yaml"
    ran = call(
        capsys, "run", config, "--dir", "s", "--backend", "inline", "-q", "--no-tensorboard", "--set", "max_iter=1"
    )
    assert ran.code == 0, ran.err
    study = hpsearch.load(tmp_path / "s")
    assert study.best_value > 0.5
    assert "lead:" in ran.out
    assert max(row.repeated.n for row in study.configurations if row.repeated) == study.sweep.repeats.n
    assert study.best_trial.checkpoint is not None
