"""A study outlives the code of third parties that it was made with: it can be looked at, and resume says what lacks."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import hpsearch
from hpsearch.cli import main
from hpsearch.errors import HpsearchError
from hpsearch.events import Extended
from hpsearch.observers.tensorboard.view import View
from hpsearch.study.extension import extended
from tests.hpsearch.support.scripted import ScriptedBackend, done, run_scripted, sweep_of

OWN = """
from dataclasses import dataclass
import hpsearch
from hpsearch.schedulers.full import FullLength
from hpsearch.searchers import RandomSearcher

@dataclass(frozen=True)
class Halves(hpsearch.EarlyTerminate):
    kind = "vanishing:Halves"
    raisable = ("trials",)
    trials: int = 3

    def scheduler(self, goal, run_cap):
        return FullLength(self.max_iter, self.trials)

    def summary(self):
        return "halves"

class Guess(RandomSearcher):
    kind = "vanishing:Guess"
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module of a user's that can be imported, until it is deleted."""
    monkeypatch.syspath_prepend(str(tmp_path))
    module = tmp_path / "vanishing.py"
    module.write_text(OWN)
    yield module
    sys.modules.pop("vanishing", None)


def gone(module: Path) -> None:
    module.unlink()
    sys.modules.pop("vanishing")


def changes(what: str) -> dict[str, object]:
    if what == "searcher":
        point = {"x": 0.5}
        return {
            "method": "vanishing:Guess",
            "early_terminate": None,
            "max_iter": 2,
            "run_cap": 3,
            "points_to_try": (point,),
        }
    vanishing = pytest.importorskip("vanishing")
    return {"early_terminate": vanishing.Halves(4)}


@pytest.mark.parametrize("what", ["searcher", "scheduler"])
def test_a_study_whose_own_code_is_gone_is_loaded_shown_and_exported_and_resume_says_what_is_missing(
    own, tmp_path, what, capsys
):
    place = tmp_path / "s"
    study = run_scripted(
        place, sweep_of(**changes(what)), ScriptedBackend(lambda task: [done(task, checkpoints=False)])
    )
    shown = study.trials, study.rungs, study.total, study.sweep.to_json()
    assert len(study.trials) == 3
    gone(own)
    again = hpsearch.load(place)
    assert (again.trials, again.rungs, again.total, again.sweep.to_json()) == shown
    for command in ("status", "trials", "best"):
        assert main([command, str(place)]) == 0
    view = View([place], tmp_path / "view")
    view.read()
    view.describe()
    assert list((tmp_path / "view" / "s" / "002").iterdir())
    assert main(["export", str(place), "--to", str(tmp_path / "export")]) == 0
    assert "vanishing" not in capsys.readouterr().err
    with pytest.raises(HpsearchError, match=r"vanishing.*isn't there"):
        run_scripted(place, None, ScriptedBackend(lambda task: [done(task)]), retry=[])
    assert main(["retry", str(place)]) == 1
    assert "names the module 'vanishing', which isn't there" in capsys.readouterr().err


def test_a_scheduler_that_takes_other_settings_by_now_is_no_reason_not_to_look(own, tmp_path):
    study = run_scripted(tmp_path / "s", sweep_of(**changes("scheduler")), ScriptedBackend(lambda task: [done(task)]))
    own.write_text(OWN.replace("trials: int", "branches: int").replace("self.trials", "self.branches"))
    sys.modules.pop("vanishing")
    assert hpsearch.load(tmp_path / "s").trials == study.trials


def test_an_extension_of_a_study_whose_scheduler_is_gone_stands_in_its_sweep(own, tmp_path):
    vanishing = pytest.importorskip("vanishing")
    given = json.loads(json.dumps(sweep_of(early_terminate=vanishing.Halves(4)).to_json()))
    gone(own)
    sweep = hpsearch.Sweep.from_json(given)
    assert sweep.iterations == 4
    more = extended(sweep, Extended(None, {"trials": 9}))
    assert more.early_terminate is not None
    assert more.early_terminate.to_json() == {**given["early_terminate"], "trials": 9}
