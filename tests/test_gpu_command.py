"""`make gpu` without a GPU: what it would run, what it says of that, and what it runs in place of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.gpu.__main__ import run
from tests.gpu.benchmarks import measure
from tests.gpu.parts import (
    PARTS,
    STAND_IN_PARTS,
    Figure,
    Part,
    Result,
    deadlines,
    figures_in,
    table,
    went_well,
    without_gpu,
)
from tests.run_parts import Counts

ROOT = Path(__file__).parents[1]
TESTS = Part("comm", ("-m", "pytest"), 100)
SPEED = Part("benchmarks", ("-m", "tests.gpu.benchmarks"), 50, tests=False)


@pytest.mark.parametrize(
    ("torch", "cuda", "gpus", "why"),
    [
        ("2.13.0+cpu", None, 0, "/bin/python has torch 2.13.0+cpu, which is built for CPUs"),
        ("2.13.0", "13.0", 0, "sees no GPU with torch 2.13.0: look at nvidia-smi and CUDA_VISIBLE_DEVICES"),
    ],
)
def test_the_first_line_says_that_stand_ins_run_and_why(torch, cuda, gpus, why):
    sentence = without_gpu("/bin/python", torch, cuda, gpus)
    assert sentence is not None
    assert sentence.startswith("STAND-IN, no GPU: ")
    assert why in sentence
    assert "\n" not in sentence


def test_with_a_gpu_no_stand_in_runs():
    assert without_gpu("/bin/python", "2.13.0", "13.0", 1) is None


def test_a_python_without_torch_is_refused_in_one_sentence():
    ended = subprocess.run(
        [sys.executable, "-S", "-m", "tests.gpu"], cwd=ROOT, env={}, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("make gpu needs a Python with torch")
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.exhaustive
def test_without_a_gpu_the_command_runs_its_stand_ins_and_ends_with_the_table():
    ended = subprocess.run(
        [sys.executable, "-m", "tests.gpu"],
        cwd=ROOT,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-2000:]
    lines = ended.stdout[ended.stdout.rindex("STAND-IN, no GPU") :].splitlines()
    assert [line.split("  ")[0] for line in lines[2:]] == [part.name for part in STAND_IN_PARTS]


def test_all_parts_together_take_less_than_ten_minutes():
    assert deadlines(PARTS)[-1] < 600
    assert deadlines(STAND_IN_PARTS)[-1] < 600
    assert all((ROOT / word).exists() for part in STAND_IN_PARTS for word in part.words if word.startswith("tests/"))
    assert deadlines([TESTS, SPEED]) == [100, 150]


def test_every_test_that_needs_a_gpu_belongs_to_one_part():
    places = [word for part in PARTS for word in part.words if word.startswith("tests/")]
    marked = [path for path in ROOT.glob("tests/**/test_*.py") if "mark.gpu" in path.read_text()]
    marked += [ROOT / "tests/trainers/lanes/test_rounding.py"]
    for path in marked:
        if path.name != Path(__file__).name:
            assert any(str(path.relative_to(ROOT)).startswith(place) for place in places), path


def test_the_table_has_a_row_for_each_part_and_figure_and_names_what_failed():
    results = [
        Result(TESTS, "ok", Counts(12, {"tests/comm/test_a.py::test_b": "AssertionError"}, 3), seconds=41.2),
        Result(SPEED, "ok", figures=[Figure("an epoch", 12.345678, "ms")], seconds=7),
    ]
    assert table(results, "H100; torch 2.13.0").splitlines() == [
        "H100; torch 2.13.0",
        "what        passed  failed  skipped  seconds  ended",
        "comm            12       1        3       41  ok",
        "benchmarks                                 7  ok",
        "  an epoch                             12.35  ms",
        "FAILED tests/comm/test_a.py::test_b - AssertionError",
    ]


@pytest.mark.parametrize(
    ("result", "well"),
    [
        (Result(TESTS, "ok", Counts(1)), True),
        (Result(TESTS, "ok", Counts(0, {}, 5)), False),
        (Result(TESTS, "ok", Counts(5, {"a": "b"})), False),
        (Result(TESTS, "out of time", Counts(5)), False),
        (Result(TESTS, "not run: ray isn't installed"), False),
        (Result(SPEED, "ok"), True),
    ],
)
def test_all_went_well_where_all_ran_and_nothing_failed(result, well):
    assert went_well([Result(SPEED, "ok"), result]) == well


def test_a_part_is_run_and_its_tests_are_counted(tmp_path):
    file = tmp_path / "test_some.py"
    file.write_text("def test_well(): pass\ndef test_ill(): assert 0\n")
    result = run(Part("some", ("-m", "pytest", "-q", str(file)), 60), 300)
    assert result.ended == "ok"
    assert result.counts is not None
    assert (result.counts.passed, len(result.counts.failed)) == (1, 1)


def test_a_part_that_takes_too_long_is_ended_and_what_it_printed_is_read():
    program = "import time; print('figure\\tfast\\t2.5\\tms', flush=True); time.sleep(1000)"
    result = run(Part("slow", ("-c", program), 1, tests=False), 3.0)
    assert (result.ended, result.figures) == ("out of time", [Figure("fast", 2.5, "ms")])


def test_a_part_says_what_it_lacks_and_how_it_ended():
    lacking = run(Part("some", ("-c", "pass"), 1, ("no_such_module",), tests=False), 60)
    assert lacking.ended == "not run: no_such_module isn't installed"
    assert run(Part("some", ("-c", "raise SystemExit(7)"), 1, tests=False), 60).ended == "exit code 7"


def test_figures_are_read_among_other_lines():
    assert figures_in("hello\nfigure\tan epoch\t1e3\tms\nbye\n") == [Figure("an epoch", 1000.0, "ms")]


@pytest.mark.exhaustive
def test_the_benchmarks_measure_on_any_device():
    figures = list(measure(torch.device("cpu"), rounds=1, trials=2, epochs=1))
    assert len(figures) == 8
    assert all(figure.value > 0 for figure in figures)
