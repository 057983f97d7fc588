"""`hpsearch init` and `hpsearch demo`: what a newcomer begins with runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import hpsearch
from tests.hpsearch.support.command_line import PROGRAM, Call, environment

KINDS = ("function", "trainer", "script", "lightning", "wandb")


def option(kind: str) -> list[str]:
    return [] if kind == "function" else [f"--{kind}"]


@pytest.mark.parametrize("kind", KINDS)
def test_init_writes_a_sweep_of_what_train_py_holds(kind: str, here: Path, hpsearch_command: Call):
    answer = hpsearch_command("init", "new", *option(kind))
    assert (answer.code, answer.err) == (0, "")
    assert "hpsearch run sweep.yaml" in answer.out
    assert sorted(path.name for path in Path("new").iterdir()) == ["sweep.yaml", "train.py"]
    sweep = hpsearch.load_sweep(Path("new/sweep.yaml"))
    if sweep.trainable is None:
        assert sweep.program == "train.py"
    else:
        module, _, name = sweep.trainable.partition(":")
        assert module == "train"
        assert f" {name}(" in Path("new/train.py").read_text()


def test_init_replaces_no_file_unless_told(here: Path, hpsearch_command: Call):
    before = Path("sweep.yaml").read_text()
    answer = hpsearch_command("init")
    assert answer.code == 1
    assert "init: sweep.yaml must not be there yet" in answer.err
    assert not Path("train.py").exists()
    assert hpsearch_command("init", "--force").code == 0
    assert Path("sweep.yaml").read_text() != before
    (here / "file").touch()
    assert "init: file/new must be a folder" in hpsearch_command("init", "file/new").err


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", KINDS)
def test_what_init_writes_runs_alone_is_checked_and_is_searched(kind: str, tmp_path: Path):
    def run(*command: str) -> str:
        done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True)
        assert done.returncode == 0, (command, done)
        return done.stdout

    run(PROGRAM, "init", *option(kind))
    alone = run(sys.executable, "train.py")
    if kind != "wandb":  # W&B's functions log nowhere without a sweep
        assert alone.count("accuracy ") == 3
    assert "DIFFERS" not in run(PROGRAM, "check", "sweep.yaml")
    small = ("--set", "early_terminate.max_iter=3", "--set", "run_cap=3", "--backend", "inline", "--dir", "study")
    run(PROGRAM, "run", "sweep.yaml", *small)
    study = hpsearch.load(tmp_path / "study")
    assert study.state == "finished"
    assert study.best_value > 0.5


@pytest.mark.exhaustive
def test_the_demo_ends_with_where_to_look(here: Path, hpsearch_command: Call):
    answer = hpsearch_command("demo", "--backend", "inline", "--dir", "demo", "--quiet")
    assert answer.code == 0
    assert "best:        trial 15, accuracy 0.975" in answer.out
    assert "report:      hpsearch report demo" in answer.out
    path = next(line for line in answer.out.splitlines() if line.startswith("sweep file:")).split()[-1]
    assert hpsearch.load_sweep(Path(path)).name == "digits"
    assert answer.out.splitlines()[-1] == "your own:    hpsearch init"
