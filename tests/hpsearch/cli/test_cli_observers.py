"""Observers on the command line: one that can't be made, and others who watch once a study has begun."""

from __future__ import annotations

import shlex
import sys

import pytest

import hpsearch
from hpsearch.config.checks import InvalidKey
from tests.hpsearch.support.command_line import write_sweep

INLINE = ("--backend", "inline", "--no-tensorboard")

UNMADE = """
from hpsearch.observers.base import Observer

class Unmade(Observer):
    def __init__(self, observed):
        raise {raised}

    def observe(self, record):
        pass

    def close(self):
        pass
"""


@pytest.mark.parametrize("raised", ["OSError('no server')", "SystemExit(0)"])
def test_one_that_cannot_be_made_is_said_and_the_study_goes_on_with_others(here, hpsearch_command, monkeypatch, raised):
    monkeypatch.delitem(sys.modules, "unmade_observer", raising=False)
    (here / "unmade_observer.py").write_text(UNMADE.format(raised=raised))
    write_sweep(here / "sweep.yaml", observers=["unmade_observer:Unmade"])
    answer = hpsearch_command("run", "sweep.yaml", *INLINE, "--dir", "my study")
    assert answer.code == 1
    assert "observers.unmade_observer:Unmade: must be made of what it observes, but raised" in answer.err
    *_, mend, others = answer.err.splitlines()
    assert mend == "mend it, then continue with: hpsearch resume 'my study'"
    words = shlex.split(others.partition(": hpsearch ")[2])
    assert hpsearch_command(*words, *INLINE).code == 0
    study = hpsearch.load("my study")
    assert study.state == "finished"
    assert len((here / "my study/trials.csv").read_text().splitlines()) == 1 + len(study.trials)


def test_others_watch_a_study_that_goes_on_from_its_beginning(here, hpsearch_command):
    assert hpsearch_command("run", "sweep.yaml", *INLINE, "--dir", "study").code == 0
    before = len(hpsearch.load("study").trials)
    more = ("--set", f"run_cap={before + 1}", "--set", "observers=[csv]")
    assert hpsearch_command("resume", "study", *INLINE, *more).code == 0
    assert len((here / "study/trials.csv").read_text().splitlines()) == 1 + before + 1
    answer = hpsearch_command("resume", "study", *INLINE, "--set", "observers=cvs")
    assert answer.code == 1
    assert "--set observers=cvs: observers[0]: must be the name of an observer" in answer.err


@pytest.mark.parametrize("observers", ["csv", object()])
def test_in_python_they_are_a_list(here, observers):
    with pytest.raises(InvalidKey, match="observers: must be a list, got "):
        hpsearch.search(
            print, parameters={"x": [1]}, method="grid", metric="loss", observers=observers, backend="inline"
        )
    assert not (here / "runs").exists()
