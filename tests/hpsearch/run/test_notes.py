"""Texts that trials note: journaled as they come and once, whatever notes them, and in tables on request alone."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import hpsearch
from hpsearch.errors import HpsearchError, Interrupted
from hpsearch.events import Noted
from hpsearch.results.study import Study
from hpsearch_trainers import Parts, Trainer
from tests.hpsearch.support.command_line import call, write_sweep
from tests.hpsearch.support.scripted import events_of

LONG = "é" * 4000


def function(trial):
    trial.note(commit=f"c{trial.number}", text='a, "b"\nc')
    for _ in trial.iterations():
        trial.report({"loss": trial.params["x"]})
        trial.note(seen=str(trial.iteration))


class Steps:
    def __init__(self, trial):
        self.trial = trial
        trial.note(commit=f"c{trial.number}", text='a, "b"\nc')

    def step(self):
        self.trial.note(seen=str(self.trial.iteration + 1))
        return {"loss": self.trial.params["x"]}


class Linear(Trainer):
    def build(self, params):
        trial = hpsearch.current_trial()
        trial.note(commit=f"c{trial.number}", text='a, "b"\nc')
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return Parts(model, optimizer, torch.nn.functional.mse_loss, train=(torch.ones(4, 1), torch.ones(4, 1)))

    def step(self):
        trial = hpsearch.current_trial()
        trial.note(seen=str(trial.iteration + 1))
        return super().step()


SCRIPT = """
import hpsearch

trial = hpsearch.current_trial()
trial.note(commit=f"c{trial.number}", text='a, "b"\\nc')
for _ in trial.iterations():
    trial.report({"loss": trial.params["x"]})
    trial.note(seen=str(trial.iteration))
"""

LINES = r"""
number=$(basename "$(dirname "$HPSEARCH_DIRECTORY")" | sed 's/^0*\(.\)/\1/')
tell() { printf '%s\n' "$1" >> "$HPSEARCH_REPORTS"; }
tell '{"hpsearch": "note", "notes": {"commit": "c'$number'", "text": "a, \"b\"\nc"}}'
for i in 1 2; do
    tell '{"loss": 0.5}'
    tell '{"hpsearch": "note", "notes": {"seen": "'$i'"}}'
done
"""


def search(directory: Path, trainable: Any, backend: str = "inline", **more: Any) -> Study:
    how: dict[str, Any] = {"directory": directory, "backend": backend, "progress": False, "observers": ()}
    if isinstance(trainable, list):
        sweep = write_sweep(directory.with_suffix(".yaml"), None, command=trainable, run_cap=3)
        return hpsearch.search(hpsearch.load_sweep(sweep), **how)
    bounds = {"run_cap": 3, "max_iter": 2, "metric": "loss", "parameters": {"x": {"min": 0.0, "max": 1.0}}}
    return hpsearch.search(trainable, **{**bounds, **how, **more})


@pytest.mark.parametrize(
    "kind", ["function", "class", "trainer", "lanes", pytest.param("script", marks=pytest.mark.exhaustive), "lines"]
)
def test_all_kinds_of_trainables_note(tmp_path: Path, kind: str) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "train.sh").write_text(LINES)
    trainables: dict[str, Any] = {
        "function": function,
        "class": Steps,
        "trainer": Linear,
        "lanes": Linear,
        "script": [sys.executable, str(tmp_path / "train.py")],
        "lines": ["sh", str(tmp_path / "train.sh")],
    }
    more: dict[str, Any] = {"resources": {"trials_per_worker": 3}} if kind == "lanes" else {}
    study = search(tmp_path / "study", trainables[kind], **more)
    for row in study.trials:
        assert row.notes == {"commit": f"c{row.number}", "text": 'a, "b"\nc', "seen": "2"}


def test_a_note_is_in_the_journal_before_the_trial_goes_on_and_once(tmp_path: Path) -> None:
    """So that no kill can lose it, and a resumed trial that notes the same again writes nothing."""
    directory = tmp_path / "study"
    interrupted = tmp_path / "interrupted"

    def train(trial):
        trial.note(commit="4f1c", attempt=str(interrupted.exists()))
        assert hpsearch.load(directory).trials[trial.number].notes["commit"] == "4f1c"
        for iteration in trial.iterations():
            if iteration == 2 and not interrupted.exists():
                interrupted.touch()
                raise Interrupted
            trial.report({"loss": 0.0}, checkpoint={"at": iteration})

    with pytest.raises(KeyboardInterrupt):
        search(directory, train, run_cap=1)
    assert search(directory, train, run_cap=1).trials[0].notes == {"commit": "4f1c", "attempt": "True"}
    noted = [event for event in events_of(directory) if isinstance(event, Noted)]
    assert noted == [Noted(0, 1, {"commit": "4f1c", "attempt": "False"}), Noted(0, 2, {"attempt": "True"})]


def test_a_failed_trial_keeps_its_notes_and_too_many_fail_it(tmp_path: Path) -> None:
    def train(trial):
        for count in range(26):
            trial.note(last=str(count))
            trial.note(**{f"n{count}": LONG})

    with pytest.raises(HpsearchError) as caught:  # as all other trials would fail like the first one
        search(tmp_path / "study", train)
    row = hpsearch.load(tmp_path / "study").trials[0]
    assert str(caught.value).startswith(
        "the notes of a segment must have at most 100,000 characters in all, but have 100,040 with n24: report numbers"
    )
    assert (row.notes["last"], row.notes["n23"], len(row.notes)) == ("24", LONG, 25)


def test_notes_after_the_segment_are_an_error(tmp_path: Path) -> None:
    said: list[str] = []

    class Closing(Steps):
        def close(self):
            with pytest.raises(HpsearchError) as caught:
                self.trial.note(late="x")
            said.append(str(caught.value))

    search(tmp_path / "study", Closing, run_cap=1)
    assert said == [
        "trial.note(late) must be called before the segment ends, but iteration 2 ended it: call it in the training "
        "code, not in close()"
    ]


@pytest.fixture(scope="module")
def studies(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two studies that differ in their notes alone."""
    folder = tmp_path_factory.mktemp("noted")

    def silent(trial):
        for _ in trial.iterations():
            trial.report({"loss": trial.params["x"]})

    search(folder / "noted", function)
    search(folder / "silent", silent)
    return folder / "noted", folder / "silent"


