"""How `hpsearch run` on a local Ray ends when Ray dies, when signals come at any moment, and when it is killed."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psutil
import pytest

import hpsearch
from hpsearch.backends.ray.access import is_open
from hpsearch.events import Failed, Lost, Started
from tests.hpsearch.support.command_line import PATIENCE, PROGRAM, environment, wait_for
from tests.hpsearch.support.conditions import living_below
from tests.hpsearch.support.local_ray import SWEEP, TRAIN, Undisturbed, finished, hpsearch_command
from tests.hpsearch.support.scripted import events_of

pytestmark = pytest.mark.ray

RUN = ("run", "sweep.yaml", "--dir", "study", "--workers")
RESUME = ("resume", "study", "--workers")

MARK = "HPSEARCH_TEST_RUN"

# Tests under `nohup` ignore the hangup, and so would what they start.
ON_TERMINAL = ("env", "--default-signal=HUP", "setsid", "--ctty")

FORKS = """
import multiprocessing
import os
import time

import torch


def note():
    with open("pids.txt", "a") as pids:
        pids.write(f"{os.getpid()}\\n")
    time.sleep(1000)


class Sleepy(torch.utils.data.Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        note()


def train(trial):
    if os.fork() == 0:
        note()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            note()
        os._exit(0)
    for way in ("fork", "spawn", "forkserver"):
        multiprocessing.get_context(way).Process(target=note).start()
    for _ in torch.utils.data.DataLoader(Sleepy(), num_workers=1):
        pass
"""

WAYS = 6

SCRIPT = """
import time

import hpsearch

trial = hpsearch.current_trial()
for epoch in trial.iterations():
    time.sleep(0.2)
    trial.report({"loss": trial.params["x"] / epoch}, checkpoint={"epoch": epoch})
"""


class Running:
    """A command that runs as the leader of a session of its own."""

    def __init__(self, process: subprocess.Popen[str], here: Path) -> None:
        self.process = process
        self.here = here

    @property
    def out(self) -> str:
        return (self.here / "out.txt").read_text()

    @property
    def err(self) -> str:
        return (self.here / "err.txt").read_text()

    def family(self, name: str) -> list[psutil.Process]:
        """Return the living processes below it whose names start with this."""
        return living_below(self.process.pid, name)

    def wait_for(self, condition: Callable[[], object]) -> None:
        wait_for(lambda: bool(condition()), self.process)

    def left(self) -> list[str]:
        """Return what is left of all that it started."""
        mark = os.fsencode(f"{MARK}={self.here}")
        names = []
        for process in psutil.process_iter():
            try:
                if mark in Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0"):
                    names.append(f"{process.pid} {process.name()}")
            except (OSError, psutil.NoSuchProcess):
                continue
        return names

    def has_ended(self, *codes: int) -> None:
        """See that it ends with one of these codes, without a traceback, and leaves no process."""
        with contextlib.suppress(subprocess.TimeoutExpired):  # then it has no code
            self.process.wait(timeout=PATIENCE)
        assert self.process.returncode in codes, (self.out, self.err)
        assert "Traceback" not in self.err
        wait_for(lambda: not self.left())


@contextmanager
def begun(here: Path, *words: str, terminal: int | None = None, sweep: str = SWEEP, **more: str) -> Iterator[Running]:
    (here / "train.py").exists() or (here / "train.py").write_text(TRAIN.replace("0.02", "0.2"))
    (here / "sweep.yaml").write_text(sweep)
    with (here / "out.txt").open("w") as out, (here / "err.txt").open("w") as err:
        process = subprocess.Popen(
            [*(ON_TERMINAL if terminal is not None else ()), PROGRAM, *words],
            cwd=here,
            env=environment(**{MARK: str(here)}, **more),
            stdin=subprocess.DEVNULL if terminal is None else terminal,
            stdout=out if terminal is None else terminal,
            stderr=err if terminal is None else terminal,
            text=True,
            start_new_session=terminal is None,
        )
    running = Running(process, here)
    try:
        yield running
    finally:
        process.kill()
        process.wait()
        wait_for(lambda: not running.left())


LOSSES = [
    ("raylet", signal.SIGKILL, "the raylet of this node has ended"),
    ("raylet", signal.SIGTERM, "the raylet of this node has ended"),
    ("gcs_server", signal.SIGKILL, "its GCS at"),
]


HELD = TRAIN.replace(
    "def train(trial):",
    """
def train(trial):
    with open("starts.txt", "a") as starts:
        starts.write(".")
        starts.flush()
        mine = starts.tell()
    while mine > int(open("may_start.txt").read()):
        time.sleep(0.02)""",
)
"""So many segments may start as a file says: a sweep would else come to its end before anything befalls it."""


def has_finished(study: Path, segments: int) -> bool:
    return finished(study) >= segments


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(540)
def test_a_ray_that_is_lost_in_mid_sweep_is_one_message_and_resume_gives_the_same_table(
    tmp_path, undisturbed: Undisturbed
):
    study, starts = tmp_path / "study", tmp_path / "starts.txt"
    (tmp_path / "train.py").write_text(HELD)
    for turn, (name, how, told) in enumerate(LOSSES):
        enough = finished(study) + 3
        begun_before = starts.stat().st_size if turn else 0
        (tmp_path / "may_start.txt").write_text(str(begun_before + 3))
        with begun(tmp_path, *(RESUME if turn else RUN), "2") as run:
            wait_for(partial(has_finished, study, enough), run.process)
            (victim,) = run.family(name)
            victim.send_signal(how)
            run.has_ended(1)
            assert run.err.startswith("hpsearch: Ray was lost: ")
            assert told in run.err
            assert "`hpsearch resume` continues" in run.err
            assert len(run.err.splitlines()) == 1
            assert "(raylet)" not in run.out
        assert finished(study) >= enough
    (tmp_path / "may_start.txt").write_text("1000000")
    hpsearch_command(tmp_path, *RESUME, "2")
    assert hpsearch_command(tmp_path, "trials", "study", "--format", "csv") == undisturbed.table


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", [pytest.param(signal.SIGTERM, marks=pytest.mark.exhaustive), signal.SIGINT])
def test_a_signal_while_ray_starts_ends_the_sweep_as_interrupted(tmp_path, number):
    with begun(tmp_path, *RUN, "1") as run:
        run.wait_for(lambda: run.family("gcs_server"))
        run.process.send_signal(number)
        run.has_ended(130)
        assert run.err == ""
        assert "interrupted; continue with: hpsearch resume study" in run.out
    assert finished(tmp_path / "study") == 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["gcs_server", "raylet"])
def test_a_ray_that_dies_while_it_starts_is_one_message_and_resume_goes_on(tmp_path, name):
    with begun(tmp_path, *RUN, "1") as run:
        run.wait_for(lambda: run.family(name))
        for process in run.family(name):
            process.kill()
        run.has_ended(1, -signal.SIGABRT)
        (told,) = [line for line in run.err.splitlines() if line.startswith("hpsearch: ")]
        assert f"its {name} was killed by SIGKILL" in told or "this process ended while it started Ray" in told
        assert "`hpsearch resume` continues" in told
    assert finished(tmp_path / "study") == 0


@pytest.mark.exhaustive
def test_a_local_ray_is_to_be_reached_from_this_machine_alone_and_with_the_users_token(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    with begun(tmp_path, *RUN, "1", HOME=str(home), RAY_AUTH_MODE="token") as run:
        run.wait_for(lambda: finished(tmp_path / "study") >= 1)
        addresses = {
            connection.laddr.ip.removeprefix("::ffff:")
            for process in psutil.Process(run.process.pid).children(recursive=True)
            for connection in process.net_connections("inet")
            if connection.status == psutil.CONN_LISTEN
        }
        assert addresses == {"127.0.0.1"}
        (gcs,) = run.family("gcs_server")
        (port,) = {
            connection.laddr.port
            for connection in gcs.net_connections("inet")
            if connection.status == psutil.CONN_LISTEN
        }
        assert is_open(f"127.0.0.1:{port}") is False
        assert stat.S_IMODE((home / ".ray" / "auth_token").stat().st_mode) == 0o600


@pytest.mark.exhaustive
def test_two_signals_while_ray_starts_end_it_at_once(tmp_path):
    with begun(tmp_path, *RUN, "1") as run:
        run.wait_for(lambda: run.family("gcs_server"))
        run.process.send_signal(signal.SIGINT)
        run.process.send_signal(signal.SIGTERM)
        run.has_ended(130)
        assert run.err == ""


@pytest.mark.exhaustive
def test_a_sigterm_to_the_whole_process_group_ends_the_sweep_as_interrupted(tmp_path):
    with begun(tmp_path, *RUN, "1") as run:
        run.wait_for(lambda: finished(tmp_path / "study") >= 1)
        os.killpg(run.process.pid, signal.SIGTERM)
        # The signal reaches Ray's processes as well: its native part may end this one before we can.
        run.has_ended(130, 1)
        if run.process.returncode == 130:
            assert run.err == ""
            assert "interrupted; continue with: hpsearch resume study" in run.out
    assert hpsearch.load(tmp_path / "study").state == "interrupted"


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("number", "target", "trainable"),
    [
        (signal.SIGUSR1, "process", "function"),
        (signal.SIGUSR2, "group", "script"),
        (signal.SIGUSR1, "all", "script"),
    ],
)
def test_a_warning_of_preemption_ends_the_sweep_at_the_next_reports_wherever_it_is_sent(
    tmp_path, number, target, trainable
):
    """Slurm sends it to the batch script's process, or to all processes of a job."""
    (tmp_path / "train.py").write_text(SCRIPT if trainable == "script" else TRAIN.replace("0.02", "0.2"))
    runs = "program: train.py" if trainable == "script" else "trainable: train:train"
    with begun(tmp_path, *RUN, "1", sweep=SWEEP.replace("trainable: train:train", runs)) as run:
        run.wait_for(lambda: finished(tmp_path / "study") >= 1)
        if target == "process":
            run.process.send_signal(number)
        elif target == "group":
            os.killpg(run.process.pid, number)
        else:
            for line in run.left():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(line.split()[0]), number)
        run.has_ended(130)
        assert "interrupted; continue with: hpsearch resume study" in run.out
    harmed = [
        event
        for event in events_of(tmp_path / "study")
        if isinstance(event, Failed) or (isinstance(event, Lost) and event.counts_against_trial)
    ]
    assert harmed == []


