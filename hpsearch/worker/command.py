"""Run a script in any language as a trainable."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpsearch.errors import CheckpointError, StorageError, TrainableError, UnwritableError
from hpsearch.trainable import checkpoints, current
from hpsearch.trainable.assignment import Assignment, ignored_parallel
from hpsearch.trainable.current import ANSWERS, CUT, GO_ON, LineReader
from hpsearch.trainable.failures import failure_of
from hpsearch.trainable.macros import expand
from hpsearch.trainable.metrics import to_notes, to_numbers
from hpsearch.trial import Failure, Params, Trial
from hpsearch.worker.attempt import Attempt
from hpsearch.worker.child_process import thread_environment
from hpsearch.worker.gang import LAUNCHERS, Board, Ending, GangStore, RankInfo, StoreLostError
from hpsearch.worker.guardian import MARK, Guardian, kill_marked, start_guardian
from hpsearch.worker.preflight import check_program
from hpsearch.worker.script_failures import (
    LONGEST_TRACEBACK,
    end_of_log,
    failed,
    lost,
    mirrors_wandb,
    no_report,
    probe,
)

if TYPE_CHECKING:
    from hpsearch.worker.job import CommandLine

_GRACE = 10.0
"""Seconds from SIGTERM to SIGKILL."""

_LONGEST_NAP = 0.02
"""Longest time between two polls of a running script."""

_HOOK = str(Path(__file__).parents[1] / "compat" / "hook")
"""Folder that makes a script's Python mirror W&B's runs, see `hpsearch.compat.wandb_mirror`."""

_FAILURES = (TrainableError, CheckpointError, UnwritableError, StorageError)


class CommandRunner:
    """Runs each segment as a process, in a process group that ends with it.

    If this process has no guardian yet, one is started, since a script must not outlive this process.

    Args:
        command: The command.
        threads: Number of threads of a script's numerical libraries.
        store: Rendezvous of a gang's scripts; None if trials never have several workers.
    """

    def __init__(self, command: CommandLine, threads: int, store: GangStore | None) -> None:
        self._command = command
        self._threads = threads
        self._store = store
        self._guardian: Guardian | None = None if MARK in os.environ else start_guardian(own_group=False)

    closes = False
    """A script leaves no object with a `close()`."""

    @property
    def address(self) -> str:
        """Rendezvous of the next gang if this worker is its rank 0."""
        return "" if self._store is None else self._store.address

    def run(
        self, trial: Trial, assignment: Assignment, attempt: Attempt, log: Path, rank_info: RankInfo | None
    ) -> Failure | None:
        """Run one segment. Errors of the script or its reports are the trial's failure.

        All scripts of a gang end when one of them has failed, or when rank 0's script must end.
        """
        meeting: dict[str, str] = {}
        board = Board(None)
        try:
            if self._store is not None:
                meeting = self._store.environment(rank_info)
                board = self._store.board(rank_info)
            failure = self._run(trial.params, assignment, attempt, log, meeting, board)
            if failure is None or failure.kind == "peer":
                return failure
            first = board.post(Ending(assignment.rank, True, failure.message))
            if not first.failed:
                return None  # rank 0's script had to end, and this one failed because of that
            return failure if first.rank == assignment.rank else lost(first, end_of_log(log))
        except StoreLostError as error:
            return Failure("peer", str(error), "")
        finally:
            if self._store is not None and rank_info is not None:
                self._store.renew()

    def _run(
        self,
        params: Params,
        assignment: Assignment,
        attempt: Attempt,
        log: Path,
        meeting: Mapping[str, str],
        board: Board,
    ) -> Failure | None:
        directory = Path(assignment.directory)
        lines = directory / "reports.jsonl"
        for file in (lines, directory / ANSWERS, log):
            file.touch()
        (directory / "trial.json").write_text(json.dumps(assignment.to_json()), "utf-8")
        try:
            environment = {**self._environment(assignment, lines), **meeting}
            argv = expand(
                self._command.command,
                self._command.program,
                params,
                assignment.params,
                directory / "params.json",
                environment,
            )
            process = self._start(argv, environment, log)
            try:
                script = _Script(process, assignment, attempt, lines, board)
                status = script.follow()
            finally:
                _end(process, lines)
            if script.reported_failure is not None:
                return dataclasses.replace(script.reported_failure, traceback=end_of_log(log))
            if script.ended_by is not None and script.ended_by.failed:
                return lost(script.ended_by, end_of_log(log))
            if status != 0:
                probe(directory)
                return failed(argv, status, end_of_log(log, LONGEST_TRACEBACK))
            script.finish(self._command)
        except _FAILURES as error:
            return dataclasses.replace(failure_of(error), traceback=end_of_log(log))
        return None

    def close_object(self, unless: int | None) -> None:
        """Do nothing: no object is kept between segments."""

    def close(self) -> None:
        """Stop our own guardian, if there is one."""
        if self._guardian is not None:
            self._guardian.stop()
        if self._store is not None:
            self._store.close()

    def _environment(self, assignment: Assignment, lines: Path) -> dict[str, str]:
        environment = {
            **{name: value for name, value in os.environ.items() if name not in LAUNCHERS},
            **thread_environment(self._threads),
            "HPSEARCH_REPORTS": str(lines),
            "HPSEARCH_TRIAL": str(Path(assignment.directory) / "trial.json"),
            "HPSEARCH_PARAMS": json.dumps(assignment.params),
            "HPSEARCH_SEED": str(assignment.seed),
            "HPSEARCH_DIRECTORY": assignment.directory,
            "HPSEARCH_START": str(assignment.start),
            "HPSEARCH_END": "" if assignment.end is None else str(assignment.end),
            "HPSEARCH_CHECKPOINT": _user_path(assignment.checkpoint),
            "HPSEARCH_PARENT_CHECKPOINT": _user_path(assignment.parent_checkpoint),
        }
        if assignment.world_size == 1 and mirrors_wandb(self._command, environment):
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, (_HOOK, environment.get("PYTHONPATH"))))
            environment.setdefault("WANDB_MODE", "offline")
            environment.setdefault("WANDB_DIR", assignment.directory)
        environment.setdefault("PYTHONUNBUFFERED", "1")  # otherwise the last output of a killed script is lost
        if self._guardian is not None:
            environment[MARK] = self._guardian.mark
        return environment

    def _start(self, argv: list[str], environment: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
        folder = Path(self._command.directory)
        if not folder.is_dir():
            raise TrainableError(
                f"the script must run in {folder}, where the sweep was started, but there is none here"
            )
        check_program(self._command)
        with log.open("ab") as output:
            try:
                return subprocess.Popen(
                    argv,
                    cwd=folder,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    process_group=0,
                )
            except OSError as error:
                raise TrainableError(
                    f"`command` must begin with a program that runs, but {argv[0]!r} doesn't: {error.strerror}",
                    "command",
                ) from error


class _Script:
    """A running script and its report lines."""

    def __init__(
        self, process: subprocess.Popen[bytes], assignment: Assignment, attempt: Attempt, lines: Path, board: Board
    ) -> None:
        self._process = process
        self._assignment = assignment
        self._attempt = attempt
        self._directory = Path(assignment.directory)
        self._lines = LineReader(lines)
        self._queue: deque[tuple[int, dict[str, Any]]] = deque()
        """Lines that were read but not handled yet."""
        self._read = 0
        self._named = _NamedCheckpoints(self._directory, lines)
        self._board = board
        self.ended_by: Ending | None = None
        """What ended the gang's scripts; None if this script ended them."""
        self.reported_failure: Failure | None = None
        """The failure that the script reported, if it uses the trial object."""
        self._uses_trial = False
        """Whether the script reported by the trial object, or by W&B's run, and not by lines of its own."""
        self._offered: Path | None = None
        """The last line's checkpoint, if it isn't copied yet."""
        self._copy: _Copy | None = None
        """The newest copy, until it is verified."""
        self._kill_at: float | None = None
        self._clock = time.perf_counter()

    def follow(self) -> int:
        """Handle the script's lines until it has ended; return its exit status, or 0 if it was ended on purpose."""
        nap = 0.001
        try:
            while not _has_ended(self._process.pid):
                read = self._read
                self._take_lines()
                if self._read > read:
                    nap = 0.001  # it waits for a reply, and its next report may be near
                self._heed_others()
                if self._kill_at is not None and time.monotonic() >= self._kill_at:
                    os.killpg(self._process.pid, signal.SIGKILL)
                time.sleep(nap)
                nap = min(nap * 1.5, _LONGEST_NAP)
            self._take_lines(ended=self._kill_at is None)
        except _FAILURES as error:
            # Before this script is ended, as the others' may fail without it.
            self._board.post(Ending(self._assignment.rank, True, str(error)))
            raise
        finally:
            self._lines.close()
        _kill_group(self._process)  # before it is reaped, so that its pid can't be reused
        status = self._process.wait()
        return 0 if self._kill_at is not None else status

    def finish(self, command: CommandLine) -> None:
        """Copy the last line's checkpoint, and check that there was a line."""
        self._attempt.returned()
        iteration = self._attempt.iteration
        if self._copy is not None:
            self._named.check_at_end(self._copy.path)
            self._settle()
        elif self._offered is not None:
            self._named.check_at_end(self._offered)
            self._attempt.saved(iteration, self._named.copy(self._offered, iteration))
        if iteration == self._assignment.start and self._assignment.must_report and self._assignment.rank == 0:
            raise TrainableError(no_report(self._assignment.names, command))

    def _take_lines(self, ended: bool = False) -> None:
        try:
            self._read_lines(ended)
        finally:  # lines before an invalid one count
            self._take_queue(ended)

    def _read_lines(self, ended: bool = False) -> None:
        for number, line in self._lines.read(ended):
            self._read += 1
            if current.KIND not in line:
                self._named.note(number, line)
            self._queue.append((number, line))

    def _take_queue(self, ended: bool) -> None:
        while self._queue and self._kill_at is None:
            if self._copy is not None:
                if self._read < self._copy.enough and not ended:
                    return
                self._settle()
            number, line = self._queue.popleft()
            match line:
                case {current.KIND: "report", "iteration": iteration, "metrics": metrics, "seconds": seconds}:
                    self._uses_trial = True
                    self._attempt.reported(iteration, metrics, seconds)
                    self._answer()
                case {current.KIND: "saved", "iteration": iteration, "checkpoint": name}:
                    self._attempt.saved(iteration, name)
                case {current.KIND: "cut"}:
                    self._attempt.was_cut()
                case {current.KIND: "failed", "kind": kind, "message": message}:
                    self._take_failure(Failure(kind, message, "", line.get("key", "")))
                case {current.KIND: current.NOTE, "notes": notes}:
                    if self._assignment.rank == 0:
                        self._attempt.noted(to_notes(notes))
                case {current.KIND: current.NOTE}:
                    raise TrainableError(
                        f"line {number} of $HPSEARCH_REPORTS must have its notes by name, such as "
                        '{"hpsearch": "note", "notes": {"commit": "4f1c"}}'
                    )
                case {current.KIND: _}:
                    raise TrainableError(
                        f"line {number} of $HPSEARCH_REPORTS must name no metric {current.KIND!r}: rename it"
                    )
                case _:
                    self._take_report(number, line)

    def _take_failure(self, failure: Failure) -> None:
        """Record the failure that a script reports, and let it print its traceback."""
        self.reported_failure = failure
        if failure.kind != "peer":
            self._board.post(Ending(self._assignment.rank, True, failure.message))
        self._kill_at = time.monotonic() + _GRACE

    def _take_report(self, number: int, line: dict[str, Any]) -> None:
        if self._assignment.strategy != "allreduce":  # a line doesn't say whether the checkpoint was read
            raise TrainableError(ignored_parallel(self._assignment.strategy))
        if self._uses_trial:
            raise TrainableError(
                f"a script must report in one way, but line {number} of $HPSEARCH_REPORTS is its own, and the ones "
                "before it are from its trial object, or from its run of W&B's: remove one, or set HPSEARCH_WANDB=off"
            )
        iteration = self._attempt.iteration + 1
        if self._attempt.ended:
            self._end_all()  # it runs beyond its segment
            return
        if line.get("iteration", iteration) != iteration:
            raise TrainableError(
                f"line {number} of $HPSEARCH_REPORTS must be iteration {iteration}, but says "
                f"{line['iteration']}: count on from $HPSEARCH_START, or leave `iteration` out"
            )
        metrics = {name: value for name, value in line.items() if name not in ("iteration", "checkpoint")}
        numbers = to_numbers(metrics, self._assignment.objective.names) if self._assignment.rank == 0 else {}
        now = time.perf_counter()
        seconds, self._clock = now - self._clock, now
        self._attempt.reported(iteration, numbers, seconds)
        self._offered = self._named.named(number, line.get("checkpoint")) if self._assignment.rank == 0 else None
        cut = not self._attempt.ended and (self._attempt.cut_requested() or self._assignment.reached(numbers))
        if cut:
            self._attempt.was_cut()
        if self._attempt.ended or self._assignment.due(iteration):
            self._copy_offered(number)
        if cut and self._copy is None:
            self._end_all()  # otherwise the next line ends it

    def _copy_offered(self, number: int) -> None:
        """Copy the last line's checkpoint, if it names one."""
        path, self._offered = self._offered, None
        if path is None:
            return
        iteration = self._attempt.iteration
        name = self._named.copy(path, iteration)
        self._read_lines()  # lines that were appended during the copy
        self._copy = _Copy(iteration, name, path, number, self._read + 1)

    def _settle(self) -> None:
        """Record the newest copy as a checkpoint, if its source wasn't overwritten before it was copied."""
        copy, self._copy = self._copy, None
        if copy is None:
            return
        try:
            self._named.check(copy)
        except TrainableError:
            if not self._attempt.cut:
                raise
            return  # a cut must not make the trial fail: it resumes from the previous checkpoint
        self._attempt.saved(copy.iteration, copy.name)

    def _answer(self) -> None:
        """Reply to a script with the trial object: whether its segment ends with the last report."""
        is_cut = not self._attempt.ended and self._attempt.cut_requested()
        with (self._directory / ANSWERS).open("ab") as file:
            file.write(CUT if is_cut else GO_ON)

    def _heed_others(self) -> None:
        """End this script if the gang's scripts must end."""
        if self._kill_at is None:
            with contextlib.suppress(StoreLostError):  # rank 0's worker may be done, and this script nearly
                self.ended_by = self._board.read()
            if self.ended_by is not None:
                self._terminate()

    def _end_all(self) -> None:
        """End this script, after informing the runners of the other scripts, which may fail without it."""
        if self._assignment.rank == 0:
            self._board.post(Ending(0, False))
        self._terminate()

    def _terminate(self) -> None:
        if self._kill_at is None:
            self._kill_at = time.monotonic() + _GRACE
            os.killpg(self._process.pid, signal.SIGTERM)


