"""Ask and tell where a sweep has what it came for."""

from __future__ import annotations

from dataclasses import replace

from hpsearch.objective import Metric
from hpsearch.run.ask_tell import AskTell
from hpsearch.sweep.parts import Limits
from hpsearch.trial import TrialState
from tests.hpsearch.support.scripted import sweep_of


def test_nothing_is_given_out_once_the_target_was_told_and_open_trials_are_still_told(tmp_path):
    sweep = sweep_of(early_terminate=None, max_iter=1, run_cap=9, metric=Metric("loss", target=0.5))
    with AskTell(sweep, directory=tmp_path / "study") as lab:
        first, second = lab.ask(), lab.ask()
        assert first is not None
        assert second is not None
        assert (lab.finished, lab.reason) == (False, "")
        lab.tell(first, {"loss": 0.25})
        assert lab.ask() is None
        assert lab.finished
        assert lab.reason.startswith("trial 0 reached loss 0.25")
    with AskTell(directory=tmp_path / "study") as lab:
        assert lab.ask() is None
        assert lab.finished
        assert lab.tell(second, {"loss": 2.0}) is TrialState.COMPLETE


def test_nothing_is_given_out_where_patience_is_used_up(tmp_path):
    sweep = sweep_of(early_terminate=None, max_iter=1, run_cap=9, limits=Limits(patience=2))
    with AskTell(sweep, directory=tmp_path / "study") as lab:
        for loss in (1.0, 2.0, 3.0):
            trial = lab.ask()
            assert trial is not None
            lab.tell(trial, {"loss": loss})
        assert lab.ask() is None
        assert lab.reason.startswith("2 trials in a row ended without a better loss")


def test_a_loosened_target_holds_while_other_processes_write(tmp_path):
    sweep = sweep_of(early_terminate=None, max_iter=1, run_cap=9, metric=Metric("loss", target=0.5))
    loosened = replace(sweep, metric=Metric("loss"))
    with AskTell(sweep, directory=tmp_path / "study") as lab:
        first = lab.ask()
        assert first is not None
        lab.tell(first, {"loss": 0.25})
    with (
        AskTell(loosened, directory=tmp_path / "study") as lab,
        AskTell(loosened, directory=tmp_path / "study") as other,
    ):
        assert other.ask() is not None
        assert lab.ask() is not None
        assert (lab.finished, lab.reason) == (False, "")
