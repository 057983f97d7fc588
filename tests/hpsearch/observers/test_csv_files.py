from __future__ import annotations

import csv
import io
from pathlib import Path

import hpsearch
from hpsearch.events import Started
from hpsearch.observers.base import Observed, Record
from hpsearch.observers.csv_files import CsvObserver
from hpsearch.study.state import SweepState
from hpsearch.tables.trials import reports_csv
from hpsearch.trial import Report
from tests.hpsearch.support.command_line import call
from tests.hpsearch.support.lives import Life
from tests.hpsearch.support.scripted import sweep_of


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text())))


def train(trial: hpsearch.RunningTrial) -> None:
    for iteration in trial.iterations():
        trial.report({"loss": trial.params["x"] / iteration} | ({"late": 1.0} if iteration > 1 else {}))


def test_a_sweep_leaves_the_files_that_an_export_of_it_writes(tmp_path, capsys):
    place = tmp_path / "s"
    early = hpsearch.SuccessiveHalving(4, eta=2)
    study = hpsearch.search(
        train,
        parameters={"x": hpsearch.Uniform(0, 1)},
        metric="loss",
        early_terminate=early,
        run_cap=4,
        directory=place,
        backend="inline",
        progress=False,
        observers=["csv"],
    )
    assert not (place / "tensorboard").exists()
    assert call(capsys, "export", place).code == 0
    for name in ("trials.csv", "reports.csv"):
        assert (place / name).read_bytes() == (place / "export" / name).read_bytes()
    reports = rows_of(place / "reports.csv")
    assert list(reports[0]) == ["trial", "iteration", "late", "loss", "seconds"]
    curves = study.curves()
    told = [(int(row["trial"]), int(row["iteration"]), float(row["loss"])) for row in reports]
    assert told == [(trial, *point) for trial in sorted(curves) for point in curves[trial]]
    assert {row["late"] for row in reports} == {"", "1.0"}

    before = (place / "trials.csv").read_bytes()
    (place / "trials.csv").unlink()
    answer = call(capsys, "export", place, "--observer", "csv")
    assert (answer.code, answer.out) == (0, f"{place}: csv has seen it\n")
    assert (place / "trials.csv").read_bytes() == before


def test_the_files_are_whole_while_the_sweep_runs(tmp_path):
    life = Life(sweep_of(), 0, 1, 0.0).run()
    observer = CsvObserver(Observed(tmp_path, life.sweep, 0.0))
    replay = enumerate(SweepState(life.sweep).replay(life.events), 1)
    records = [Record(seq, 100.0 + seq, event, followed.decisions) for seq, (event, followed) in replay]
    half = len(records) // 2
    for record in records[:half]:
        observer.observe(record)
    observer.flush()
    begun = sum(isinstance(record.event, Started) and record.event.new is not None for record in records[:half])
    assert len(rows_of(tmp_path / "trials.csv")) == begun
    assert {row["state"] for row in rows_of(tmp_path / "trials.csv")} <= {"waiting", "running", "stopped", "complete"}
    for record in records[half:]:
        observer.observe(record)
    observer.close()
    assert len(rows_of(tmp_path / "trials.csv")) == len(life.sweep_state.rows())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["reports.csv", "trials.csv"]


def test_reports_of_no_trial_are_a_header():
    assert reports_csv({}) == "trial,iteration,seconds\n"
    assert reports_csv({3: [Report(3, 1, {"a": float("nan")}, 0.5)]}) == "trial,iteration,a,seconds\n3,1,nan,0.5\n"


def test_no_metric_has_the_name_of_another_column():
    names = ("iteration", "loss", "metrics.seconds", "seconds", "trial")
    (row,) = csv.DictReader(io.StringIO(reports_csv({3: [Report(3, 1, dict.fromkeys(names, 9.0), 0.5)]})))
    assert row == {
        "trial": "3",
        "iteration": "1",
        "metrics.iteration": "9.0",
        "loss": "9.0",
        "metrics.metrics.seconds": "9.0",
        "metrics.seconds": "9.0",
        "metrics.trial": "9.0",
        "seconds": "0.5",
    }
