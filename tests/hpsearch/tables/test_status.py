"""What `hpsearch status` and `hpsearch plan` say where a sweep has no bound, or one of something."""

from __future__ import annotations

from hpsearch.observers.observer_hub import ObserverHub
from hpsearch.observers.progress import PlainLines
from hpsearch.run.plan import make_plan, plan_text
from hpsearch.space import Categorical, Space
from hpsearch.study.state import SweepState
from hpsearch.tables.status import status_text
from hpsearch.task import Workers
from hpsearch.trial import TrialState
from tests.hpsearch.support.scripted import ScriptedBackend, done, failed, run_scripted, sweep_of

UNBOUNDED = sweep_of(early_terminate=None, max_iter=None, run_cap=3)


def test_no_status_names_a_none(tmp_path):
    def answer(task):
        return [done(task)] if task.trial.number < 2 else [failed(task)]

    study = run_scripted(tmp_path / "s", UNBOUNDED, ScriptedBackend(answer))
    text = status_text(study, None)
    assert "None" not in text
    assert "            trial 2\n" in text  # the one that failed


def test_a_rung_without_an_end_and_a_size_reads_well(tmp_path):
    sweep = sweep_of(early_terminate=None, max_iter=None, run_cap=None, method="grid", parameters=_grid())
    sweep_state = SweepState(sweep)
    assert [rung.until for rung in sweep_state.rungs()] in ([], [None])
    study = run_scripted(tmp_path / "s", sweep, ScriptedBackend(lambda task: [done(task)]))
    assert "None" not in status_text(study, None)


def test_no_plan_names_a_none_and_one_is_no_plural():
    text = plan_text(make_plan(UNBOUNDED, 1))
    assert "bracket 0: 3 to their end" in text
    assert "None" not in text
    one = plan_text(make_plan(sweep_of(early_terminate=None, max_iter=1, run_cap=1), 1))
    assert "1 iteration long on 1 worker" in one


def test_a_sweep_of_one_trial_has_one_trial(capsys):
    import sys

    sweep = sweep_of(early_terminate=None, max_iter=1, run_cap=1)
    watching = ObserverHub(sweep, [], PlainLines(sys.stdout))
    sweep_state = SweepState(sweep)
    watching.look(sweep_state, Workers(1, 1, 1), 0.0)
    watching.close()
    text = capsys.readouterr().out
    assert "s: minimize loss, 1 trial, 1 iteration, 1 of 1 worker busy" in text
    assert TrialState.RUNNING not in text


def _grid() -> Space:
    return Space.from_parameters({"x": Categorical([1, 2])})
