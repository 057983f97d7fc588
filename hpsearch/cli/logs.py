"""`hpsearch logs`: print the output of trials, and follow it."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence

from hpsearch.cli.arguments import add_trial, number, trial_of
from hpsearch.errors import HpsearchError
from hpsearch.journal.directory import StudyDirectory
from hpsearch.journal.journal import Journal
from hpsearch.results.trial_logs import LogFile, last_lines, logs_of, logs_of_all, unfiled

_LOOK_SECONDS = 0.2
_SHARE = 10
"""Pause between polls, relative to a poll's duration, as there may be thousands of trials."""


def logs_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `hpsearch logs`."""
    add_trial(command, "(default: all)")
    text = "go on as it grows, until no process runs the study"
    command.add_argument("-f", "--follow", action="store_true", help=text)
    command.add_argument("--tail", type=number, metavar="N", help="begin with the last N lines of each log")


def logs(args: argparse.Namespace) -> int:
    """Print the logs of a trial, or of all trials with a prefix per line. Optionally follow them."""
    directory, trial = trial_of(args)
    study_dir = StudyDirectory(directory)
    with Journal.read(study_dir.journal) as journal:
        if trial is not None and (count := journal.trials()) <= trial:
            raise HpsearchError(f"{study_dir.path}: expected the number of one of {count} trials, got {trial}")

    def find() -> Sequence[LogFile]:
        return list(logs_of_all(study_dir.path)) if trial is None else logs_of(study_dir.path, trial)

    tails = _Tails(prefixed=trial is None)
    first = find()
    for log in first:
        tails.begin(log, args.tail)
    if trial is None and study_dir.holder() is None:
        for path in unfiled(study_dir.path):
            tails.print_lines("unfiled", last_lines(path, args.tail or sys.maxsize))
    if args.follow:
        _follow(study_dir, find, tails)
    elif not first:
        of = "no trial" if trial is None else f"trial {trial}"
        print(
            f"{study_dir.path}: {of} has printed {'anything' if trial is None else 'nothing'} so far", file=sys.stderr
        )
    tails.finish()
    return 0


def _follow(study_dir: StudyDirectory, find: Callable[[], Sequence[LogFile]], tails: _Tails) -> None:
    """Print new output until no process runs the study."""
    while True:
        live = study_dir.holder() is not None  # before the last poll, so that nothing is missed
        began = time.monotonic()
        for log in find():
            tails.print_new_lines(log)
        sys.stdout.flush()
        if not live:
            return
        time.sleep(max(_LOOK_SECONDS, _SHARE * (time.monotonic() - began)))


class _Tails:
    """Prints logs, and keeps the printed length of each."""

    def __init__(self, prefixed: bool) -> None:
        self._prefixed = prefixed
        self._read: dict[LogFile, int] = {}
        self._incomplete: dict[LogFile, bytes] = {}
        self._last: LogFile | None = None

    def begin(self, log: LogFile, tail: int | None) -> None:
        """Print a log from its beginning, or only its last `tail` lines."""
        if tail is None:
            self.print_new_lines(log)
            return
        try:
            self._read[log] = log.path.stat().st_size
        except OSError:
            return
        self._head(log)
        self.print_lines(log.name, last_lines(log.path, tail))

    def print_new_lines(self, log: LogFile) -> None:
        """Print new lines that are complete."""
        try:
            with log.path.open("rb") as file:
                position = self._read.get(log, 0)
                if file.seek(0, 2) < position:  # the log was rewritten
                    position = 0
                file.seek(position)
                new = file.read()
        except OSError:
            return  # the log was deleted
        self._read[log] = position + len(new)
        lines, _, incomplete = (self._incomplete.pop(log, b"") + new).rpartition(b"\n")
        if incomplete:
            self._incomplete[log] = incomplete
        if lines:
            self._head(log)
            self.print_lines(log.name, lines.decode("utf-8", "backslashreplace").split("\n"))

    def finish(self) -> None:
        """Print incomplete last lines."""
        for log, incomplete in self._incomplete.items():
            self.print_lines(log.name, [incomplete.decode("utf-8", "backslashreplace")])

    def print_lines(self, name: str, lines: Sequence[str]) -> None:
        """Print lines. If there are several trials, each line starts with its trial."""
        for line in lines:
            # Between lines of other trials, only the last text of a progress bar is printed.
            print(f"{name} | {line.rstrip(chr(13)).rpartition(chr(13))[2]}" if self._prefixed else line)

    def _head(self, log: LogFile) -> None:
        """Print the number of the attempt whose log follows, if a trial has several."""
        if not self._prefixed and self._last != log:
            if self._last is not None or log.attempt > 1 or log.rank:
                rank = f", rank {log.rank}" if log.rank else ""
                print(f"==> attempt {log.attempt}{rank} <==")
            self._last = log
