"""A sweep that a job runs on the head of a Ray cluster, and that another machine resumes after the head is gone."""

from __future__ import annotations

import os
import signal
import sys

import pytest
import yaml

from hpsearch.results.study import load
from hpsearch.storage.studies import studies_in
from tests.hpsearch.support.command_line import call, wait_for
from tests.hpsearch.support.ray_jobs import started_head, submit

pytestmark = [pytest.mark.ray, pytest.mark.exhaustive, pytest.mark.slow]

CODE = """
import random
import time
from pathlib import Path

def train(trial):
    place = 0.0 if trial.checkpoint is None else trial.checkpoint["place"]
    for _ in trial.iterations():
        while trial.number == 3 and not Path("{gate}").exists():
            time.sleep(0.01)
        place += trial.params["x"] + random.random()
        trial.report({{"loss": place}}, checkpoint={{"place": place}})
"""


def test_a_job_on_a_head_that_is_lost_is_resumed_from_the_bucket_to_the_same_table(s3, tmp_path, capsys, monkeypatch):
    code, gate = tmp_path / "code", tmp_path / "gate"
    code.mkdir()
    (code / "job_train.py").write_text(CODE.format(gate=gate))
    sweep = {
        "trainable": "job_train:train",
        "metric": {"name": "loss", "goal": "minimize"},
        "method": "random",
        "early_terminate": {"type": "hyperband", "max_iter": 3},
        "parameters": {"x": {"min": 0.0, "max": 1.0}},
        "observers": [],
        "resources": {"workers": 1},
    }
    (code / "sweep.yaml").write_text(yaml.safe_dump(sweep))
    study, storage = tmp_path / "on-head" / "sweep-1", f"storage={s3.url}"
    run = [sys.executable, "-m", "hpsearch", "run", "sweep.yaml", "--dir", str(study), "--set", storage]
    url = f"{s3.url}/sweep-1"
    with started_head(tmp_path) as (address, head):
        done = submit(code, "--address", address, "--no-wait", "--working-dir", ".", "--", *run)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        wait_for(lambda: studies_in(s3.url) == [url], head)
        wait_for(lambda: len(load(url).trials) == 4, head)
        (opened,) = (step for step in load(url).history() if step.verb in ("run", "resume"))
        os.kill(int(opened.by.rpartition(":")[2]), signal.SIGKILL)
    study.parent.rename(tmp_path / "gone")
    gate.touch()
    monkeypatch.chdir(code)
    resumed = call(capsys, "resume", url, "--backend", "inline")
    assert (resumed.code, resumed.err) == (0, "")
    table = call(capsys, "trials", url, "--format", "csv").out
    assert call(capsys, "run", "sweep.yaml", "--dir", "alone", "--backend", "inline").code == 0
    assert call(capsys, "trials", "alone", "--format", "csv").out == table
