"""kill -9 a sweep whose searcher has its own process, resume: the table is the same, and nothing is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import hpsearch
from hpsearch.events import Asked, Started
from hpsearch.tables.trials import rows_to_csv
from tests.hpsearch.support.command_line import ROOT, environment
from tests.hpsearch.support.conditions import gone, wait_until
from tests.hpsearch.support.scripted import events_of

SEARCHES = [
    ("inline", "structures", (4,)),
    pytest.param("inline", "structures", (1, 4), marks=pytest.mark.exhaustive),
    pytest.param("inline", "tpe", (1, 4), marks=pytest.mark.exhaustive),
    pytest.param("inline", "evolution", (1, 4), marks=pytest.mark.exhaustive),
    pytest.param("inline", "spectral", (1, 4), marks=pytest.mark.exhaustive),
    pytest.param("ray", "tpe", (1, 4), marks=[pytest.mark.ray, pytest.mark.slow, pytest.mark.exhaustive]),
]
"""Backends, methods, and the numbers of suggestions that are under way when it is killed, one after the other."""


def start(study: Path, backend: str, method: str = "tpe") -> subprocess.Popen[bytes]:
    """Start a run whose temporary files are its own."""
    temporary = study.parent / "tmp"
    temporary.mkdir(exist_ok=True)
    env = {**os.environ, **environment()}
    if backend == "inline":  # Ray keeps its own there, in sockets whose paths must be short
        env["TMPDIR"] = str(temporary)
    command = [sys.executable, "-m", "tests.hpsearch.support.killed_search", str(study), backend, method]
    with (study.parent / "said.txt").open("ab") as said:
        return subprocess.Popen(command, cwd=ROOT, env=env, stdout=said, stderr=said)


def finish(study: Path, backend: str, method: str = "tpe") -> str:
    process = start(study, backend, method)
    assert process.wait() == 0, (study.parent / "said.txt").read_text()
    loaded = hpsearch.load(study)
    assert loaded.state == "finished"
    assert list((study.parent / "tmp").iterdir()) == []
    return rows_to_csv(loaded.trials, loaded.names)


def searchers_below(pid: int) -> list[int]:
    children = psutil.Process(pid).children(recursive=True)
    return [child.pid for child in children if "searcher_process" in " ".join(child.cmdline())]


@pytest.mark.exhaustive  # cut at any event, in one process: test_resumed_searches.py
@pytest.mark.parametrize(("backend", "method", "kills"), SEARCHES)
def test_killed_while_it_searches_a_sweep_is_resumed_to_the_same_table(tmp_path, backend, method, kills):
    whole = tmp_path / "whole" / "study"
    whole.parent.mkdir()
    expected = finish(whole, backend, method)
    assert {row.origin for row in hpsearch.load(whole).trials} == {
        "random",
        "tpe" if method == "structures" else method,
    }
    study = tmp_path / "killed" / "study"
    study.parent.mkdir()
    known: list[tuple[int, object]] = []
    for count in kills:
        process = start(study, backend, method)
        wait_until(lambda: study.exists() and asked(study) >= count)  # noqa: B023 (called at once)
        left = searchers_below(process.pid)
        process.kill()
        process.wait()
        wait_until(lambda: all(map(gone, left)))  # noqa: B023
        before = params_by_trial(study)
        assert before[: len(known)] == known
        known = before
    assert finish(study, backend, method) == expected
    assert params_by_trial(study)[: len(known)] == known
    budget = [hpsearch.load(path).total for path in (whole, study)]
    assert budget[0] == budget[1]


@pytest.mark.exhaustive
def test_a_population_that_is_killed_is_resumed_to_the_same_forks(tmp_path):
    """Elsewhere it is cut at each event, in one process: `test_forks.py`."""
    whole, study = tmp_path / "whole" / "study", tmp_path / "killed" / "study"
    for path in (whole, study):
        path.parent.mkdir()
    expected = finish(whole, "inline", "pbt")
    assert "parent" in expected
    for count in (5, 7):
        process = start(study, "inline", "pbt")
        wait_until(lambda: study.exists() and len(params_by_trial(study)) >= count)  # noqa: B023 (called at once)
        process.kill()
        process.wait()
    assert finish(study, "inline", "pbt") == expected
    assert hpsearch.load(study).iterations == hpsearch.load(whole).iterations


def asked(study: Path) -> int:
    return sum(isinstance(event, Asked) for event in events_of(study))


def params_by_trial(study: Path) -> list[tuple[int, object]]:
    events = events_of(study)
    return [(e.new.number, dict(e.new.params)) for e in events if isinstance(e, Started) and e.new is not None]


def test_the_process_of_a_searcher_ends_with_the_one_that_asks_it(tmp_path):
    """Killed by SIGKILL, a sweep's process can't end the searcher's, which has to see for itself."""
    program = (
        "from hpsearch.run.searcher_process import ProcessCalls\n"
        "from tests.hpsearch.support.steady import sweep_over\n"
        "calls = ProcessCalls(sweep_over('tpe', early_terminate=None, max_iter=1, run_cap=9))\n"
        "calls.ask('suggest', 0)\n"
        "calls.answer()\n"
        "print(calls._process.pid, flush=True)\n"
        "import signal; signal.pause()\n"
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, **environment(), "TMPDIR": str(tmp_path)}, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        searcher = int(process.stdout.readline())
        assert not gone(searcher)
        process.kill()
    wait_until(lambda: gone(searcher))
    assert list(tmp_path.iterdir()) == []
