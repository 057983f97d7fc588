"""`--backend simulated` from the command line."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

import hpsearch
from tests.hpsearch.support.command_line import ROOT, begin, wait_for
from tests.run_parts import left_behind

TABLE = {"table": "c.csv", "iteration": "epoch", "parameters": {"x": "x"}, "metrics": {"loss": "loss"}, "seconds": 60}

SWEEP: dict[str, Any] = {
    "trainable": "table.yaml",
    "metric": {"name": "loss", "goal": "minimize"},
    "method": "random",
    "parameters": {"x": {"min": 0.0, "max": 1.0}},
    "early_terminate": {"type": "successive_halving", "max_iter": 9},
    "observers": [],
}


@pytest.fixture
def table(here: Path) -> Path:
    lines = [{"x": x / 10, "epoch": epoch, "loss": x + 1 / epoch} for x in range(11) for epoch in range(1, 10)]
    pd.DataFrame(lines).to_csv(here / "c.csv", index=False)
    (here / "table.yaml").write_text(yaml.safe_dump(TABLE))
    (here / "t.yaml").write_text(yaml.safe_dump(SWEEP))
    return here


def test_a_table_is_played_back(table, hpsearch_command):
    answer = hpsearch_command("run", "t.yaml", "--backend", "simulated", "--workers", 3)
    assert answer.code == 0
    assert "best:        trial" in answer.out
    study = hpsearch.load("runs/t-1")
    assert [row.value for row in study.trials if row.iterations == 9] == [
        pytest.approx(round(row.params["x"] * 10) + 1 / 9) for row in study.trials if row.iterations == 9
    ]
    assert "in workers" in hpsearch_command("status", "runs/t-1").out


def test_a_stopped_one_goes_on_from_anywhere(table, hpsearch_command, monkeypatch, tmp_path_factory):
    limited = ("--set", "limits.max_time=200")
    assert hpsearch_command("run", "t.yaml", "--backend", "simulated", "--workers", 1, *limited).code == 3
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    study = table / "runs" / "t-1"
    resumed = hpsearch_command("resume", study, "--backend", "simulated", "--workers", 2, "--set", "limits.max_time=1d")
    assert resumed.code == 0
    assert hpsearch.load(study).state == "finished"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("run t.yaml --backend simulated", "needs a number of workers, got none: --workers 4"),
        ("run t.yaml --backend inline", "table.yaml is a table of what was recorded.* run it with --backend simulated"),
        ("run t.yaml --workers 1", "table.yaml is a table of what was recorded.* but the backend is ray"),
        ("run sweep.yaml --backend simulated --workers 1", "the simulated backend trains nothing"),
        (
            "run t.yaml --backend simulated --workers 1 --set metric.name=los",
            r"the table has no metric los; did you mean loss\?",
        ),
        (
            "run t.yaml --backend simulated --workers 1 --set parameters.y.value=3",
            "the table must have a column for each parameter of the sweep, but has none for y",
        ),
        ("run t.yaml --backend simulated --workers 1 --set trainable=no.yaml", "no.yaml: must be .* it doesn't exist"),
        ("run t.yaml --backend simulated --workers 1 --set trainable=table.yaml#a", "holds one task"),
    ],
)
def test_what_does_not_fit_is_one_message_and_leaves_no_study(table, hpsearch_command, words, expected):
    answer = hpsearch_command(*words.split())
    assert answer.code == 1
    assert re.search(expected, answer.err, re.DOTALL), answer.err
    assert not (table / "runs").exists()


def test_the_config_runs(here, hpsearch_command):
    sweep = ROOT / "configs" / "simulated.yaml"
    assert hpsearch_command("run", sweep, "--backend", "simulated", "--dir", "s").code == 0
    assert hpsearch.load("s").best_value > 0.95


@pytest.mark.exhaustive
def test_methods_are_compared_over_a_suite(here, hpsearch_command):
    suite = ROOT / "configs" / "benchmarks" / "digits.yaml"
    command = ("benchmark", suite, "--methods", "random,asha", "--seeds", 2, "--workers", "2,4", "--dir", "b")
    answer = hpsearch_command(*command, "--jobs", 1)
    assert answer.code == 0
    lines = answer.out.splitlines()
    assert lines[0] == "digits: 1 task, 2 seeds; means over tasks ± their standard error"
    assert [line.split()[:3] for line in lines[3:7]] == [
        [method, str(workers), "2"] for workers in (2, 4) for method in ("random", "asha")
    ]
    assert {path.name for path in (here / "b").iterdir()} == {
        "rows.csv",
        "runs.jsonl",
        "table.md",
        *(f"{kind}-{workers}.svg" for kind in ("hits", "regret") for workers in (2, 4)),
    }
    for kind in ("hits", "regret"):
        svg = (here / "b" / f"{kind}-4.svg").read_text(encoding="utf-8")
        assert all(f">{words}<" in svg for words in ("random", "asha"))
        assert svg.count('stroke-width="2" stroke-dasharray') == 2  # the line of one, and its key
    before = (here / "b" / "runs.jsonl").read_text()
    again = hpsearch_command(*command)
    assert again.out == answer.out
    assert "8 of 8 runs are there already" in again.err
    assert (here / "b" / "runs.jsonl").read_text() == before


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_of_a_benchmark_that_is_killed_no_process_is_left(here, number):
    suite, name = ROOT / "configs" / "benchmarks" / "digits.yaml", "HPSEARCH_TEST_BENCHMARK"
    process = begin("benchmark", suite, "--seeds", 500, "--jobs", 2, "--dir", "b", cwd=here, **{name: str(here)})
    wait_for(lambda: (here / "b" / "runs.jsonl").is_file() and (here / "b" / "runs.jsonl").read_text() != "", process)
    assert len(left_behind(f"{name}={here}")) > 2
    process.send_signal(number)
    process.communicate()
    wait_for(lambda: not left_behind(f"{name}={here}"))


@pytest.mark.exhaustive
def test_quick_is_three_seeds_on_the_first_number_of_workers(here, hpsearch_command):
    suite = ROOT / "configs" / "benchmarks" / "digits.yaml"
    answer = hpsearch_command("benchmark", suite, "--methods", "random", "--workers", "2,4", "--quick", "--jobs", 1)
    assert [line.split()[:3] for line in answer.out.splitlines()[3:-2]] == [["random", "2", "3"]]
    assert (here / "runs" / "benchmark-digits" / "table.md").is_file()


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        ("benchmark no.yaml", 1, "no.yaml: must be .* it doesn't exist"),
        ("benchmark SUITE --methods ashe", 1, r"there is no method ashe; did you mean asha\?"),
        ("benchmark SUITE --workers 1,x", 2, "must be a whole number, at least 1, got 'x'"),
    ],
)
def test_mistakes_of_a_benchmark(here, hpsearch_command, words, code, expected):
    suite = str(ROOT / "configs" / "benchmarks" / "digits.yaml")
    answer = hpsearch_command(*(suite if word == "SUITE" else word for word in words.split()))
    assert answer.code == code
    assert re.search(expected, answer.err, re.DOTALL), answer.err


@pytest.mark.parametrize("named", ["table.yaml", "a/b.yml#3945", "runs #2/table.yaml", "runs #2/table.yaml#a task"])
def test_a_sweep_file_may_name_a_table_and_a_task_in_it(table, named):
    (table / "t.yaml").write_text(yaml.safe_dump({**SWEEP, "trainable": named}))
    assert hpsearch.load_sweep(table / "t.yaml").trainable == named


def test_a_search_over_strategies_ends_with_a_table_by_strategy(here, hpsearch_command):
    given = {"hogwild": 0.5, "pipeline": 0.25, "allreduce": 0.75}
    pd.DataFrame(
        [{"how": how, "epoch": epoch, "loss": loss / epoch} for how, loss in given.items() for epoch in (1, 2)]
    ).to_csv(here / "c.csv", index=False)
    (here / "table.yaml").write_text(yaml.safe_dump({**TABLE, "parameters": {"parallel.strategy": "how"}}))
    strategy = {"parallel": {"parameters": {"strategy": {"values": [*given]}}}}
    sweep = {**SWEEP, "method": "grid", "parameters": strategy, "early_terminate": None, "max_iter": 2}
    (here / "t.yaml").write_text(yaml.safe_dump({**sweep, "resources": {"workers_per_trial": 2}}))
    note = (
        "parallel.strategy hogwild: workers don't wait for each other, so the same trial gives other numbers each time"
    )
    assert f"             {note}" in hpsearch_command("plan", "t.yaml").out
    answer = hpsearch_command("run", "t.yaml", "--backend", "simulated", "--workers", 4)
    assert answer.code == 0, answer
    assert note in answer.out
    _, trials, strategies, _ = re.split(
        r"^ *(?=trial |parallel\.strategy   trials|best: )", answer.out, flags=re.MULTILINE
    )
    assert [line.split()[-1] for line in trials.splitlines()[2:5]] == ["2", "yes", "2"]  # the width, but for hogwild
    lines = [line.split() for line in strategies.splitlines()[2:5]]
    assert [line[:4] for line in lines] == [
        ["pipeline", "1", "0.125", "0.125"],
        ["hogwild", "1", "0.25", "0.25"],
        ["allreduce", "1", "0.375", "0.375"],
    ]
    assert lines[1][4] == "yes"
    assert [row.asynchronous for row in hpsearch.load("runs/t-1").trials] == [True, False, False]
    assert "repeats     never" in hpsearch_command("trial", "runs/t-1", "0").out
    assert (
        hpsearch_command("trials", "runs/t-1", "--where", "asynchronous", "--columns", "trial").out.split()[-1] == "0"
    )


def test_a_file_without_a_method_has_the_one_that_auto_chose_and_keeps_it(table, hpsearch_command):
    keys = {key: value for key, value in SWEEP.items() if key not in ("method", "early_terminate")}
    (table / "t.yaml").write_text(yaml.safe_dump({**keys, "max_iter": 9, "run_cap": 30}))
    reason = "as trials of 9 iterations can be compared early, at rungs of asha"
    assert hpsearch_command("plan", "t.yaml").out.startswith(f"t: bohb (chosen by auto, {reason}), ASHA from ")
    answer = hpsearch_command("run", "t.yaml", "--backend", "simulated", "--workers", 2)
    assert answer.code == 0
    assert f"method auto is bohb, {reason}" in answer.out + answer.err
    resumed = hpsearch_command("resume", "runs/t-1", "--backend", "simulated", "--set", "run_cap=40")
    assert resumed.code == 0
    study = hpsearch.load("runs/t-1")
    assert len(study.trials) == 40
    assert study.sweep.method == "bohb"
    assert {row.origin for row in study.trials} >= {"random", "bohb"}
