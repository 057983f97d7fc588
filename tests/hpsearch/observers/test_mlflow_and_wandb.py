"""The real MLflow and W&B, told of real sweeps: what lies there afterwards, also after a kill in the midst of it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import hpsearch
from hpsearch.backends import make_backend
from hpsearch.journal.directory import StudyDirectory
from hpsearch.journal.labels import add_tags
from hpsearch.observers.display import SilentDisplay
from hpsearch.observers.mlflow_runs import fit_names
from hpsearch.run.observing import show_observer
from hpsearch.run.study_run import RunSettings, run_study
from tests.hpsearch.support.wandb_file import read_run

pytestmark = pytest.mark.filterwarnings("default")  # MLflow uses what its own libraries deprecate

RATES = [0.1, 0.2, 0.4, 0.8]
DIVERGING = {0.4}
LONG = ["x" * 300, "x" * 299]


def train(trial: hpsearch.RunningTrial) -> None:
    for iteration in trial.iterations():
        if trial.params["opt"]["lr"] in DIVERGING and iteration == 2:
            raise ValueError("diverged")
        trial.report({"loss": abs(trial.params["opt"]["lr"] - 0.3) / iteration, "val/acc": iteration / 9})


def search(place: Path, observers: list[str], **options: Any) -> hpsearch.Study:
    return hpsearch.search(
        train,
        parameters={"opt": {"lr": RATES}, "layers": [[1, None]]},
        method="grid",
        metric="loss",
        limits={"max_failures": "none"},
        directory=place,
        backend="inline",
        observers=observers,
        **{"progress": False, "max_iter": 4, **options},
    )


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch):
    for name in [name for name in os.environ if name.startswith(("MLFLOW_", "WANDB_"))]:
        monkeypatch.delenv(name)


def mlflow_runs(place: Path) -> dict[int, Any]:
    """Return the trials' runs with their curves: all that exist and aren't deleted, each trial's once."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{place / 'mlflow.db'}")
    (experiment,) = [one for one in client.search_experiments() if one.name != "Default"]
    assert experiment.name == place.name
    found: dict[int, Any] = {}
    for run in client.search_runs([experiment.experiment_id]):
        number = int(run.data.tags["hpsearch.trial"])
        assert number not in found
        curves = {
            name: [(one.step, one.value) for one in client.get_metric_history(run.info.run_id, name)]
            for name in run.data.metrics
        }
        found[number] = (run, curves)
    return found


def wandb_runs(place: Path) -> dict[int, Any]:
    found: dict[int, Any] = {}
    for directory in (place / "wandb").glob("offline-run-*"):
        number = int(directory.name.rpartition("-")[2])
        assert number not in found
        found[number] = read_run(directory)
    return found


def check(study: hpsearch.Study, name: str) -> None:
    """Compare what lies there with what the journal says, trial by trial."""
    reports = study.reports()
    ended = {row.number: row for row in study.trials if row.state in ("complete", "stopped", "failed")}
    if name == "mlflow":
        runs = mlflow_runs(study.directory)
        assert runs.keys() == ended.keys()
        for number, (run, curves) in runs.items():
            row = ended[number]
            assert run.info.status == ("FAILED" if row.state == "failed" else "FINISHED")
            assert run.data.params == {"opt.lr": repr(row.params["opt.lr"]), "layers": "[1, null]"}
            assert run.data.tags["hpsearch.state"] == row.state
            assert run.data.tags["hpsearch.reason"] == row.reason
            for metric in ("loss", "val/acc"):
                assert curves[metric] == [(report.iteration, report.metrics[metric]) for report in reports[number]]
            assert run.info.start_time <= run.info.end_time
    else:
        found = wandb_runs(study.directory)
        assert found.keys() == ended.keys()
        for number, run in found.items():
            row = ended[number]
            assert run["exit_code"] == (row.state == "failed")
            assert run["config"]["opt"] == {"lr": row.params["opt.lr"]}
            assert run["config"]["layers"] == [1, None]
            assert run["run"].run_group == study.directory.name
            facts = run["summary"]["hpsearch"]
            assert (facts["state"], facts["reason"]) == (row.state, row.reason)
            rows = [{key: line[key] for key in ("_step", "loss", "val/acc")} for line in run["history"]]
            assert rows == [{"_step": report.iteration, **report.metrics} for report in reports[number]]


