"""A search that begins with results: what it is told, what is kept of them, and how it goes on without them."""

from __future__ import annotations

import itertools
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import optuna
import pandas as pd
import pytest
from optuna.distributions import FloatDistribution, IntDistribution

import hpsearch
from hpsearch.errors import SweepError
from hpsearch.events import Asked
from hpsearch.journal.journal import Journal
from hpsearch.run.study_run import create_study, warm_start_of
from hpsearch.searchers import Search, Searcher
from hpsearch.study.warm_start import stored_warm_start
from hpsearch.tables.trials import rows_to_csv
from hpsearch.warm_start.read import read_warm_start
from tests.hpsearch.support.climbing import Climbing
from tests.hpsearch.support.command_line import Call, call, environment, write_sweep
from tests.hpsearch.support.scripted import events_of
from tests.hpsearch.support.warm import Recalling, bowl_loss, search_bowl, warm_sweep

SOURCE = "trials.csv"
TRAIN = "tests.hpsearch.support.warm:bowl"
SIMULATED: dict[str, Any] = {"backend": "simulated", "resources": {"workers": 1}}
INLINE: dict[str, Any] = {"backend": "inline", "resources": {"workers": None}}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A table of random trials of the bowl."""
    study = search_bowl(tmp_path / "source", run_cap=12)
    path = tmp_path / SOURCE
    path.write_text(rows_to_csv(study.trials, study.sweep.parameters.names))
    shutil.rmtree(study.directory)
    return path


def warm(directory: Path | str, source: Any, **changes: Any) -> hpsearch.Study:
    given = {"method": "tpe", "search": Search(ahead=False), "warm_start": source, **SIMULATED, **changes}
    return search_bowl(directory, **given)


def table(study: hpsearch.Study) -> str:
    return rows_to_csv(study.trials, study.sweep.parameters.names)


def test_they_are_no_trials_of_the_sweep(source, tmp_path):
    study = warm(tmp_path / "study", source)
    assert [row.number for row in study.trials] == list(range(8))
    assert {row.origin for row in study.trials} == {"tpe"}  # none is drawn
    assert study.best_value == min(row.value for row in study.trials if row.value is not None)
    cold = search_bowl(tmp_path / "cold", method="tpe", search=Search(ahead=False), **SIMULATED)
    assert {row.origin for row in cold.trials} == {"random"}
    events = [event for event in events_of(study.directory) if isinstance(event, Asked)]
    assert [event.number for event in events] == list(range(8))


def test_it_goes_on_without_what_it_began_with(source, tmp_path):
    whole = warm(tmp_path / "whole", source, run_cap=10)
    begun = warm(tmp_path / "study", source, run_cap=5)
    source.unlink()
    for given in ((), source, [source]):
        grown = warm(begun.directory, given, run_cap=10)
        assert table(grown) == table(whole)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "events", [pytest.param(1, marks=pytest.mark.exhaustive), 6, pytest.param(11, marks=pytest.mark.exhaustive)]
)
def test_killed_it_makes_the_same_suggestions_with_the_source_gone(source, tmp_path, events):
    call = f"from tests.hpsearch.warm_start.test_warm_starts import die; die({str(tmp_path)!r}, {events})"
    dead = subprocess.run([sys.executable, "-c", call], env=environment(), capture_output=True, text=True)
    assert dead.returncode == -signal.SIGKILL, dead.stderr
    whole = warm(tmp_path / "whole", source, **INLINE)
    source.unlink()
    assert len(events_of(tmp_path / "study")) == events
    assert table(warm(tmp_path / "study", (), **INLINE)) == table(whole)


def die(folder: str, number: int) -> None:
    """Search until the journal holds so many events, and be killed there; called in a process of its own."""
    import os

    append = Journal.append

    def append_and_die(journal: Journal, events: Any, followed: Any, when: float) -> Any:
        (written,) = journal._connection.execute("SELECT count(*) FROM events").fetchone()
        places = append(journal, events[: number - written], followed[: number - written], when)
        if written + len(events) >= number:
            os.kill(os.getpid(), signal.SIGKILL)
        return places

    Journal.append = append_and_die  # type: ignore[method-assign, assignment]
    warm(Path(folder) / "study", Path(folder) / SOURCE, **INLINE)


def test_it_cant_begin_with_anything_else_later(source, tmp_path):
    study = warm(tmp_path / "study", source)
    other = shutil.copy(source, tmp_path / "other.csv")
    with pytest.raises(SweepError, match=f"expected what the study .* began with, which is {source}"):
        warm(study.directory, other)
    with pytest.raises(SweepError, match="began with"):
        warm(study.directory, [source, other])
    cold = search_bowl(tmp_path / "cold", method="tpe", run_cap=2, **SIMULATED)
    with pytest.raises(SweepError, match="which is nothing"):
        warm(cold.directory, source, run_cap=2)


def test_several_sources_are_told_one_after_the_other(source, tmp_path):
    drawn = search_bowl(tmp_path / "drawn", run_cap=12, seed=1)
    other = tmp_path / "other.csv"
    other.write_text(rows_to_csv(drawn.trials, drawn.sweep.parameters.names))
    study = warm(tmp_path / "study", [source, other], run_cap=2)
    with Journal.read(study.directory / "study.db") as journal:
        stored = stored_warm_start(journal.study())
    assert stored.sources == (str(source), str(other))
    assert len(stored.past) == 24
    with pytest.raises(SweepError, match="each source once"):
        warm(tmp_path / "twice", [source, str(source)])
    assert not (tmp_path / "twice").exists()


def test_one_study_by_two_names_is_no_two_sources(tmp_path, monkeypatch):
    study = search_bowl(tmp_path / "source", run_cap=6)
    table = pd.DataFrame([{**row.params, "loss": row.value} for row in study.trials])
    table.to_csv(tmp_path / "trials.csv", index=False)
    (tmp_path / "link").symlink_to(study.directory)
    (tmp_path / "link.csv").hardlink_to(tmp_path / "trials.csv")
    shutil.copytree(study.directory, tmp_path / "copy")
    monkeypatch.chdir(tmp_path)
    ours: list[Any] = [study, "source", "source/study.db", "link", "copy", "trials.csv", "link.csv", table]
    for first, second in itertools.permutations(ours, 2):
        with pytest.raises(SweepError, match=r"expected each source once, but these are the trials of .*, too"):
            warm("twice", [first, second])
    with pytest.raises(SweepError, match="each source once"):
        warm("twice", ["trials.csv", table.iloc[:4]])
    assert not Path("twice").exists()


@pytest.mark.exhaustive
def test_a_study_of_optunas_by_two_names_is_no_two_sources(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    study = optuna.create_study(storage="sqlite:///o.db", study_name="o")
    for width in range(1, 7):
        asked = study.ask({"lr": FloatDistribution(1e-4, 1.0, log=True), "width": IntDistribution(width, width)})
        study.tell(asked, bowl_loss(asked.params["lr"], width))
    named: list[Any] = ["o.db", "o.db#o", "sqlite:///o.db", "sqlite:///o.db#o", f"sqlite:///{tmp_path}/o.db", study]
    for first, second in itertools.permutations(named, 2):
        with pytest.raises(SweepError, match=r"expected each source once, but these are the trials of .*, too"):
            warm("twice", [first, second])
    assert not Path("twice").exists()


def test_a_study_that_was_exported_is_read_from_parquet_as_from_csv(tmp_path, capsys):
    study = search_bowl(tmp_path / "source", run_cap=6)
    assert call(capsys, "export", study.directory, "--to", tmp_path / "out").code == 0
    known = [read_warm_start([tmp_path / "out" / f"trials.{kind}"], warm_sweep()).past for kind in ("csv", "parquet")]
    assert known[0] == known[1]
    assert len(known[0]) == 6
    (tmp_path / "cut.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(SweepError, match="expected a table in Parquet, got"):
        warm(tmp_path / "twice", tmp_path / "cut.parquet")


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("method", ["random", "grid", "qmc"])
def test_a_method_that_doesnt_learn_says_which_do(source, tmp_path, method):
    parameters = {"lr": [0.1, 0.01], "width": [1, 2]}
    with pytest.raises(SweepError, match=r"learn from results; take one of bayes, .*, tpe, or leave"):
        warm(tmp_path / "study", source, method=method, search=None, parameters=parameters)
    assert not (tmp_path / "study").exists()


def test_a_searcher_of_ones_own_recalls_if_it_says_so(tmp_path):
    path = tmp_path / SOURCE
    path.write_text("x,loss\n0.5,1\n0.25,0.5\n0.75,2\n")
    one = {"parameters": {"x": hpsearch.Uniform(0, 1)}, "run_cap": 2, "backend": "inline"}

    def search(method: type[Searcher], name: str) -> hpsearch.Study:
        return hpsearch.search(
            lone,
            method=method.kind,
            metric="loss",
            max_iter=1,
            warm_start=path,
            directory=tmp_path / name,
            observers=[],
            progress=False,
            **one,  # type: ignore[arg-type]
        )

    assert [(row.params["x"], row.origin) for row in search(Recalling, "study").trials][:1] == [(0.25, "recalled")]
    with pytest.raises(SweepError, match=r"Climbing can't begin with results; .* says `recalls = True`"):
        search(Climbing, "other")


def lone(trial: hpsearch.RunningTrial) -> None:
    for _ in trial.iterations():
        trial.report({"loss": trial.params["x"]})


def test_a_sweep_in_memory_begins_with_them_too():
    given = [{"x": x / 30, "loss": (x / 30 - 0.3) ** 2 + 1} for x in range(30)]
    study = hpsearch.search(
        Line(),
        parameters={"x": hpsearch.Uniform(0, 1)},
        metric="loss",
        method="tpe",
        max_iter=1,
        run_cap=3,
        warm_start=pd.DataFrame(given),
        directory=":memory:",
        backend="simulated",
        resources={"workers": 1},
    )
    assert {row.origin for row in study.trials} == {"tpe"}
    assert abs(study.best_params["x"] - 0.3) < 0.2


class Line(hpsearch.Curves):
    """A training of which nothing is written."""

    def curve(self, params: dict[str, Any], seed: int) -> hpsearch.Curve:
        return hpsearch.Curve({"loss": [(params["x"] - 0.3) ** 2]}, 1.0)


@pytest.mark.exhaustive
def test_the_command_says_what_it_takes_and_goes_on_without(source, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    path = write_sweep(
        tmp_path / "sweep.yaml",
        method="tpe",
        search={"ahead": False},
        parameters={
            "lr": {"min": 0.0001, "max": 0.1, "distribution": "log_uniform_values"},
            "width": {"min": 1, "max": 64},
        },
    )
    path.write_text(path.read_text().replace("tests.hpsearch.support.cli_trainables:steps", TRAIN))
    run: Call = lambda *more: call(capsys, "run", path, "--backend", "inline", "--no-tensorboard", *more)  # noqa: E731
    done = run("--dir", "study", "--from", SOURCE)
    assert done.code == 0, done.err
    assert f"begins with results of {SOURCE}: " in done.out
    assert " of 12 taken; " in done.out
    assert "another lr: it must be between 0.0001 and 0.1, got " in done.out
    source.unlink()
    assert run("--dir", "study", "--from", SOURCE).code == 0
    assert call(capsys, "resume", "study", "--backend", "inline", "--set", "run_cap=5").code == 0
    refused = run("--dir", "study", "--from", "other.csv")
    assert refused.code == 1
    assert "what a search begins with can't change" in refused.err
    refused = run("--dir", "new", "--from", "none.csv")
    assert (refused.code, (tmp_path / "new").exists()) == (1, False)
    assert "there is nothing of this name" in refused.err


def test_trials_that_are_asked_for_begin_with_them_where_no_worker_ran_one(tmp_path):
    former = search_bowl(tmp_path / "former", run_cap=10)
    sweep = warm_sweep(run_cap=1)
    place = create_study(sweep, tmp_path / "study", warm_start=warm_start_of((former,), sweep, None))
    with hpsearch.AskTell(directory=place.path) as lab:
        given = lab.ask()
        assert given is not None
    begun = warm(tmp_path / "begun", former, run_cap=1)
    assert given.params == begun.trials[0].params
    assert given.params != warm(tmp_path / "cold", None, run_cap=1).trials[0].params


@pytest.mark.parametrize(("points", "origins"), [([], ["tpe", "tpe"]), ([{}], ["points_to_try", "tpe"])])
def test_where_they_save_every_draw_priors_are_tried_as_a_point_alone(tmp_path, points, origins):
    former = search_bowl(tmp_path / "former", run_cap=10)
    space = {"lr": hpsearch.LogUniform(1e-4, 1.0, prior=0.5), "width": hpsearch.IntUniform(1, 64, prior=3)}
    study = warm(tmp_path / "study", former, parameters={"parameters": space, "points_to_try": points}, run_cap=2)
    assert [row.origin for row in study.trials] == origins
    assert (study.trials[0].params == {"lr": 0.5, "width": 3}) is bool(points)
