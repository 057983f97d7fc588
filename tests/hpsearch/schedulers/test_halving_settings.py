"""What successive halving and Hyperband make of what nobody said, and of what earlier versions didn't know."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from hpsearch.errors import SweepError
from hpsearch.journal.directory import StudyDirectory
from hpsearch.results.study import load
from hpsearch.schedulers.early_terminate import EarlyTerminate
from hpsearch.schedulers.halving import Halving, Hyperband, SuccessiveHalving
from hpsearch.sweep.sweep import Sweep
from tests.hpsearch.support.scripted import ScriptedBackend, done, run_scripted, sweep_of


def former(path: Path, early: EarlyTerminate) -> Path:
    """Make a study as versions stored it that knew no `rungs`, and gave `min_iter` 1 where nobody named it."""
    stored = sweep_of(early_terminate=early).to_json()
    del stored["early_terminate"]["rungs"]
    stored["early_terminate"]["min_iter"] = 1
    StudyDirectory(path).create({"sweep": stored, "created": time.time(), "provenance": {}}, None)
    return path


def backend() -> ScriptedBackend:
    return ScriptedBackend(lambda task: [done(task)], workers=3)


@pytest.mark.parametrize(
    ("settings", "ends"),
    [
        (SuccessiveHalving(81), (3, 9, 27, 81)),
        (SuccessiveHalving(50), (2, 6, 18, 50)),
        (SuccessiveHalving(27), (1, 3, 9, 27)),
        (SuccessiveHalving(2), (1, 2)),
        (SuccessiveHalving(81, min_iter=1), (1, 3, 9, 27, 81)),
        (SuccessiveHalving(50, rungs="paper"), (5, 16, 50)),
        (Hyperband(81), (1, 3, 9, 27, 81)),
    ],
)
def test_the_first_rung_is_chosen_where_nobody_names_it(settings: Halving, ends):
    assert settings.ends == ends


def test_the_summary_says_where_the_first_rung_ends_and_that_it_was_chosen():
    assert SuccessiveHalving(81).summary() == (
        "SuccessiveHalving from 3 (min_iter, not given: max_iter / 3^3) to 81 iterations by 3"
    )
    assert SuccessiveHalving(81, min_iter=3).summary() == "SuccessiveHalving from 3 to 81 iterations by 3"
    assert Hyperband(81).summary() == "Hyperband from 1 to 81 iterations by 3"


@pytest.mark.parametrize("early", [Hyperband(50), SuccessiveHalving(50), SuccessiveHalving(50, min_iter=2)])
def test_what_was_not_given_is_stored_as_it_was_asked_for(early):
    sweep = sweep_of(early_terminate=early)
    assert Sweep.from_json(sweep.to_json()) == sweep


def test_a_study_of_before_keeps_the_papers_rungs_where_max_iter_is_no_power(tmp_path):
    place = former(tmp_path / "study", Hyperband(10, eta=3))
    assert load(place).sweep.early_terminate == Hyperband(10, eta=3, rungs="paper")
    study, today = run_scripted(place, None, backend()), sweep_of(early_terminate=Hyperband(10, eta=3))
    assert [rung.until for rung in study.rungs] == [1, 3, 10, 3, 10, 10]
    assert len(study.trials) == 17
    with pytest.raises(SweepError, match=r"early_terminate.rungs: 'paper' in the study, 'geometric' here"):
        run_scripted(place, today, backend())
    anew = run_scripted(tmp_path / "anew", today, backend())
    assert [rung.until for rung in anew.rungs] == [1, 3, 9, 10, 3, 9, 10, 9, 10, 10]


@pytest.mark.parametrize("early", [Hyperband(9), SuccessiveHalving(9), SuccessiveHalving(54)])
def test_a_study_of_before_takes_its_own_file_where_the_rungs_are_the_same(early, tmp_path):
    place = former(tmp_path / "study", early)
    assert run_scripted(place, sweep_of(early_terminate=early), backend()).state == "finished"


def test_a_study_of_before_that_halved_from_1_does_not_take_a_later_first_rung(tmp_path):
    place = former(tmp_path / "study", SuccessiveHalving(81))
    assert load(place).sweep.early_terminate == SuccessiveHalving(81, min_iter=1, rungs="paper")
    with pytest.raises(SweepError, match=r"early_terminate.min_iter: 1 in the study, not given here"):
        run_scripted(place, sweep_of(early_terminate=SuccessiveHalving(81)), backend())
