"""A Ray that doesn't start, and what is looked at before it is started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.hpsearch.support.command_line import PATIENCE, environment, write_sweep

NO_RAY = """
import sys
import ray

def init(**options):
    raise {error}

ray.init = init
from hpsearch.objective import Metric, Objective
from hpsearch.cli import main
sys.exit(main(["run", "sweep.yaml", "--dir", "study"]))
"""


@pytest.mark.exhaustive
@pytest.mark.ray
@pytest.mark.parametrize(
    ("error", "told"),
    [
        ("SystemExit(15)", "SystemExit: 15"),
        ("OSError(28, 'No space left on device', '/tmp/ray')", "OSError: [Errno 28] No space left on device"),
        ("ray.exceptions.RaySystemError('no GCS\\n  a\\n  b')", "RaySystemError: System error: no GCS"),
        ("KeyError('node_ip')", "KeyError: 'node_ip'"),
    ],
)
def test_whatever_rays_start_raises_is_one_message_with_the_way_on(here, hpsearch_command, error, told):
    done = subprocess.run(
        [sys.executable, "-c", NO_RAY.format(error=error)],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"hpsearch: Ray can't be started on this machine: {told}")
    assert len(done.stderr.splitlines()) == 1
    assert "`--backend inline` (backend='inline') runs trials one at a time in this process" in done.stderr
    assert "`hpsearch resume` continues" in done.stderr
    assert hpsearch_command("resume", "study", "--backend", "inline").code == 0


@pytest.mark.ray
def test_a_ray_that_ends_this_process_below_python_is_one_message_with_the_way_on(here, hpsearch_command):
    """As Ray's native code does where another of its processes died; the guardian writes it."""
    code = NO_RAY.replace("raise {error}", "import os; os.abort()")
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    assert done.returncode == -signal.SIGABRT
    assert done.stderr.startswith("hpsearch: this process ended while it started Ray: ")
    assert "`hpsearch resume` continues" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert hpsearch_command("resume", "study", "--backend", "inline").code == 0


@pytest.mark.ray
@pytest.mark.parametrize(
    ("error", "advice"),
    [
        ("TimeoutError('it took more than 180 seconds')", "The machine may be too busy, or slow"),
        ("Exception('The current node timed out during startup. This could happen')", "The machine may be too busy"),
        ("OSError(28, 'No space left on device', '/tmp/ray')", "It needs room in "),
    ],
)
@pytest.mark.exhaustive
def test_the_advice_is_for_what_went_wrong(here, error, advice):
    done = subprocess.run(
        [sys.executable, "-c", NO_RAY.format(error=error)],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert f". {advice}" in done.stderr
    assert ("room" in done.stderr) == ("room" in advice)


@pytest.fixture
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """See that Ray isn't even reached for."""
    pytest.importorskip("ray")

    def init(*_: object, **__: object) -> None:
        raise AssertionError("Ray was started")

    monkeypatch.setattr("ray.init", init)
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


BACKENDS = pytest.mark.parametrize("backend", ["ray", "inline"])


@pytest.mark.parametrize("command", [None, ["python3", "-u", "${program}"], ["sh", "-c", "python3 -m ${program}"]])
@BACKENDS
def test_a_program_that_isnt_there_is_said_with_its_line_before_ray_starts(
    here, hpsearch_command, no_ray, backend, command
):
    (here / "train.py").touch()
    write_sweep(here / "sweep.yaml", None, program="trian.py", **({"command": command} if command else {}))
    answer = hpsearch_command("run", "sweep.yaml", "--backend", backend, "--dir", "study")
    assert answer.code == 1
    (error,) = [line for line in answer.err.splitlines() if line.startswith("hpsearch: ")]
    assert error.startswith("hpsearch: sweep.yaml:11: program: `program` must be a file, but there is no 'trian.py'")
    assert "(did you mean 'train.py'?)" in answer.err
    assert "continue with: hpsearch resume study" in answer.err


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["pyhton", "${program}"], "'pyhton' isn't there (on PATH)"),
        (["${env}", "pyhton", "${program}"], "'pyhton' isn't there (on PATH)"),
        (["./run.sh", "${args}"], "'./run.sh' may not be executed: chmod +x ./run.sh"),
        (["${program}"], "'train.py' isn't there (on PATH)"),
        (["bin/run", "${program}"], "'bin/run' isn't there (in "),
    ],
)
@BACKENDS
def test_a_command_that_cant_run_is_said_before_ray_starts(here, hpsearch_command, no_ray, backend, command, told):
    (here / "train.py").touch()
    (here / "run.sh").touch(mode=0o644)
    write_sweep(here / "sweep.yaml", None, program="train.py", command=command)
    answer = hpsearch_command("run", "sweep.yaml", "--backend", backend)
    assert answer.code == 1
    assert ": command: `command` must begin with a program that runs, but " in answer.err
    assert told in answer.err


@pytest.mark.parametrize(
    "command",
    [["${env}", "A=1", "sh", "${program}"], ["${env}", "-i", "sh"], ["${interpreter}"], ["./run.sh"], ["${args}"]],
)
def test_a_command_that_may_run_isnt_refused_beforehand(here, command):
    from hpsearch.objective import Metric, Objective
    from hpsearch.worker.job import CommandLine, Job
    from hpsearch.worker.preflight import check_trainable

    (here / "run.sh").touch(mode=0o755)
    line = CommandLine(None, tuple(command), os.fspath(here))
    check_trainable(Job("study", "test", line, (), Objective(Metric("loss")), None, 1))


@BACKENDS
def test_a_module_that_isnt_there_is_said_before_ray_starts_and_none_is_imported(
    here, hpsearch_command, no_ray, backend
):
    (here / "my_training.py").write_text("raise AssertionError('imported')")
    sweep = write_sweep(here / "sweep.yaml")
    sweep.write_text(sweep.read_text().replace("tests.hpsearch.support.cli_trainables:steps", "my_trianing:train"))
    answer = hpsearch_command("run", "sweep.yaml", "--backend", backend)
    assert answer.code == 1
    assert "names the module 'my_trianing', which isn't there (did you mean 'my_training'?)" in answer.err
    assert str(here) not in sys.path
