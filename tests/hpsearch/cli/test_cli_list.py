"""Studies found again: `list`, `tag` and `note`."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import shutil
import sqlite3
import time
from pathlib import Path

import pytest

import hpsearch
from hpsearch.decision import Followed
from hpsearch.events import Steered
from hpsearch.journal.directory import StudyDirectory
from hpsearch.journal.journal import Journal
from tests.hpsearch.support.command_line import Call, write_sweep

RUN = ("run", "sweep.yaml", "--backend", "inline", "--no-tensorboard")


@pytest.fixture
def studies(here: Path, hpsearch_command: Call) -> Path:
    """Two studies, the second begun later, and what is none."""
    assert hpsearch_command(*RUN, "--tag", "first", "--tag", "keep", "--note", "why not\nmore").code == 0
    assert hpsearch_command(*RUN, "--dir", "runs/design-x/study").code == 0
    (here / "runs/empty").mkdir()
    (here / "runs/.hidden").mkdir()
    shutil.copy(here / "runs/sweep-1/study.db", here / "runs/.hidden/study.db")
    return here / "runs"


def listed(answer: str) -> dict[str, list[str]]:
    """Return the lines of a table by their first cell."""
    lines = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in answer.splitlines()]
    return {line[0]: line for line in lines if line}


def test_the_studies_of_a_folder_are_listed_the_newest_first(studies, hpsearch_command):
    answer = hpsearch_command("list")
    assert (answer.code, answer.err) == (0, "")
    head, _, *lines = answer.out.strip().splitlines()
    assert head.split() == ["study", "state", "trials", "best", "begun", "took", "size", "name", "tags", "note"]
    assert [line.split()[0] for line in lines] == ["runs/design-x/study", "runs/sweep-1"]
    assert lines[1].endswith("first keep   why not")
    best = hpsearch.load("runs/sweep-1").best_value
    assert f"finished        4   loss {best:.4g}" in lines[1]


def test_only_those_with_a_tag(studies, hpsearch_command):
    assert list(listed(hpsearch_command("list", "--tag", "keep").out))[2:] == ["runs/sweep-1"]
    assert (
        hpsearch_command("list", "--tag", "keep", "--tag", "other").out == "no study with the tag keep other in runs\n"
    )


def test_a_run_that_is_refused_leaves_a_studys_tags_and_note_as_they_are(studies, hpsearch_command):
    more = ("--dir", "runs/sweep-1", "--tag", "other", "--note", "another")
    assert hpsearch_command(*RUN, *more, "--set", "seed=1").code == 1
    assert listed(hpsearch_command("list").out)["runs/sweep-1"][-1] == "why not"
    assert hpsearch_command("list", "--tag", "other").out == "no study with the tag other in runs\n"
    assert hpsearch_command(*RUN, *more).code == 0
    assert listed(hpsearch_command("list").out)["runs/sweep-1"][-1] == "another"


def test_csv_and_json_hold_the_same(studies, hpsearch_command):
    told = json.loads(hpsearch_command("list", studies, "--format", "json").out, parse_constant=pytest.fail)
    rows = list(csv.DictReader(io.StringIO(hpsearch_command("list", studies, "--format", "csv").out)))
    assert [one["directory"] for one in told] == [str(studies / "design-x/study"), str(studies / "sweep-1")]
    assert [one["tags"] for one in told] == [[], ["first", "keep"]]
    assert [one["state"] for one in told] == ["finished", "finished"]
    assert [float(row["value"]) for row in rows] == [one["value"] for one in told]
    assert [row["tags"] for row in rows] == ["", "first keep"]
    assert list(rows[0]) == list(told[0])
    assert all(one["seconds"] > 0 and one["size"] > 10_000 and one["begun"] <= one["changed"] for one in told)


def test_they_are_sorted_by_any_column(studies, hpsearch_command):
    for sort in ("begun", "changed", "study:desc", "name:asc"):
        told = json.loads(hpsearch_command("list", "--sort", sort, "--format", "json").out)
        assert len(told) == 2
        if sort != "name:asc":
            assert told[0]["directory"].endswith("sweep-1"), sort
    answer = hpsearch_command("list", "--sort", "stat")
    assert (answer.code, answer.err) == (
        1,
        "hpsearch: --sort: must be NAME or NAME:desc of a column, got 'stat'; did you mean state?\n",
    )


def test_what_cannot_be_read_is_a_line_and_not_the_end(studies, hpsearch_command):
    damaged, foreign, cut = (studies / name for name in ("damaged", "foreign", "cut"))
    shutil.copytree(studies / "sweep-1", damaged)
    with contextlib.closing(sqlite3.connect(damaged / "study.db")) as connection, connection:
        connection.execute("UPDATE events SET body = replace(body, '0', '1') WHERE seq = 4")
    connection.close()
    foreign.mkdir()
    sqlite3.connect(foreign / "study.db").execute("CREATE TABLE t (x)").connection.close()
    cut.mkdir()
    (cut / "study.db").write_bytes((studies / "sweep-1/study.db").read_bytes()[:5000])
    answer = hpsearch_command("list")
    assert answer.code == 0
    lines = listed(answer.out)
    for name in ("damaged", "foreign", "cut"):
        assert lines[f"runs/{name}"][1] == "unreadable"
        assert f"runs/{name} can't be read: " in answer.out
    assert "event 4 can't be read: its checksum doesn't fit" in answer.out
    assert lines["runs/sweep-1"][1] == "finished"
    told = {Path(one["directory"]).name: one for one in json.loads(hpsearch_command("list", "--format", "json").out)}
    assert told["foreign"]["problem"].startswith("expected a journal of hpsearch")
    assert told["foreign"]["trials"] is None


def test_what_became_of_a_study_is_its_state(studies, hpsearch_command, here):
    running = StudyDirectory(studies / "sweep-1")
    killed, cancelled, untouched = (StudyDirectory(studies / name) for name in ("killed", "cancelled", "untouched"))
    for place, kept in ((killed, 8), (cancelled, 8), (untouched, 0)):
        shutil.copytree(running.path, place.path)
        with contextlib.closing(sqlite3.connect(place.journal)) as connection, connection:
            connection.execute("DELETE FROM events WHERE seq > ?", (kept,))
        connection.close()
    with Journal.open(cancelled.journal) as journal:
        journal.append([Steered("cancel", "ada@there:7", 1, {}, "")], [Followed()], time.time())
    with running.running("me@here:4711"):
        answer = hpsearch_command("list")
        (told,) = (
            one
            for one in json.loads(hpsearch_command("list", "--format", "json").out)
            if one["directory"].endswith("sweep-1")
        )
    lines = listed(answer.out)
    assert told["process"] == "me@here:4711"
    assert lines["runs/killed"][1] == "killed"
    assert lines["runs/cancelled"][1] == "cancelled"
    assert lines["runs/untouched"][1] == "not begun"


def test_a_link_to_a_study_is_a_study_and_a_circle_ends(studies, hpsearch_command, here):
    (studies / "circle").symlink_to(studies)
    (here / "away").symlink_to(studies / "sweep-1")
    assert len(json.loads(hpsearch_command("list", "--format", "json").out)) == 2
    assert [one["name"] for one in json.loads(hpsearch_command("list", "away", "--format", "json").out)] == ["sweep"]


def test_a_path_can_be_pasted(studies, hpsearch_command):
    (studies / "sweep-1").rename(studies / "sweep 1")
    assert "\n 'runs/sweep 1' " in hpsearch_command("list").out


def test_several_goals_are_told_by_their_front(here, hpsearch_command):
    write_sweep(
        here / "two.yaml", "traded", metric=[{"name": "loss", "goal": "minimize"}, {"name": "acc", "goal": "maximize"}]
    )
    assert hpsearch_command("run", "two.yaml", "--backend", "inline", "--dir", "runs/two").code == 0
    front = len(hpsearch.load("runs/two").best_trials)
    assert f"a front of {front}" in hpsearch_command("list").out
    (told,) = json.loads(hpsearch_command("list", "--format", "json").out)
    assert (told["value"], told["front"]) == (None, front)


def test_tags_and_notes_are_changed_and_shown(studies, hpsearch_command):
    study = studies / "sweep-1"
    before = [row for row in hpsearch.load(study).trials]
    assert hpsearch_command("tag", study).out == "first keep\n"
    assert hpsearch_command("tag", study, "paper", "first").out == "first keep paper\n"
    assert hpsearch_command("tag", study, "keep", "--remove").out == "first paper\n"
    assert hpsearch_command("note", study).out == "why not\nmore\n"
    assert hpsearch_command("note", study, "tried lr").out == "tried lr\n"
    status = hpsearch_command("status", study).out.splitlines()
    assert "tags        first paper" in status
    assert "note        tried lr" in status
    assert hpsearch_command("note", study, "").out == "no note\n"
    labels = hpsearch.load(study).labels
    assert (labels.tags, labels.note) == (("first", "paper"), "")
    assert hpsearch.load(study).trials == before


def test_tags_may_be_left_while_another_process_runs_the_study(studies, hpsearch_command):
    with StudyDirectory(studies / "sweep-1").running("me@here:1"):
        assert hpsearch_command("tag", studies / "sweep-1", "now").out == "first keep now\n"


@pytest.mark.parametrize("tag", ["two words", "a,b", "", "a\tb"])
def test_a_tag_is_a_word(studies, hpsearch_command, tag):
    for words in (("tag", studies / "sweep-1", tag), (*RUN, "--tag", tag)):
        answer = hpsearch_command(*words)
        assert answer.code == 1
        assert f"a tag must be a word without spaces and commas, got {tag!r}" in answer.err
    assert sorted(path.name for path in studies.iterdir() if path.name.startswith("sweep")) == ["sweep-1"]


def test_a_tag_that_is_not_there_cannot_be_taken_off(studies, hpsearch_command):
    answer = hpsearch_command("tag", studies / "sweep-1", "kep", "--remove")
    assert (answer.code, answer.out) == (1, "")
    assert "must have the tag 'kep' to lose it; its tags are first, keep" in answer.err


def test_a_tag_does_not_make_a_study_newer(studies, hpsearch_command):
    assert hpsearch_command("tag", studies / "sweep-1", "new").code == 0
    assert list(listed(hpsearch_command("list").out))[2:] == ["runs/design-x/study", "runs/sweep-1"]


def test_no_folder_and_no_study_are_said(here, hpsearch_command):
    answer = hpsearch_command("list")
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith("hpsearch: runs: expected a folder with studies, but there is none.")
    Path("runs").mkdir()
    assert hpsearch_command("list").out == "no study in runs\n"


def test_a_large_study_is_read_again_only_after_its_journal_changed(studies, hpsearch_command, monkeypatch):
    monkeypatch.setattr("hpsearch.results.studies._LEAST_KEPT", 1)
    first = hpsearch_command("list", "--format", "json").out
    kept = studies / "sweep-1/summary.json"
    assert kept.is_file()
    summary = json.loads(kept.read_text())
    summary["summary"]["trials"] = 41
    kept.write_text(json.dumps(summary))
    again = {study["directory"]: study for study in json.loads(hpsearch_command("list", "--format", "json").out)}
    assert again["runs/sweep-1"]["trials"] == 41  # from the file
    assert hpsearch_command("tag", "runs/sweep-1", "new").code == 0
    changed = {study["directory"]: study for study in json.loads(hpsearch_command("list", "--format", "json").out)}
    assert changed["runs/sweep-1"]["trials"] == 4
    assert changed["runs/sweep-1"]["tags"] == ["first", "keep", "new"]
    same = {study["directory"]: study for study in json.loads(first)}["runs/design-x/study"]
    told = {study["directory"]: study for study in json.loads(hpsearch_command("list", "--format", "json").out)}
    assert {**told["runs/design-x/study"], "size": 0} == {**same, "size": 0}


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"version": "0.1.0", "journal": [], "summary": {}}'])
def test_a_summary_that_cannot_be_read_is_made_anew(studies, hpsearch_command, monkeypatch, content):
    monkeypatch.setattr("hpsearch.results.studies._LEAST_KEPT", 1)
    (studies / "sweep-1/summary.json").write_text(content)
    found = {study["directory"]: study for study in json.loads(hpsearch_command("list", "--format", "json").out)}
    assert found["runs/sweep-1"]["trials"] == 4


def test_a_small_study_has_no_summary_beside_it(studies, hpsearch_command):
    assert hpsearch_command("list").code == 0
    assert not (studies / "sweep-1/summary.json").exists()