_ADVICE = "write each one to a new path, such as $HPSEARCH_DIRECTORY/model-<iteration>, and don't change it later"


@dataclass(frozen=True, slots=True)
class _Copy:
    """A copied checkpoint that isn't verified yet."""

    iteration: int
    name: str
    """Name of the checkpoint in the attempt's directory."""
    path: Path
    """Path of the source."""
    line: int
    """The line that named it."""
    enough: int
    """Number of lines after which the source is known not to have been overwritten before the copy."""


class _NamedCheckpoints:
    """Checkpoints that the lines of one attempt named: when they are copied, and when a copy counts.

    A script continues while its line is read, so the path may already contain a later iteration's checkpoint, or a part
    of it. Therefore each line should name a different path. A script that overwrites a path before it is copied names
    the path again, in its next line at the latest. So a copy counts once the script has appended one line after the end
    of the copy, or has ended. Modification times aren't sufficient: they are set before the new content can be read.
    """

    def __init__(self, directory: Path, lines: Path) -> None:
        self._directory = directory
        self._lines = lines
        self._last_named: dict[str, int] = {}
        """Last line that named each path."""
        self._copied: set[str] = set()

    def note(self, number: int, line: dict[str, Any]) -> None:
        """Record the path that a line names, when the line is read; the line is handled later."""
        offered = line.get("checkpoint")
        if isinstance(offered, str):
            self._last_named.update(dict.fromkeys(_names(self._directory / offered), number))

    def named(self, number: int, offered: object) -> Path | None:
        """Return the path that a line names, when it is handled.

        Raises:
            TrainableError: The value is not a path, or the path was copied for another line.
        """
        if offered is None:
            return None
        if not isinstance(offered, str):
            raise TrainableError(f"`checkpoint` in a line must be the path of a directory or file, but is {offered!r}")
        path = self._directory / offered
        if self._copied & _names(path):
            raise _named_twice(path, number)
        return path

    def copy(self, path: Path, iteration: int) -> str:
        """Copy the path that an iteration's line named; return the checkpoint's name.

        Raises:
            CheckpointError, UnwritableError, StorageError: The path can't be copied.
            TrainableError: The path was changed during the copy.
        """
        self._copied |= _names(path)
        try:
            return checkpoints.write(self._directory, iteration, path, None)
        except UnwritableError as error:
            if isinstance(error.__cause__, (FileNotFoundError, NotADirectoryError)):
                raise TrainableError(f"the checkpoint {path} was changed while it was copied: {_ADVICE}") from error
            raise

    def check_at_end(self, path: Path) -> None:
        """Check that the last line's path didn't change until the script ended.

        Raises:
            TrainableError: The path changed.
        """
        appended = self._lines.stat()
        for stat in _stats(path):
            if stat.st_dev == appended.st_dev and stat.st_mtime_ns > appended.st_mtime_ns:
                raise TrainableError(f"the checkpoint {path} was changed after the line that names it: {_ADVICE}")

    def check(self, copy: _Copy) -> None:
        """Check that no later line has named a copy's path.

        Raises:
            TrainableError: A later line has named it.
        """
        last = max(self._last_named.get(name, 0) for name in _names(copy.path))
        if last > copy.line:
            raise _named_twice(copy.path, last)


def _names(path: Path) -> set[str]:
    return {os.path.normpath(path), os.path.realpath(path)}


def _named_twice(path: Path, line: int) -> TrainableError:
    return TrainableError(
        f"line {line} of $HPSEARCH_REPORTS names the checkpoint {path}, but so did the line of another iteration, for "
        f"which it was copied while the script went on: {_ADVICE}"
    )


def _stats(path: Path) -> Iterator[os.stat_result]:
    """Return the stats of all files at and below a path; vanished ones are left out."""
    below = (Path(folder, name) for folder, folders, files in os.walk(path) for name in folders + files)
    for file in (path, *below):
        try:
            yield file.stat()
        except FileNotFoundError:
            continue


def _user_path(checkpoint: str | None) -> str:
    """Return the path of the user's checkpoint; empty without one."""
    return "" if checkpoint is None else str(checkpoints.user_path(Path(checkpoint)))


def _has_ended(pid: int) -> bool:
    """Return whether this child has ended, without reaping it."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _end(process: subprocess.Popen[bytes], lines: Path) -> None:
    """End the script and all its descendants."""
    _kill_group(process)
    process.wait()
    kill_marked("HPSEARCH_REPORTS", str(lines))
