"""Code that knows nothing of hpsearch runs in a sweep after the few changes that getting-started.md shows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import hpsearch
from tests.hpsearch.support.command_line import PROGRAM, environment
from tests.test_docs import Block, blocks_of

ROOT = Path(__file__).parents[1]
BEFORE = ROOT / "tests" / "newcomers"
DIFFS = [block for block in blocks_of(ROOT / "docs" / "getting-started.md") if block.language == "diff"]

SWEEP = """
{runs}
metric: {{name: accuracy, goal: maximize}}
method: random
early_terminate: {{type: hyperband, max_iter: 3, eta: 3}}
parameters:
  lr: {{distribution: log_uniform_values, min: 0.01, max: 0.3}}
  hidden: {{values: [32, 64]}}
"""


def name_of(block: Block) -> str:
    return block.text.splitlines()[0].removeprefix("--- ").removesuffix(".py")


def hunks_of(block: Block) -> list[list[str]]:
    """Return the lines of each hunk of a diff; `@@` begins one."""
    return [hunk.splitlines() for hunk in block.text.partition("@@\n")[2].split("@@\n")]


def changed(before: str, block: Block) -> str:
    """Return a text after a diff. Each hunk has whole lines that are in the text once."""
    text = f"\n{before}"
    for hunk in hunks_of(block):
        old, new = ("\n".join(["", *(line[1:] for line in hunk if line[0] in signs), ""]) for signs in (" -", " +"))
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text.removeprefix("\n")


def test_each_kind_has_a_diff():
    assert [name_of(block) for block in DIFFS] == ["function", "script", "lightning_script", "wandb_script"]
    assert {path.stem for path in BEFORE.glob("*.py")} == {name_of(block) for block in DIFFS}


@pytest.mark.parametrize("block", DIFFS, ids=name_of)
def test_at_most_five_lines_change(block: Block):
    before = (BEFORE / f"{name_of(block)}.py").read_text()
    assert "hpsearch" not in before
    signs = [[line[0] for line in hunk] for hunk in hunks_of(block)]
    assert 1 <= sum(max(of_hunk.count("-"), of_hunk.count("+")) for of_hunk in signs) <= 5
    compile(changed(before, block), name_of(block), "exec")


@pytest.mark.exhaustive
@pytest.mark.parametrize("block", DIFFS, ids=name_of)
def test_it_runs_alone_before_and_is_searched_after(block: Block, tmp_path: Path):
    def run(*command: str) -> None:
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
        assert done.returncode == 0, (command, done)

    name, path = name_of(block), tmp_path / "train.py"
    env = environment(WANDB_MODE="offline", PYTHONPATH=os.pathsep.join((str(tmp_path), str(ROOT))))
    path.write_text(before := (BEFORE / f"{name}.py").read_text())
    alone = "import train; train.train({'lr': 0.1, 'hidden': 64})" if name == "function" else "import train"
    run(sys.executable, "-c", alone)
    path.write_text(changed(before, block))
    runs = "trainable: train:train" if name == "function" else "program: train.py"
    (tmp_path / "sweep.yaml").write_text(SWEEP.format(runs=runs))
    run(PROGRAM, "run", "sweep.yaml", "--backend", "inline", "--dir", "study")
    study = hpsearch.load(tmp_path / "study")
    assert (study.state, study.best_trial.number in range(len(study.trials))) == ("finished", True)
    assert study.best_value > 0.8
    assert max(row.iterations for row in study.trials) == 3
