"""`hpsearch check` on trainables of each kind: right ones, and some that forget, ignore, leak or draw something."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpsearch.cli import main
from tests.hpsearch.support import checked_trainables
from tests.hpsearch.support.command_line import Answer, call, write_sweep

Check = Callable[..., Answer]

SCRIPT = """
import argparse
import hpsearch
import train
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.parse_args()
train.{}(hpsearch.current_trial())
"""

COUNTER = """
iteration=$HPSEARCH_START
total=0
if [ -n "$HPSEARCH_CHECKPOINT" ] && [ "$1" != forget ]; then total=$(cat "$HPSEARCH_CHECKPOINT"); fi
while [ "$iteration" -lt "$HPSEARCH_END" ]; do
  iteration=$((iteration + 1)); total=$((total + 3))
  echo $total > "$HPSEARCH_DIRECTORY/total-$iteration"
  if [ "$1" = nothing ]; then echo "{\\"loss\\": $total}" >> "$HPSEARCH_REPORTS"
  else echo "{\\"loss\\": $total, \\"checkpoint\\": \\"total-$iteration\\"}" >> "$HPSEARCH_REPORTS"; fi
done
"""


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Check:
    """Check a trainable of `train.py` in an empty folder; nothing is left in the folder for temporary files."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(checked_trainables.__file__, tmp_path / "train.py")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))

    def check(trainable: str | None, *arguments: str, **changes: Any) -> Answer:
        parameters = {"lr": {"min": 0.001, "max": 0.01}}
        named = None if trainable is None else f"train:{trainable}"
        write_sweep(tmp_path / "sweep.yaml", named, parameters=parameters, **{"max_iter": 9, **changes})
        answer = call(capsys, "check", "sweep.yaml", *arguments)
        assert list(scratch.iterdir()) == []
        return answer

    return check


def comparisons(answer: Answer) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(answer.out)["comparisons"]
    return found


def named(comparison: dict[str, Any]) -> set[tuple[str, str, int]]:
    """Return the differences at iterations, without those of metrics: kind, name, iteration."""
    return {
        (one["kind"], one["name"], one["iteration"])
        for one in comparison["differences"]
        if one["iteration"] is not None and one["kind"] != "metric"
    }


@pytest.mark.exhaustive
@pytest.mark.parametrize("trainable", ["right", "Right", "RightTrainer"])
def test_all_is_well_of_a_trainable_that_restores_everything(check, trainable):
    answer = check(trainable, "--format", "json")
    found = json.loads(answer.out)
    assert {one["verdict"] for one in found["comparisons"].values()} == {"equal"}, answer.out
    assert (answer.code, found["ok"], found["varying"]) == (0, True, [])
    assert len(found["seconds"]) == 2
    assert min(*found["seconds"], found["memory_bytes"], found["checkpoint_bytes"]) > 0
    assert found["lane"]["possible"] == (trainable == "RightTrainer")
    assert found["trials"][0]["number"] == 0 != found["trials"][1]["number"]


FORGETFUL = [
    ("forgets_optimizer", {("optimizer", "momentum_buffer of SGD", 2)}),
    ("forgets_rate", {("learning rate", "lr of SGD, group 0", 2)}),
    ("forgets_schedule", {("learning rate", "lr of SGD after the last step, group 0", 2)}),
    ("forgets_order", {("data order", "first batch", 2)}),
    ("depends_on_end", {("learning rate", "lr of SGD, group 0", 1)}),
    ("LosesState", {("weights", "parameters of SGD", 2)}),
]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("trainable", "expected"), FORGETFUL)
def test_what_a_restored_trial_forgets_is_named(check, trainable, expected):
    answer = check(trainable, "--format", "json")
    found = comparisons(answer)
    assert named(found["restored"]) == expected
    assert (answer.code, found["repeated"]["verdict"], found["warm worker"]["verdict"]) == (1, "equal", "equal")


@pytest.mark.exhaustive
def test_a_class_that_forgets_its_optimizer_has_another_rate_too(check):
    found = comparisons(check("ForgetsOptimizer", "--format", "json"))
    kinds = {kind for kind, _, _ in named(found["restored"])}
    assert kinds == {"optimizer", "learning rate"}


