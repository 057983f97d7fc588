"""A sweep that names no metric: its trials run and are shown, and everything says that none is the best."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import hpsearch
from tests.hpsearch.support.command_line import Call

SWEEP = """\
program: train.py
method: grid
parameters: {x: {values: [1.0, 2.0]}}
command: ["${interpreter}", "${program}", "--by=${x}"]
"""

SCRIPT = """\
import json, os, sys
by = float(sys.argv[1].removeprefix("--by="))
with open(os.environ["HPSEARCH_REPORTS"], "a") as lines:
    for loss in (by + 1, by):
        lines.write(json.dumps({"loss": loss}) + "\\n")
"""


@pytest.fixture
def study(here: Path, hpsearch_command: Call) -> Path:
    (here / "bare.yaml").write_text(SWEEP)
    (here / "train.py").write_text(SCRIPT)
    answer = hpsearch_command("run", "bare.yaml", "--backend", "inline", "--dir", "bare")
    assert answer.code == 0, answer.err
    assert "note: metric isn't given: trials are run and shown, and none of them is the best" in answer.err
    assert "best:        none, as the sweep names no metric" in answer.out
    return here / "bare"


def test_what_is_reported_is_shown_exported_and_resumed_and_nothing_is_the_best(study, hpsearch_command):
    loaded = hpsearch.load(study)
    assert [dict(row.metrics) for row in loaded.trials] == [{"loss": 1.0}, {"loss": 2.0}]
    with pytest.raises(hpsearch.HpsearchError, match="names no metric, so no trial is the best"):
        _ = loaded.best_trial
    assert "loss" in hpsearch_command("trials", str(study)).out
    assert hpsearch_command("status", str(study)).code == 0
    rows = json.loads(hpsearch_command("trials", str(study), "--format", "json").out)
    assert [row["value"] for row in rows] == [None, None]
    assert hpsearch_command("best", str(study)).code == 1
    exported = hpsearch_command("export", str(study))
    assert (exported.code, "optuna" in exported.out) == (0, False)
    assert sorted(path.name for path in (study / "export").iterdir()) == ["reports.csv", "trials.csv", "trials.parquet"]
    assert hpsearch_command("resume", str(study), "--backend", "inline").code == 0
    assert hpsearch_command("run", "bare.yaml", "--backend", "inline", "--dir", str(study)).code == 0
    assert loaded.curves("loss") == {0: [(1, 2.0), (2, 1.0)], 1: [(1, 3.0), (2, 2.0)]}
    assert "grid, every trial to its end" in hpsearch_command("plan", "bare.yaml").out


def test_a_lineage_has_an_empty_value(study, hpsearch_command):
    table = hpsearch_command("lineage", str(study), 1, "--format", "csv").out
    assert table == "trial,start,end,value,params.x\n1,0,2,,2.0\n"
    (told,) = json.loads(hpsearch_command("lineage", str(study), 1, "--format", "json").out)
    assert told == {"trial": 1, "start": 0, "end": 2, "value": None, "params": {"x": 2.0}}


@pytest.mark.parametrize(
    ("words", "told"), [(["--front"], "no trial is the best"), (["--weights", "loss=1"], "names none")]
)
def test_what_goes_by_a_metric_is_refused(study, hpsearch_command, words, told):
    answer = hpsearch_command("trials", str(study), *words)
    assert (answer.code, answer.out) == (1, "")
    assert told in answer.err