@pytest.mark.parametrize("form", ["table", "csv", "json"])
def test_a_table_has_notes_where_they_are_asked_for_alone(studies, capsys, form: str) -> None:
    noted, silent = studies
    plain = call(capsys, "trials", silent, "--format", form).out
    assert call(capsys, "trials", noted, "--format", form).out == plain
    text = call(capsys, "trials", noted, "--notes", "--format", form).out
    if form == "json":
        assert [row["notes"] for row in json.loads(text)] == [
            {"commit": f"c{number}", "seen": "2", "text": 'a, "b"\nc'} for number in range(3)
        ]
    elif form == "csv":
        assert text.splitlines()[0] == "trial,state,iterations,value,params.x,width,notes.commit,notes.seen,notes.text"
    else:
        assert next(line.split()[-3:] for line in text.splitlines() if " complete " in line) == ["2", "a,", '"b"\\nc']


def test_trials_are_chosen_by_their_notes(studies, capsys) -> None:
    noted, _ = studies
    chosen = call(
        capsys, "trials", noted, "--where", "notes.commit == 'c1'", "--columns", "trial,notes.seen", "--format", "csv"
    )
    assert chosen.out == "trial,notes.seen\n1,2\n"
    assert call(capsys, "trials", noted, "--notes", "--columns", "trial").err.startswith(
        "hpsearch: --columns: lists these columns alone; write notes.NAME among them"
    )


def test_a_trials_page_shows_its_notes(studies, capsys) -> None:
    noted, silent = studies
    lines = call(capsys, "trial", noted, "1").out.splitlines()
    at = lines.index("notes")
    assert [line.split(maxsplit=1) for line in lines[at + 1 : at + 4]] == [
        ["commit", "c1"],
        ["seen", "2"],
        ["text", 'a, "b"\\nc'],
    ]
    assert json.loads(call(capsys, "trial", noted, "1", "--format", "json").out)["notes"]["commit"] == "c1"
    assert "notes" not in call(capsys, "trial", silent, "1").out


def test_a_data_frame_has_notes_on_request(studies) -> None:
    frame = hpsearch.load(studies[0]).trials_dataframe(notes=True)
    assert list(frame["notes.commit"]) == ["c0", "c1", "c2"]
    assert "notes.commit" not in hpsearch.load(studies[0]).trials_dataframe()


@pytest.mark.ray
@pytest.mark.exhaustive
def test_a_gang_on_ray_notes_what_rank_0_does(ray_cluster, tmp_path: Path) -> None:
    study = search(tmp_path / "study", function, "ray", resources={"workers": 2, "workers_per_trial": 2})
    assert [row.notes["commit"] for row in study.trials] == ["c0", "c1", "c2"]