@pytest.mark.exhaustive
def test_a_loop_that_ignores_its_checkpoint_begins_anew(check):
    answer = check("ignores_checkpoint", "--format", "json")
    restored = comparisons(answer)["restored"]
    assert ("weights", "parameters of SGD", 2) in named(restored)
    notes = {one["kind"]: one["note"] for one in restored["differences"] if one["iteration"] == 2}
    assert notes["weights"] == "those with which iteration 1 began"
    assert notes["checkpoint"] == "was never read"
    answer = check("own_loop_ignores_checkpoint", "--format", "json")
    restored = comparisons(answer)["restored"]
    assert (answer.code, restored["verdict"], restored["failure"]["kind"]) == (1, "failed", "contract")


LEAKING = [
    ("leaks_config", ("optimizer", "momentum of SGD, group 0", 1), "train.CONFIG"),
    ("leaks_cache", ("learning rate", "lr of SGD, group 0", 1), "train.cached_rate"),
    ("Leaks", ("learning rate", "lr of SGD, group 0", 1), "train.SEEN"),
    ("LeaksTrainer", ("optimizer", "momentum of SGD, group 0", 1), "train.CONFIG"),
]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("trainable", "difference", "value"), LEAKING)
def test_module_state_that_leaks_to_the_next_trial_is_named(check, trainable, difference, value):
    answer = check(trainable, "--format", "json")
    record = json.loads(answer.out)
    found = record["comparisons"]
    assert difference in named(found["warm worker"])
    assert [one["name"] for one in found["warm worker"]["suspects"]] == [value]
    assert (answer.code, found["repeated"]["verdict"], found["restored"]["verdict"]) == (1, "equal", "equal")
    assert record["module_changes"] == (["train.CONFIG['momentum']"] if value == "train.CONFIG" else [])


@pytest.mark.exhaustive
def test_an_unseeded_generator_is_told_from_a_restore_that_fails(check):
    answer = check("unseeded", "--format", "json")
    found = comparisons(answer)
    assert (answer.code, named(found["repeated"])) == (1, {("data order", "first batch", 1)})
    assert {found[name]["verdict"] for name in ("restored", "warm worker")} == {"skipped"}
    assert "equal runs differ" in found["restored"]["text"]


@pytest.mark.exhaustive
def test_a_metric_that_measures_time_is_no_difference_unless_it_decides(check):
    answer = check("timed", "--format", "json")
    found = json.loads(answer.out)
    assert (answer.code, found["ok"], found["varying"]) == (0, True, ["metric clock", "state clock"])
    answer = check("timed", "--format", "json", metric={"name": "clock", "goal": "minimize"})
    found = json.loads(answer.out)
    assert (answer.code, found["comparisons"]["repeated"]["verdict"]) == (1, "differs")


@pytest.mark.exhaustive
def test_a_trainable_without_checkpoints_is_run_twice(check):
    answer = check("saves_nothing", "--format", "json")
    found = json.loads(answer.out)
    verdicts = {name: one["verdict"] for name, one in found["comparisons"].items()}
    assert verdicts == {"repeated": "equal", "restored": "skipped", "warm worker": "equal"}
    assert (answer.code, found["checkpoint_bytes"]) == (0, None)


@pytest.mark.exhaustive
def test_a_failure_behind_the_checkpoint_is_shown_with_its_traceback(check):
    answer = check("fails_restored")
    assert answer.code == 1
    assert "FAILED from the checkpoint of iteration 1: ValueError: there is no way back" in answer.out
    assert 'raise ValueError("there is no way back")' in answer.out


@pytest.mark.exhaustive
def test_where_each_segment_has_a_process_of_its_own_none_is_warm(check):
    answer = check("leaks_config", resources={"fresh_process": True})
    assert answer.code == 0, answer
    assert "warm worker  not compared: resources.fresh_process is true" in answer.out


@pytest.mark.exhaustive
def test_trials_may_have_one_iteration_or_no_last_one(check):
    answer = check("right", "--format", "json", max_iter=1)
    found = json.loads(answer.out)
    assert (answer.code, len(found["seconds"])) == (0, 1)
    assert found["comparisons"]["restored"]["text"] == "a trial has one iteration"
    answer = check("own_loop", "--format", "json", max_iter=None)
    assert {one["verdict"] for one in comparisons(answer).values()} == {"equal"}, answer.out


