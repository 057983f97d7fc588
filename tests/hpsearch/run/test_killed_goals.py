"""kill -9 a sweep of two goals and a constraint, resume: the table and the front are as though nothing had been."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import hpsearch
from hpsearch.events import Started
from hpsearch.observers.tensorboard.study_runs import FRONT, HYPERVOLUME, STUDY_RUN, by_tag
from hpsearch.results.study import Study
from hpsearch.tables.trials import rows_to_csv
from tests.hpsearch.support.command_line import ROOT, environment
from tests.hpsearch.support.conditions import wait_until
from tests.hpsearch.support.killed_goals import TRIALS
from tests.hpsearch.support.scripted import events_of


def start(study: Path, method: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.hpsearch.support.killed_goals", str(study), method]
    with (study.parent / "said.txt").open("ab") as said:
        env = {**os.environ, **environment()}
        return subprocess.Popen(command, cwd=ROOT, env=env, stdout=said, stderr=said)


def finish(study: Path, method: str) -> Study:
    process = start(study, method)
    assert process.wait() == 0, (study.parent / "said.txt").read_text()
    loaded = hpsearch.load(study)
    assert loaded.state == "finished"
    return loaded


def begun(study: Path) -> list[tuple[int, object]]:
    events = events_of(study) if study.exists() else []
    return [(e.new.number, dict(e.new.params)) for e in events if isinstance(e, Started) and e.new is not None]


def shown(study: Study) -> dict[str, float]:
    accumulator = EventAccumulator(str(study.directory / "tensorboard" / STUDY_RUN)).Reload()
    tags = (by_tag(FRONT, "trials"), by_tag(HYPERVOLUME, "trials"))
    return {tag: accumulator.Scalars(tag)[-1].value for tag in tags}


@pytest.mark.exhaustive  # kills are those of `test_killed_searches.py`, fronts those of `test_fronts_of_studies.py`
@pytest.mark.parametrize("method", ["tpe", "nsga2"])
def test_killed_and_resumed_a_sweep_of_two_goals_and_a_constraint_ends_with_the_same_front(tmp_path, method):
    places = [tmp_path / name / "study" for name in ("whole", "killed")]
    for place in places:
        place.parent.mkdir()
    whole, study = finish(places[0], method), places[1]
    known: list[tuple[int, object]] = []
    for count in (2, TRIALS - 3):
        process = start(study, method)
        wait_until(lambda: len(begun(study)) >= count or process.poll() is not None)  # noqa: B023 (called at once)
        process.kill()
        process.wait()
        before = begun(study)
        assert before[: len(known)] == known
        known = before
    resumed = finish(study, method)
    assert begun(study)[: len(known)] == known
    assert {row.origin for row in whole.trials} == {"random", method}
    assert {row.feasible for row in whole.trials} == {True, False}

    tables = [rows_to_csv(one.trials, one.names, objective=one.sweep.objective) for one in (whole, resumed)]
    assert tables[0] == tables[1]
    fronts = [[(best.number, best.values, best.params) for best in one.best_trials] for one in (whole, resumed)]
    assert fronts[0] == fronts[1]
    assert len(fronts[0]) > 1
    assert all(best.checkpoint is not None and best.checkpoint.exists() for best in resumed.best_trials)
    volumes = [[(iterations, volume) for _, iterations, volume in one.hypervolumes()] for one in (whole, resumed)]
    assert volumes[0][-1] == volumes[1][-1]
    assert shown(whole) == shown(resumed)
