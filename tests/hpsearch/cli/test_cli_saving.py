"""`status --json`, `best --save`, `--version` and `completion`."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest
import torch

import hpsearch
from hpsearch.journal.directory import StudyDirectory
from tests.hpsearch.support.command_line import environment, write_sweep


def test_status_as_json_says_what_the_api_says(study, hpsearch_command):
    loaded = hpsearch.load(study)
    answer = hpsearch_command("status", "study", "--json")
    told = json.loads(answer.out, parse_constant=pytest.fail)
    best = loaded.best_trial
    assert told == {
        "directory": str(study),
        "name": "sweep",
        "state": "finished",
        "message": None,
        "process": None,
        "created": loaded.created,
        "tags": [],
        "note": None,
        "goals": [{"name": "loss", "goal": "minimize", "target": None}],
        "trials": {"waiting": 0, "running": 0, "complete": 4, "stopped": 0, "failed": 0},
        "trials_in_all": 4,
        "iterations": 8,
        "iterations_in_all": 8,
        "seconds": sum(row.seconds for row in loaded.trials),
        "best": [
            {
                "trial": best.number,
                "values": {"loss": best.value},
                "iteration": 2,
                "params": best.params,
                "checkpoint": str(best.checkpoint),
            }
        ],
        "rungs": told["rungs"],
        "failed": [],
    }
    with StudyDirectory(study).running("me@here:1"):
        assert json.loads(hpsearch_command("status", "study", "--json").out)["process"] == "me@here:1"


def test_status_as_json_is_strict_and_tells_failures(here, hpsearch_command):
    write_sweep(here / "fails.yaml", "fails")
    hpsearch_command("run", "fails.yaml", "--backend", "inline", "--dir", "fails")
    told = json.loads(hpsearch_command("status", "fails", "--json").out, parse_constant=pytest.fail)
    assert told["best"] == []
    assert [(one["trial"], one["kind"]) for one in told["failed"]] == [(number, "raised") for number in range(4)]


def test_the_best_is_saved_with_its_params_and_checkpoint(study, hpsearch_command, here):
    best = hpsearch.load(study).best_trial
    answer = hpsearch_command("best", "study", "--save", "taken/best")
    assert (answer.code, answer.out, answer.err) == (0, "taken/best/trial.json\ntaken/best/state.pt\n", "")
    saved = json.loads((here / "taken/best/trial.json").read_text())
    assert saved == {
        "study": str(study),
        "name": "sweep",
        "trial": best.number,
        "values": {"loss": best.value},
        "iteration": 2,
        "params": best.params,
        "checkpoint": "state.pt",
    }
    shutil.rmtree(study)
    state = torch.load(here / "taken/best" / saved["checkpoint"], weights_only=True)
    assert state == {"place": best.value}
    assert sorted(path.name for path in (here / "taken/best").iterdir()) == ["state.pt", "trial.json"]


def test_what_is_there_is_replaced_only_by_force(study, hpsearch_command, here):
    folder = here / "best"
    folder.mkdir()
    (folder / "mine.txt").write_text("mine")
    assert hpsearch_command("best", "study", "--save", "best").code == 0
    answer = hpsearch_command("best", "study", "--save", "best")
    assert (answer.code, answer.out) == (1, "")
    assert (
        "--save: best/trial.json must not be there yet: name another folder, or replace it with --force" in answer.err
    )
    record = json.loads((folder / "trial.json").read_text())
    (folder / "files").mkdir()
    (folder / "trial.json").write_text(json.dumps({**record, "checkpoint": "files"}))
    assert hpsearch_command("best", "study", "--save", "best", "--force").code == 0
    assert sorted(path.name for path in folder.iterdir()) == ["mine.txt", "state.pt", "trial.json"]
    assert json.loads((folder / "trial.json").read_text()) == record


@pytest.mark.parametrize("name", ["", "..", ".", "../mine"])
def test_force_touches_nothing_else_whatever_a_file_of_that_name_says(study, hpsearch_command, here, name):
    folder = here / "best"
    (folder / "mine").mkdir(parents=True)
    (here / "mine").mkdir()
    (folder / "trial.json").write_text(json.dumps({"checkpoint": name}))
    assert hpsearch_command("best", "study", "--save", "best", "--force").code == 0
    assert (folder / "mine").is_dir()
    assert (here / "mine").is_dir()
    assert json.loads((folder / "trial.json").read_text())["checkpoint"] == "state.pt"


def test_a_checkpoint_that_is_called_as_the_record_lies_beside_it(tmp_path):
    def train(trial: hpsearch.RunningTrial) -> None:
        path = trial.directory / "trial.json"
        path.write_text("weights")
        trial.report({"loss": 1.0}, checkpoint=path)

    study = hpsearch.search(
        train,
        parameters={"x": hpsearch.Uniform(0, 1)},
        metric="loss",
        run_cap=1,
        max_iter=1,
        directory=tmp_path / "study",
        backend="inline",
        observers=[],
        progress=False,
    )
    record, copy = study.save_best(tmp_path / "best")
    assert json.loads(record.read_text())["checkpoint"] == copy.name == "checkpoint-trial.json"
    assert copy.read_text() == "weights"


def test_a_trial_without_a_checkpoint_cannot_be_saved(study, hpsearch_command, here):
    shutil.rmtree(study / "trials")
    answer = hpsearch_command("best", "study", "--save", "best")
    assert (answer.code, answer.out) == (1, "")
    assert "must have a checkpoint" in answer.err
    assert not (here / "best").exists()


def test_of_a_front_one_is_saved_by_weights(here, hpsearch_command):
    goals = [{"name": "loss", "goal": "minimize"}, {"name": "acc", "goal": "maximize"}]
    write_sweep(here / "two.yaml", "traded", metric=goals, run_cap=12)
    assert hpsearch_command("run", "two.yaml", "--backend", "inline", "--dir", "two").code == 0
    assert len(hpsearch.load("two").best_trials) > 1
    answer = hpsearch_command("best", "two", "--save", "best")
    assert answer.code == 1
    assert "choose one with --weights loss=1,acc=1" in answer.err
    assert hpsearch_command("best", "two", "--save", "best", "--weights", "loss=1,acc=1").code == 0


def test_the_version_names_torch_and_ray_and_imports_neither():
    code = (
        "import sys, hpsearch.cli\n"
        "try:\n    hpsearch.cli.main(['--version'])\n"
        "except SystemExit as end:\n    assert end.code == 0\n"
        "assert not {'torch', 'ray'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"hpsearch {hpsearch.__version__} (Python 3.")
    assert f"torch {torch.__version__}" in done.stdout
    assert "Ray 2." in done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_shells_are_told_the_commands(hpsearch_command, shell):
    answer = hpsearch_command("completion", shell)
    assert (answer.code, answer.err) == (0, "")
    assert "lineage" in answer.out


def test_bash_completes_commands_and_options(hpsearch_command, here):
    script = hpsearch_command("completion", "bash").out
    (here / "complete.sh").write_text(script)
    asks = (
        "source ./complete.sh; COMP_WORDS=(hpsearch tr); COMP_CWORD=1; _shtab_hpsearch; echo ${COMPREPLY[@]};"
        "COMP_WORDS=(hpsearch trials --wh); COMP_CWORD=2; _shtab_hpsearch; echo ${COMPREPLY[@]}"
    )
    done = subprocess.run(["bash", "-c", asks], cwd=here, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["trials", "trial", "--where"]


def test_a_damaged_checkpoint_isnt_called_deleted(study, hpsearch_command):
    path = hpsearch.load(study).best_trial.checkpoint
    assert path is not None
    path.write_bytes(path.read_bytes()[:300])
    answer = hpsearch_command("best", "study", "--save", "out")
    assert answer.code == 1
    assert f"the checkpoint is damaged: {path} must have" in answer.err
    assert "deleted" not in answer.err
    path.unlink()
    assert f"the checkpoint {path.parent} is damaged: " in hpsearch_command("best", "study", "--save", "out").err