@pytest.mark.exhaustive
def test_a_trial_on_two_workers_is_checked_on_two(check):
    answer = check("RightTrainer", "--format", "json", resources={"workers_per_trial": 2})
    assert {one["verdict"] for one in comparisons(answer).values()} == {"equal"}, answer.out


@pytest.mark.exhaustive
def test_a_python_script_is_compared_as_a_function_is(check, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT.format("right"))
    answer = check(None, "--format", "json", program="script.py")
    verdicts = {name: one["verdict"] for name, one in comparisons(answer).items()}
    assert (answer.code, verdicts) == (0, {"repeated": "equal", "restored": "equal", "warm worker": "skipped"})
    (tmp_path / "script.py").write_text(SCRIPT.format("forgets_optimizer"))
    answer = check(None, "--format", "json", program="script.py")
    assert answer.code == 1
    assert named(comparisons(answer)["restored"]) == {("optimizer", "momentum_buffer of SGD", 2)}


@pytest.mark.exhaustive
def test_a_script_in_another_language_is_compared_by_its_metrics_and_checkpoints(check, tmp_path):
    (tmp_path / "count.sh").write_text(COUNTER)
    script = {"program": "count.sh", "command": ["sh", "${program}"]}
    answer = check(None, **script)
    assert (answer.code, answer.out.count("equal to the bit")) == (0, 2)
    assert "warm worker  not compared: a script has a process of its own" in answer.out
    assert "lane         no: a script has a process of its own" in answer.out
    answer = check(None, **{**script, "command": ["sh", "${program}", "nothing"]})
    assert answer.code == 0
    assert "not compared: the script saves no checkpoint: each promotion starts from zero" in answer.out
    answer = check(None, **{**script, "command": ["sh", "${program}", "forget"]})
    assert answer.code == 1
    assert "metric: loss at iteration 2: 6.0 uninterrupted, 3.0 restored; that of iteration 1 again" in answer.out
    assert "fix: load trial.checkpoint before the loop" in answer.out


@pytest.mark.exhaustive
def test_what_is_wrong_is_told_with_what_to_do(check):
    answer = check("careless")
    lines = [line.strip() for line in answer.out.splitlines()]
    assert answer.code == 1
    assert (
        "optimizer: momentum_buffer of SGD at iteration 2: there uninterrupted, - restored; no state was loaded"
        in lines
    )
    assert "fix: save the optimizer's state_dict() in the checkpoint, and load it before the loop" in lines
    assert "warm worker  DIFFERS: trial 1 differs in a process that has run trial 0 before" in lines
    assert any(line.startswith("learning rate: lr of SGD, group 0 at iteration 1: 0.00") for line in lines)
    assert any(line.startswith("module state: train.CONFIG: {'momentum': 0.9, 'width': 8} alone, ") for line in lines)
    assert lines[-1] == "2 problems; see docs/trainables.md"
    assert "running trial 0 again, in a fresh process" in answer.err


@pytest.mark.exhaustive
def test_a_first_trial_that_fails_is_the_error(check, capsys):
    check("right", "--help")
    assert main(["check", "sweep.yaml", "--set", "trainable=train:fails"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "sweep.yaml:1: trainable: trial 0 failed: ValueError: not today\nTraceback" in err


@pytest.mark.exhaustive
def test_a_trainable_that_cannot_be_imported_is_the_error(check):
    answer = check("nothing_like_it")
    assert answer.code == 1
    assert "nothing_like_it" in answer.err


def test_what_trains_nothing_is_refused(check, tmp_path):
    answer = check(None)
    assert (answer.code, "trainable: is required" in answer.err) == (1, True)


def test_a_plan_names_the_command(check, tmp_path, capsys):
    write_sweep(tmp_path / "sweep.yaml")
    for arguments in ("sweep.yaml", "sweep.yaml --set run_cap=3"):
        assert f"check        hpsearch check {arguments} tries" in call(capsys, "plan", *arguments.split()).out
