"""Ask and tell in processes that are killed; called in child processes."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import hpsearch
from hpsearch.journal.journal import Journal


class Killing:
    """A number that kills its process where it is read, which is in the middle of a tell."""

    def item(self) -> float:
        os.kill(os.getpid(), signal.SIGKILL)
        return 0.0


def ask_and_die(study: str) -> None:
    """Ask for a trial, and be killed by SIGKILL with it in hand."""
    with hpsearch.AskTell(directory=study) as lab:
        trial = lab.ask()
        assert trial is not None
        Path(study, "..", "asked.txt").write_text(f"{trial.number} {trial.attempt} {trial.flat['x']!r}")
        Killing().item()


def ask_and_die_unwritten(study: str) -> None:
    """Ask for a trial, and be killed by SIGKILL when all is decided and nothing is written."""
    lab = hpsearch.AskTell(directory=study)
    Journal.append = lambda *_: Killing().item()  # type: ignore[method-assign, assignment]
    lab.ask()


def tell_and_die(study: str, number: int, after: bool) -> None:
    """Tell of a trial, and be killed by SIGKILL in the middle of it, or right after it."""
    with hpsearch.AskTell(directory=study) as lab:
        lab.tell(number, {"loss": 0.25 if after else Killing()})
        Killing().item()


def report_and_die(study: str, number: int, count: int) -> None:
    """Report so many iterations of a trial, and be killed by SIGKILL in the middle of the next one."""
    with hpsearch.AskTell(directory=study) as lab:
        for iteration in range(count):
            lab.report(number, {"loss": 1.0 / (iteration + 1)})
        lab.report(number, {"loss": Killing()})
