"""A script of the user's that is asked to end while it searches ends, and goes on with nothing."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

import hpsearch
from tests.hpsearch.support.command_line import PATIENCE, environment, wait_for

SCRIPT = """
import atexit, pathlib, sys, time
import hpsearch

HERE = pathlib.Path(__file__).parent

def train(trial):
    for iteration in trial.iterations():
        if trial.number == 1:
            name = trial.directory.parents[2].name
            (HERE / f"reached-{name}").touch()
            while not (HERE / f"open-{name}").exists():
                time.sleep(0.002)
        trial.report({"loss": trial.params["x"]}, checkpoint={"at": iteration})

def search(directory):
    study = hpsearch.search(
        train, parameters={"x": hpsearch.Uniform(0.0, 1.0)}, metric="loss", max_iter=2,
        run_cap=3, resources={"workers": 1}, backend=sys.argv[1], directory=HERE / directory, observers=[],
    )
    print("went on with", study.directory.name, flush=True)

if __name__ == "__main__":
    atexit.register(lambda: print("at exit", flush=True))
    try:
        for directory in sys.argv[2:]:
            search(directory)
    except KeyboardInterrupt:
        print("caught", flush=True)
        raise
    finally:
        print("finally", flush=True)
"""


@pytest.fixture(autouse=True)
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


def hears_all() -> None:
    """Let a process hear what its parent may ignore, as one that runs without a terminal does."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


@contextmanager
def begun(script: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Run the script in a process that hears Ctrl-C, as one in a terminal does."""
    with subprocess.Popen(
        [sys.executable, script, *words],
        env=environment(PYTHONUNBUFFERED="1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=hears_all,
    ) as process:
        yield process
        process.kill()


def said(out: str) -> Sequence[str]:
    return [line for line in out.splitlines() if line in ("caught", "finally", "at exit") or line.startswith("went on")]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("number", "code", "ends"),
    [
        (signal.SIGINT, -signal.SIGINT, ["caught", "finally", "at exit"]),
        pytest.param(signal.SIGTERM, 143, ["finally", "at exit"], marks=pytest.mark.exhaustive),
        pytest.param(signal.SIGHUP, 129, ["finally", "at exit"], marks=pytest.mark.exhaustive),
    ],
)
def test_it_ends_as_by_the_signal_once_the_sweep_is_wound_down(script, tmp_path, number, code, ends):
    with begun(script, "inline", "a", "b") as process:
        wait_for((tmp_path / "reached-a").exists, process)
        process.send_signal(number)
        (tmp_path / "open-a").touch()
        out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, said(out)) == (code, ends)
    assert f"the study is kept in {tmp_path / 'a'}; continue with the same call of search" in err
    assert not (tmp_path / "b").exists()
    assert hpsearch.load(tmp_path / "a").state == "interrupted"
    with begun(script, "inline", "a") as process:
        out, _ = process.communicate(timeout=PATIENCE)
    assert (process.returncode, said(out)) == (0, ["went on with a", "finally", "at exit"])


@pytest.mark.exhaustive
def test_two_end_it_at_once_also_in_the_second_search(script, tmp_path):
    """The gate stays closed, so that no trial can get to its next report."""
    (tmp_path / "open-a").touch()
    with begun(script, "inline", "a", "b") as process:
        wait_for((tmp_path / "reached-b").exists, process)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, said(out)) == (143, ["went on with a", "finally", "at exit"])
    assert f"the study is kept in {tmp_path / 'b'};" in err
    left = hpsearch.load(tmp_path / "b")
    assert (hpsearch.load(tmp_path / "a").state, left.state, left.trials[1].iterations) == (
        "finished",
        "interrupted",
        0,
    )


@pytest.mark.ray
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 1), (signal.SIGTERM, 143)])
@pytest.mark.exhaustive
def test_on_ray_too_while_it_starts(script, tmp_path, number, code):
    """Ray makes the exit code 1 of whatever exception nobody catches."""
    with begun(script, "ray", "a", "b") as process:
        known = psutil.Process(process.pid)
        wait_for(lambda: any("gcs_server" in child.name() for child in known.children(recursive=True)), process)
        process.send_signal(number)
        (tmp_path / "open-a").touch()
        out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, said(out)[-2:]) == (code, ["finally", "at exit"])
    assert "went on" not in out
    assert "the study is kept in" in err
    assert not (tmp_path / "b").exists()
    assert hpsearch.load(tmp_path / "a").state == "interrupted"
