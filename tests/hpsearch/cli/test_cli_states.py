"""Everything that tells of a study has the same word for its state."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import hpsearch
from hpsearch.decision import Followed
from hpsearch.events import Ended, Event, Opened, Steered
from hpsearch.journal.directory import StudyDirectory
from hpsearch.journal.journal import Journal
from hpsearch.results.studies import summarize
from hpsearch.run.study_run import create_study
from hpsearch.sweep.file import load_sweep
from hpsearch.watch.app import header_lines
from hpsearch.watch.live_study import LiveStudy, Tail
from tests.hpsearch.support.command_line import Call, call, write_sweep

OPENED = Opened("ray", 2, "me@here:1", "hpsearch run")
PAUSE = Steered("pause", "bo@box:3", 5, {}, "")
CANCEL = Steered("cancel", "bo@box:3", 5, {}, "")

STUDIES: dict[str, tuple[list[Event], bool]] = {
    # the state, what the journal gains behind four trials that have ended, and whether a process holds the study
    "finished": ([], False),
    "running": ([OPENED], True),
    "paused": ([OPENED, PAUSE], True),
    "killed": ([OPENED], False),
    "interrupted": ([OPENED, Ended("interrupted")], False),
    "cancelled": ([OPENED, CANCEL, Ended("cancelled", "by bo@box")], False),
    "stopped": ([OPENED, Ended("stopped")], False),
    "max_time": ([OPENED, Ended("max_time")], False),
    "target": ([OPENED, Ended("target", "trial 1 has reached it")], False),
    "error": ([OPENED, Ended("error", "it broke")], False),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("made")


@pytest.fixture
def finished(made: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    for name in () if (made / "study").exists() else ("other", "study"):
        assert call(capsys, "run", "sweep.yaml", "--backend", "inline", "--dir", made / name).code == 0
    shutil.copytree(made / "study", here / "runs/study")
    shutil.copytree(made / "other", here / "other")
    return Path("runs/study")


@contextlib.contextmanager
def standing(path: Path, events: list[Event], held: bool) -> Iterator[None]:
    place = StudyDirectory(path)
    if events:
        with Journal.open(place.journal) as journal:
            journal.append(events, [Followed()] * len(events), time.time())
    with place.running("me@here:4711") if held else contextlib.nullcontext():
        yield


def words_for(path: Path, hpsearch_command: Call) -> dict[str, str]:
    """Return the state of a study as each command and page names it."""
    study, live = hpsearch.load(path), LiveStudy(Tail(StudyDirectory(path)).look())
    (listed,) = json.loads(hpsearch_command("list", "--format", "json").out)
    compared = json.loads(hpsearch_command("compare", path, "other", "--format", "json").out)
    header = "\n".join(line.plain for line in header_lines(live, str(path)))

    def word(text: str, pattern: str) -> str:
        found = re.search(pattern, text)
        assert found is not None, text
        return found[1]

    any_state = "|".join([*STUDIES, "not begun"])
    return {
        "study.state": study.state,
        "repr": word(repr(study), rf"in \S+: ({any_state});"),
        "the page": word(study._repr_html_(), rf"it is ({any_state})\b"),
        "list": listed["state"],
        "list, the table": word(hpsearch_command("list").out, rf"\n +runs/study +({any_state})\b"),
        "summarize": summarize([path], time.time())[0].state,
        "status": word(hpsearch_command("status", path).out, rf"state +({any_state})\b"),
        "status --json": json.loads(hpsearch_command("status", path, "--json").out)["state"],
        "watch": word(header, rf"state +({any_state})\b"),
        "compare": next(one["state"] for one in runs_of(compared) if Path(one["directory"]).name == "study"),
    }


def runs_of(compared: object) -> list[dict[str, str]]:
    """Return the records of studies, at any depth of the output of `compare`."""
    if isinstance(compared, dict):
        within = [one for value in compared.values() for one in runs_of(value)]
        return [compared, *within] if "state" in compared else within
    return [one for value in compared for one in runs_of(value)] if isinstance(compared, list) else []


@pytest.mark.some_cases(2)
@pytest.mark.parametrize("state", STUDIES)
def test_all_have_the_same_word(finished, hpsearch_command, state):
    with standing(finished, *STUDIES[state]):
        words = words_for(finished, hpsearch_command)
    assert words == dict.fromkeys(words, state)


def test_also_of_one_that_has_not_begun(here, hpsearch_command):
    write_sweep(here / "sweep.yaml")
    create_study(load_sweep(here / "sweep.yaml"), here / "runs/study")
    (listed,) = json.loads(hpsearch_command("list", "--format", "json").out)
    told = json.loads(hpsearch_command("status", "runs/study", "--json").out)["state"]
    study = hpsearch.load("runs/study")
    assert {listed["state"], told, study.state} == {"not begun"}
    assert ": not begun; no trials>" in repr(study)
    status = hpsearch_command("status", "runs/study").out
    assert f"state       not begun; begin with: hpsearch resume {here / 'runs/study'}\n" in status


@pytest.mark.parametrize(
    ("state", "line"),
    [
        ("killed", "killed: its process died; continue with: hpsearch resume"),
        ("interrupted", "interrupted; continue with: hpsearch resume"),
        ("error", "error: it broke\n            mend it and continue with: hpsearch resume"),
        ("running", "running in me@here:4711\n"),
    ],
)
def test_status_says_what_to_do(finished, hpsearch_command, state, line):
    with standing(finished, *STUDIES[state]):
        assert f"\nstate       {line}" in hpsearch_command("status", finished).out


def test_of_one_that_was_cancelled_status_watch_and_history_say_when_and_by_whom(finished, hpsearch_command):
    with standing(finished, *STUDIES["cancelled"]):
        status = hpsearch_command("status", finished).out
        found = re.search(
            r"state       (cancelled at [-\d]{10} [:\d]{8}, by bo@box); continue with: hpsearch resume", status
        )
        assert found is not None
        live = LiveStudy(Tail(StudyDirectory(finished)).look())
        assert found[1] in "\n".join(line.plain for line in header_lines(live, "study"))
        end = hpsearch.load(finished).history()[-1]
        assert (end.verb, end.by, end.outcome) == ("end", "me@here:1", "cancelled: by bo@box")
        assert hpsearch_command("history", finished).out.rstrip().endswith(" cancelled: by bo@box")
