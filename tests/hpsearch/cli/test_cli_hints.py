"""What is printed to go on with can be pasted, whatever the directory is called."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from hpsearch.cli.parser import build_parser
from hpsearch.design.folder import DesignFolder
from hpsearch.design.report import DesignReport
from hpsearch.errors import DesignError
from tests.hpsearch.support.command_line import Call, write_sweep

STUDY = "my runs/it's"
INLINE = ("--backend", "inline")

_HINT = re.compile(r"`(hpsearch [a-z-]+ [^`]*)`|(?:^|: +|  +)(hpsearch [a-z-]+ .*)$", re.MULTILINE)


@pytest.fixture
def folder(here: Path) -> Path:
    (here / "my runs").mkdir()
    return here


def pasted(text: str) -> list[list[str]]:
    """Return the words of each hint in a text, as a shell splits them; a placeholder in capitals is filled in."""
    hints = [quoted or bare for quoted, bare in _HINT.findall(text)]
    assert hints, text
    words = []
    for hint in hints:
        hint = re.sub(r"=[A-Z]+\b", "=null", hint)
        hint = re.sub(r" TIME\b", " 1m", hint)
        script = 'hpsearch() { printf "%s\\0" "$@"; }; ' + hint
        out = subprocess.run(["sh", "-ec", script], capture_output=True, text=True, check=True).stdout
        words.append(out.split("\0")[:-1])
    return words


def check(text: str) -> list[list[str]]:
    """See that each hint in a text is a command, on a directory that is there."""
    found = pasted(text)
    for words in found:
        given = build_parser().parse_args(words)
        place: str | Path | list[Path] = next(
            at for key in ("dir", "dirs", "sweep", "resume") if (at := getattr(given, key, None))
        )
        assert all(Path(at).is_dir() for at in (place if isinstance(place, list) else [place])), words
    return found


def test_those_of_a_sweep_that_can_go_on(folder: Path, hpsearch_command: Call):
    limited = ("--set", "limits.max_time=0.001")
    answer = hpsearch_command("run", "sweep.yaml", *INLINE, "--dir", STUDY, *limited)
    (go_on,) = check(answer.out)
    assert go_on == ["resume", STUDY, "--set", "limits.max_time=null"]
    check(hpsearch_command("status", STUDY).out)
    answer = hpsearch_command(*go_on, *INLINE)
    assert answer.code == 0
    shown = check(answer.out)
    assert ["trials", STUDY] in shown
    for words in shown:
        if words[0] != "tensorboard":
            assert hpsearch_command(*words).code == 0


def test_those_of_a_directory_whose_name_begins_like_an_option(folder: Path, hpsearch_command: Call):
    answer = hpsearch_command("run", "sweep.yaml", *INLINE, "--dir=-study")
    shown = check(answer.out)
    assert ["trials", "./-study"] in shown
    assert hpsearch_command("trials", "./-study").code == 0
    assert "checkpoint:  ./-study/" in answer.out
    assert " ./-study " in hpsearch_command("list", ".").out


def test_those_of_one_that_reached_its_target(folder: Path, hpsearch_command: Call):
    answer = hpsearch_command("run", "sweep.yaml", *INLINE, "--dir", STUDY, "--set", "metric.target=1000")
    go_on = check(answer.out)[-1]
    assert go_on == ["resume", STUDY, "--set", "metric.target=null"]
    assert check(hpsearch_command("status", STUDY).out)[-1][1:] == [str(folder / STUDY), *go_on[2:]]
    assert hpsearch_command(*go_on, *INLINE).code == 0


@pytest.mark.parametrize("trainable", ["fails", "nan", "misnamed"])
def test_those_of_one_that_went_wrong(folder: Path, hpsearch_command: Call, trainable: str):
    write_sweep(folder / "sweep.yaml", trainable)
    answer = hpsearch_command("run", "sweep.yaml", *INLINE, "--dir", STUDY)
    assert check(answer.out if answer.code == 4 else answer.err)
    answer = hpsearch_command("best", STUDY)
    assert answer.code == 1
    check(answer.err)


def test_those_of_trials_that_are_asked_for(folder: Path, hpsearch_command: Call):
    assert hpsearch_command("ask", "sweep.yaml", "--dir", STUDY).code == 0
    check(hpsearch_command("status", STUDY).out)
    answer = hpsearch_command("resume", STUDY, *INLINE)
    assert answer.code == 1
    assert ["ask", str(folder / STUDY)] in [words for words in check(answer.err) if words[0] == "ask"]


def test_those_of_a_design(folder: Path):
    place = DesignFolder(folder / STUDY)
    place.begin({})
    with pytest.raises(DesignError) as raised:
        place.begin({})
    assert check(str(raised.value)) == [["design", "--resume", str(place.path)]]


def test_those_of_a_design_that_has_ended(folder: Path):
    score = {"value": 0.9, "interval": None}
    counts = dict.fromkeys(("trial", "trials", "epochs", "search_rows", "test_rows"), 1)
    scores = {"test": score, "baseline": score, "trees": score, "validation": 0.9, "trees_validation": 0.9}
    words = {"goal": "accuracy", "better": "maximize", "baseline_is": "a class", "trees_are": "a forest"}
    rest = {"trees_win": False, "all_scores": {"accuracy": 0.9}, "params": {}, "broken": (), "notes": ()}
    cost = {"cost": {"parameters": 1.0, "latency_ms": 1.0}, "seconds": 1.0}
    report = DesignReport.from_json({**counts, **scores, **words, **rest, **cost})
    (folder / STUDY / "study").mkdir(parents=True)
    found = check(report.text(Path(STUDY)))
    assert found == [["predict", STUDY, "NEW"], ["trials", f"{STUDY}/study"]]