@pytest.mark.exhaustive
def test_a_terminal_that_is_closed_ends_the_sweep_and_leaves_nothing(tmp_path):
    ours, theirs = pty.openpty()
    with begun(tmp_path, *RUN, "1", terminal=theirs) as run:
        os.close(theirs)
        os.set_blocking(ours, False)
        run.wait_for(lambda: finished(tmp_path / "study") >= 1)
        os.close(ours)
        run.has_ended(130, 1)
    assert hpsearch.load(tmp_path / "study").state == "interrupted"


@pytest.mark.exhaustive
def test_a_ctrl_c_while_ray_is_shut_down_ends_at_once_without_a_traceback(tmp_path):
    with begun(tmp_path, *RUN, "1", "--set", "early_terminate.max_iter=3") as run:
        run.wait_for(lambda: "best:        trial" in run.out)
        run.process.send_signal(signal.SIGINT)
        # It strikes while the rest of the report is told, while Ray is shut down, or as all has ended.
        run.has_ended(130, -signal.SIGINT, 0)
        assert run.err == ""


@pytest.mark.exhaustive
def test_what_trials_have_forked_dies_with_a_killed_driver_and_resume_works_at_once(tmp_path):
    (tmp_path / "train.py").write_text(FORKS)
    pids = tmp_path / "pids.txt"
    with begun(tmp_path, *RUN, "1") as run:
        run.wait_for(lambda: pids.exists() and len(pids.read_text().splitlines()) == WAYS)
        forked = [psutil.Process(int(pid)) for pid in pids.read_text().split()]
        run.process.kill()
        run.process.wait()
        wait_for(lambda: not any(process.is_running() and process.status() != "zombie" for process in forked))
        wait_for(lambda: not run.left())
    assert len([event for event in events_of(tmp_path / "study") if isinstance(event, Started)]) == 1
    (tmp_path / "train.py").write_text(TRAIN)
    assert "waiting for the workers" not in hpsearch_command(tmp_path, *RESUME, "1")
