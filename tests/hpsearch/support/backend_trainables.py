"""Trainables that the backends' tests run; importable, so that workers on any backend find them."""

from __future__ import annotations

import functools
import gc
import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch


def stay_while_held(hold: Path) -> None:
    """Wait until a test takes this file away; a file beside it says which process does."""
    if hold.exists():
        hold.with_name(f"{os.getpid()}.held").touch()
    while hold.exists():
        time.sleep(0.02)


def folder_beside(folder: Path) -> Path:
    """Return the folder for files of a node that doesn't see the files of `folder`."""
    return folder.with_name(f"{folder.name}-beside")


def total(trial):
    """Adds `x` up; its value at an iteration is known without running it."""
    so_far = 0.0 if trial.checkpoint is None else trial.checkpoint["total"]
    for _ in trial.iterations():
        so_far += trial.params["x"]
        print(f"node {Path('/proc/self/ns/mnt').readlink()}")
        trial.report({"value": so_far}, checkpoint=lambda: {"total": so_far})


def without_checkpoints(trial):
    for iteration in trial.iterations():
        trial.report({"value": trial.params["x"] * iteration})


def held_total(trial):
    """The same, but held while there is a file `hold` in its folder, or in the one that all nodes see."""
    so_far = 0.0 if trial.checkpoint is None else trial.checkpoint["total"]
    folder = Path(trial.params["folder"])
    for _ in trial.iterations():
        stay_while_held(folder / "hold")
        stay_while_held(folder_beside(folder) / "hold")
        so_far += trial.params["x"]
        print(f"node {Path('/proc/self/ns/mnt').readlink()}")
        trial.report({"value": so_far}, checkpoint=lambda: {"total": so_far})


def notes(trial):
    """Is held after it has noted something, while there is a file `hold` in its folder."""
    trial.note(commit="4f1c", state="held")
    stay_while_held(Path(trial.params["folder"]) / "hold")
    for _ in trial.iterations():
        trial.report({"value": 0.0})
    trial.note(state="done")
    trial.note(state="done")


def raises(trial):
    raise ValueError("this trial can't be run")


def counts(trial):
    so_far = 0 if trial.checkpoint is None else trial.checkpoint["n"]
    for _ in trial.iterations():
        so_far += 1
        time.sleep(0.02)
        trial.report({"value": so_far}, checkpoint=lambda: {"n": so_far})


def endless(trial):
    """Starts a child and reports forever; each leaves its process id in a file."""
    folder = Path(trial.params["folder"])
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], start_new_session=True)
    (folder / f"{trial.number}.pids").write_text(f"{os.getpid()} {child.pid}")
    so_far = 0 if trial.checkpoint is None else trial.checkpoint["n"]
    for _ in trial.iterations():
        so_far += 1
        time.sleep(0.05)
        trial.report({"value": so_far}, checkpoint=lambda: {"n": so_far})


def kills_its_worker_once(trial):
    """Dies with its worker at iteration 3, the first time of every seventh trial; a checkpoint was written at 2."""
    so_far = 0.0 if trial.checkpoint is None else trial.checkpoint["total"]
    for iteration in trial.iterations():
        so_far += trial.params["x"]
        mark = Path(trial.params["folder"]) / f"{trial.number}.died"
        if iteration == 3 and trial.number % 7 == 0 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        trial.report({"value": so_far}, checkpoint=lambda: {"total": so_far})


def always_kills_its_worker(trial):
    os.kill(os.getpid(), signal.SIGKILL)


class Counter:
    """A class trainable: it counts how often it was built."""

    _count = itertools.count(1)

    def __init__(self, trial):
        self.built = next(self._count)
        self.total = 0.0
        self.x = trial.params["x"]

    def step(self):
        self.total += self.x
        return {"value": self.total, "built": self.built}

    def state_dict(self):
        return {"total": self.total}

    def load_state_dict(self, state):
        self.total = state["total"]


class Closing:
    """Its `close()` leaves a mark in the folder; that of trial `hangs` doesn't come back."""

    _count = itertools.count(1)

    def __init__(self, trial):
        self.built = next(self._count)
        self.number, self.params, self.total = trial.number, trial.params, 0.0

    def step(self):
        self.total += self.params["x"]
        return {"value": self.total, "built": self.built, "pid": os.getpid()}

    def state_dict(self):
        return {"total": self.total}

    def load_state_dict(self, state):
        self.total = state["total"]

    def close(self):
        (Path(self.params["folder"]) / f"{self.number}.{os.getpid()}.closed").touch()
        if self.params.get("hangs") == self.number:
            time.sleep(1000)


def interrupts_itself(trial):
    raise KeyboardInterrupt


def sets_a_dtype(trial):
    """Half of the trials change the default dtype, and none puts it back."""
    for _ in trial.iterations():
        trial.report({"value": torch.finfo(torch.get_default_dtype()).bits + trial.params["x"]})
        if trial.number % 2 == 0:
            torch.set_default_dtype(torch.float64)


DEFAULTS = {"x": 0.0}


@functools.cache
def _config():
    return dict(DEFAULTS)


def caches_its_config(trial):
    """Reports the parameter as its module's cached configuration has it."""
    DEFAULTS.update(trial.params)
    for _ in trial.iterations():
        trial.report({"value": _config()["x"]})


def waits(trial):
    """Holds its worker until the test lets go, unless it has no folder in which to look."""
    for _ in trial.iterations():
        while "folder" in trial.params and not (Path(trial.params["folder"]) / "go").exists():
            time.sleep(0.02)
        trial.report({"value": 1.0})


def together(trial):
    """Adds `x` up over ranks and iterations; `pause` is what an iteration takes.

    As long as there is a file `hold`, no rank comes through the second iteration; rank `raises` raises in it, and rank
    `stays` doesn't come back at the end.
    """
    so_far = 0.0 if trial.checkpoint is None else trial.checkpoint["total"]
    group = trial.group
    known = {"size": group.size, "hosts": len(group.hosts)}
    known |= {f"pid{rank}": pid for rank, pid in enumerate(group.allgather_object(os.getpid()))}
    for iteration in trial.iterations():
        time.sleep(trial.params.get("pause", 0.0))
        if iteration == 2 and "hold" in trial.params:
            stay_while_held(Path(trial.params["hold"]))
        if iteration == 2 and trial.params.get("raises") == group.rank:
            raise ValueError("this rank can't go on")
        so_far += float(group.allreduce(torch.tensor([trial.params["x"]]), op="sum"))
        print(f"rank {group.rank}")
        trial.report({"value": so_far, **known}, checkpoint=lambda: {"total": so_far})
    if trial.params.get("stays") == group.rank:
        time.sleep(1000)


def reports_once(trial):
    for _ in trial.iterations():
        trial.report({"value": 1.0})


_SEEN_AT_IMPORT = os.environ.get("CUDA_VISIBLE_DEVICES")


def tells_whether_gpus_are_hidden(trial):
    hidden = [seen == "" for seen in (_SEEN_AT_IMPORT, os.environ.get("CUDA_VISIBLE_DEVICES"))]
    trial.report({"value": float(all(hidden))})


def tells_what_the_collector_leaves_out(trial):
    for _ in trial.iterations():
        trial.report({"value": gc.get_freeze_count()})
