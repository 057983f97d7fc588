"""Code that is edited while a sweep runs: the run ends, and the table shows which trials ran which version."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.hpsearch.support.command_line import Call, write_sweep

FUNCTION = """
from pathlib import Path
import edited_part

def train(trial):
    start = 0 if trial.checkpoint is None else trial.checkpoint["at"]
    for iteration in trial.iterations():
        if trial.number == 1 and iteration == 1:
            {edit}
        trial.report({{"loss": trial.params["x"]}}, checkpoint={{"at": iteration}})
"""

SCRIPT = FUNCTION + "\nimport hpsearch\ntrain(hpsearch.current_trial())\n"

EDIT = 'Path("{file}").write_text(Path("{file}").read_text() + "# edited\\n")'


@pytest.mark.some_cases(2)
@pytest.mark.parametrize("kind", ["function", "script"])
@pytest.mark.parametrize("file", ["edited_code.py", "edited_part.py"])
def test_an_edit_ends_the_run_and_each_version_has_its_rows(
    here: Path, hpsearch_command: Call, monkeypatch: pytest.MonkeyPatch, kind: str, file: str
) -> None:
    text = {"function": FUNCTION, "script": SCRIPT}[kind].format(edit=EDIT.format(file=file))
    (here / "edited_code.py").write_text(text)
    (here / "edited_part.py").write_text("rate = 1\n")
    monkeypatch.syspath_prepend(str(here))
    for name in ("edited_code", "edited_part"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    trainable, program = ("edited_code:train", None) if kind == "function" else (None, "edited_code.py")
    write_sweep(here / "edited.yaml", trainable, program=program, max_iter=3, run_cap=3)

    run = hpsearch_command("run", "edited.yaml", "--backend", "inline", "--dir", "study")
    assert run.code == 130
    assert f"{here / file} was edited, but the trials of a run must run the same code" in run.out.replace("\n", "")
    table = hpsearch_command("trials", "study", "--format", "csv").out
    assert "code" not in table
    assert [line.partition(",")[0] for line in table.splitlines()] == ["trial", "0", "1"]

    for name in ("edited_code", "edited_part"):
        sys.modules.pop(name, None)
    (here / "edited_code.py").write_text(text.replace("== 1 and", "== -1 and"))
    assert hpsearch_command("resume", "study", "--backend", "inline").code == 0
    lines = hpsearch_command("trials", "study", "--format", "csv").out.splitlines()
    before, first, edited, second = (line.rpartition(",")[2] for line in lines)
    assert (before, first, second) == ("code", "1", "2")
    assert edited in ("1", "1+2")  # it may have ended before the edit was seen
    assert "code" in hpsearch_command("trials", "study").out.splitlines()[1]
    assert '"code": "2"' in hpsearch_command("trials", "study", "--format", "json").out