@pytest.mark.exhaustive
@pytest.mark.slow
def test_both_get_each_trial_whole_and_again_where_it_goes_on(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    place = tmp_path / "digits-1"
    study = search(place, ["mlflow", "wandb"])
    assert [row.state for row in study.trials] == ["complete", "complete", "failed", "complete"]
    for name in ("mlflow", "wandb"):
        check(study, name)
    before = {number: run.info.run_id for number, (run, _) in mlflow_runs(place).items()}
    (lost,) = place.glob("wandb/offline-run-*-1")
    shutil.rmtree(lost)  # as if the process had been killed when the sweep was finished, and this was not
    search(place, ["mlflow", "wandb"])
    for name in ("mlflow", "wandb"):
        check(study, name)
    files = {path: path.stat().st_mtime_ns for path in place.glob("wandb/offline-run-*/*.wandb")}

    assert not any("wandb" in type(getattr(hook, "__self__", None)).__module__ for hook in (sys.exit, sys.excepthook))
    add_tags(StudyDirectory(place), ["kept"])
    for name in ("mlflow", "wandb"):  # all is there
        assert show_observer(StudyDirectory(place), name) == 0
    assert {number: run.info.run_id for number, (run, _) in mlflow_runs(place).items()} == before
    assert {path: path.stat().st_mtime_ns for path in place.glob("wandb/offline-run-*/*.wandb")} == files

    monkeypatch.setattr(sys.modules[__name__], "DIVERGING", set())
    run = RunSettings(train, lambda sweep: make_backend("inline", sweep, train, None, ()), SilentDisplay())
    resumed = run_study(StudyDirectory(place), None, run, retry=[2])
    assert "failed" not in {row.state for row in resumed.trials}
    for name in ("mlflow", "wandb"):
        check(resumed, name)
    after = {number: run.info.run_id for number, (run, _) in mlflow_runs(place).items()}
    assert after[2] != before[2]
    assert {number for number in before if after[number] == before[number]} == {0, 1, 3}
    assert mlflow_runs(place)[2][0].data.tags["hpsearch.tags"] == "kept"
    assert list(wandb_runs(place)[2]["run"].tags) == ["kept"]

    assert sorted(path.name for path in tmp_path.iterdir()) == ["digits-1"]  # nothing lies in the working folder
    assert "mlflow" not in capfd.readouterr().err.replace("MLflowObserver", "")


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "last_call"),
    [
        ("mlflow", "mlflow.MlflowClient.set_terminated"),
        ("wandb", "wandb.sdk.wandb_run.Run.finish"),
    ],
)
def test_a_kill_between_the_calls_for_a_trial_leaves_each_trial_once_and_whole(name, last_call, tmp_path):
    place = tmp_path / "digits-1"
    study = search(place, [], max_iter=None, early_terminate=hpsearch.SuccessiveHalving(4, eta=2))
    assert {row.state for row in study.trials} == {"complete", "stopped", "failed"}
    for left in (".mlflow.db.partial", ".mlflow.db.partial-journal"):
        (place / left).write_bytes(b"of a process that was killed while MLflow made its tables")
    script = """
        import importlib, os, signal, sys
        from pathlib import Path
        from hpsearch.run.observing import show_observer
        from hpsearch.journal.directory import StudyDirectory

        path, _, method = sys.argv[3].rpartition(".")
        module, _, cls = path.rpartition(".")
        owner = getattr(importlib.import_module(module), cls)
        whole, calls = getattr(owner, method), []

        def killed(*given, **named):
            calls.append(1)
            if len(calls) == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            return whole(*given, **named)

        setattr(owner, method, killed)
        show_observer(StudyDirectory(Path(sys.argv[1])), sys.argv[2])
        """
    words = [sys.executable, "-c", textwrap.dedent(script), str(place), name, last_call]
    # Where W&B's folders for files on their way are, which it can't remove when it is killed.
    env = os.environ | {"TMPDIR": str(tmp_path)}
    ended = subprocess.run(words, env=env, check=False, timeout=150)
    assert ended.returncode == -signal.SIGKILL
    assert not (place / "mlflow.db").exists() or not list(place.glob(".mlflow.db*"))
    assert show_observer(StudyDirectory(place), name) == 0
    check(study, name)


@pytest.mark.exhaustive
def test_mlflow_gets_names_that_it_takes_each_its_own():
    fitted = fit_names(["optimizer.lr", "cell[0]", "cell(0)", "../up", "a//b", "/root", "µ b", ".", *LONG])
    assert fitted["optimizer.lr"] == "optimizer.lr"
    assert (fitted["cell[0]"], fitted["cell(0)"]) == ("cell_0_", "cell_0__2")
    assert fitted["µ b"] == "µ b"
    assert len(set(fitted.values())) == len(fitted)
    from mlflow.utils.validation import _validate_metric_name, _validate_param_name

    for name in fitted.values():
        _validate_param_name(name)
        _validate_metric_name(name)
        assert len(name) <= 250


def test_a_name_that_mlflow_takes_stays_whatever_comes_before_it():
    """Else the run's `loss_5` would be the other metric's."""
    assert fit_names(["loss@5", "loss_5"]) == {"loss_5": "loss_5", "loss@5": "loss_5_2"}
    assert fit_names(["loss@5", "loss_5_2", "loss_5"]) == {
        "loss_5_2": "loss_5_2",
        "loss_5": "loss_5",
        "loss@5": "loss_5_3",
    }


@pytest.mark.exhaustive
def test_wandb_that_is_told_to_be_online_says_at_once_that_nobody_is_logged_in(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    search(tmp_path / "s", [])
    with pytest.raises(hpsearch.HpsearchError, match="run `wandb login`"):
        show_observer(StudyDirectory(tmp_path / "s"), "wandb")


def test_mlflow_that_cannot_be_reached_stops_no_sweep_and_says_what_makes_up_for_it(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", str(tmp_path / "file"))  # its store of files is refused since 3.13
    study = search(tmp_path / "s", ["mlflow"], progress=True)
    assert study.state == "finished"
    said = capfd.readouterr()
    text = said.out + said.err
    assert "MLflowObserver stopped" in text
    assert "--observer mlflow` gives it the rest" in text


def test_a_package_that_is_missing_is_said_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        hpsearch.SweepError, match=r"observers.mlflow: needs the package mlflow.*\n.*hpsearch\[mlflow\]"
    ):
        search(tmp_path / "s", ["mlflow"])
    assert not (tmp_path / "s").exists()


@pytest.mark.exhaustive
def test_their_first_use_beside_a_trial_of_this_process_is_not_taken_for_what_the_trial_changed(tmp_path):
    code = (
        "import sys\n"
        "from hpsearch.worker.process_settings import restored_settings\n"
        "with restored_settings() as settings:\n"
        "    import mlflow, wandb\n"
        "    quiet = wandb.Settings(mode='offline', root_dir=sys.argv[1], silent=True, console='off')\n"
        "    wandb.init(dir=sys.argv[1], settings=quiet).finish()\n"
        "print(settings.changed)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["()"]), done.stderr
