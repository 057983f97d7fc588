"""An attempt: its directory, its reports and checkpoints, and its output.

Output goes to a shared file, which is moved to the attempt's directory once it has content: creating a directory and a
file for every attempt costs more than a trial that prints nothing.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hpsearch.errors import TrainableError
from hpsearch.events import Saved
from hpsearch.task import Result
from hpsearch.trainable.failures import bounded
from hpsearch.trainable.metrics import cost_after
from hpsearch.trial import Failure, Report, Segment
from hpsearch.worker.process_settings import Kept

if TYPE_CHECKING:
    from hpsearch.worker.job import Channel

_MOST_NOTED = 100_000
"""Characters that a segment may note, counting each change."""


def attempt_directory(attempt: Segment | Result, rank: int = 0) -> str:
    """Return the attempt's own directory, relative to the study's: `trials/00012/3`, or `trials/00012/3/rank-1`."""
    directory = f"trials/{attempt.trial:05d}/{attempt.attempt}"
    return directory if rank == 0 else f"{directory}/rank-{rank}"


class Attempt:
    """The `Listener` of a `RunningTrial`: records an attempt, and forwards live reports to the `Channel`.

    In a gang only rank 0 uses the channel; the others record their last iteration.

    Args:
        segment: The segment.
        channel: Receives its messages.
        rank: This worker's rank.
        timeout: Seconds after which the attempt is cut; None: no limit.
        ran: Returns the seconds that count toward the timeout.
        resource: What rungs end by; None: iterations.
    """

    def __init__(
        self,
        segment: Segment,
        channel: Channel,
        rank: int = 0,
        timeout: float | None = None,
        ran: Callable[[], float] = lambda: 0.0,
        resource: str | None = None,
    ) -> None:
        self._segment = segment
        self._channel = channel
        self._leads = rank == 0
        self._timeout = timeout
        self._ran = ran
        self._resource = resource
        self._cost = 0.0 if segment.costs is None else segment.costs.start
        self._late = False
        self._saved: tuple[int, str] | None = None
        self._returned = False
        self.iteration = segment.start
        """Last reported iteration."""
        self.lanes = 1
        """Number of trials that train its next iteration together."""
        self.reports: list[Report] = []
        """Reports since the last checkpoint that the channel received."""
        self._notes: dict[str, str] = {}
        self._noted = 0  # characters
        self._is_over = False
        self.cut = False
        """Whether the segment ended early on request."""
        self.ignored_checkpoint = False
        """Whether it resumed from a checkpoint that it never read."""
        self.settings: Kept = Kept()
        """Settings of the process that it changed."""
        self.module_changes: tuple[str, ...] = ()
        """Values of the trainable's modules that it changed, by name."""
        self.channel_error: Exception | None = None
        """Exception of the channel. It passes through the user's code but isn't the attempt's failure."""

    @property
    def checkpoint(self) -> str | None:
        """The checkpoint's address at `iteration`, relative to the study's directory; None without one."""
        if self._saved is None or self._saved[0] != self.iteration:
            return None
        return self._saved[1]

    @property
    def ended(self) -> bool:
        """Whether the last report ends the attempt."""
        costs = self._segment.costs
        has_spent = costs is not None and self._cost >= costs.end
        return self._returned or self.cut or has_spent or self.iteration == self._segment.end

    def reported(self, iteration: int, metrics: Mapping[str, float], seconds: float) -> None:
        """Record the report of an iteration."""
        if self._leads:
            self._cost = cost_after(self._resource, self._cost, metrics, seconds)
        self.iteration = iteration
        if not self._leads:
            return
        report = Report(self._segment.trial, iteration, metrics, seconds, self.lanes)
        self.reports.append(report)
        with self._channel_at_fault():
            self._channel.reported(report)

    def noted(self, notes: Mapping[str, str]) -> None:
        """Record notes, and forward those that are new or have changed.

        Raises:
            TrainableError: The attempt is over, or has noted too much.
        """
        if self._is_over:
            raise TrainableError(
                f"trial.note({', '.join(notes)}) must be called before the segment ends, but iteration "
                f"{self.iteration} ended it: call it in the training code, not in close()"
            )
        new = {name: text for name, text in notes.items() if self._notes.get(name) != text}
        if not new:
            return
        self._noted += sum(map(len, new.values()))
        if self._noted > _MOST_NOTED:
            raise TrainableError(
                f"the notes of a segment must have at most {_MOST_NOTED:,} characters in all, but have "
                f"{self._noted:,} with {', '.join(new)}: report numbers, print what changes, or write files into "
                "trial.directory"
            )
        self._notes |= new
        with self._channel_at_fault():
            self._channel.noted(new)

    def cut_requested(self) -> bool:
        """Return whether the segment must end: it exceeded its timeout, or the channel requests it."""
        self._late = self._timeout is not None and self._ran() > self._timeout
        with self._channel_at_fault():
            return self._leads and (self._late or self._channel.cut_requested())

    def was_cut(self) -> None:
        """Record that the segment ended early at the last report, as requested."""
        self.cut = True

    def wrote(self, address: str) -> None:
        """Record the address of the checkpoint at `iteration`, whose pending write is now complete."""
        self._saved = (self.iteration, address)

    def returned(self) -> None:
        """Record that the trainable returned: a later checkpoint is the attempt's last."""
        self._returned = True

    def saved(self, iteration: int, name: str) -> None:
        """Record a checkpoint in the attempt's directory; the channel receives it if it is inside the segment."""
        path = f"{attempt_directory(self._segment)}/{name}"
        self._saved = (iteration, path)
        if not self.ended:
            with self._channel_at_fault():
                self._channel.saved(
                    Saved(self._segment.trial, self._segment.attempt, iteration, path, tuple(self.reports))
                )
            self.reports.clear()

    def result(self, seconds: float, failure: Failure | None, lanes: int = 1) -> Result:
        """Return the attempt's result. If it was cut because it exceeded its timeout, the timeout is its failure.

        Args:
            seconds: Duration of the attempt.
            failure: Its failure; None if it didn't fail.
            lanes: Largest number of trials that trained an iteration together.
        """
        self._is_over = True
        if is_late := self._late and self.cut and failure is None:
            left = f"ran over its trial_timeout; {self._timeout:g} s of it were left for this segment"
            failure = Failure("timeout", left, "")
        return Result(
            trial=self._segment.trial,
            attempt=self._segment.attempt,
            iteration=self.iteration,
            checkpoint=None if failure else self.checkpoint,
            reports=() if is_late else tuple(self.reports),
            cut=self.cut and failure is None,
            seconds=seconds,
            failure=None if failure is None else bounded(failure),
            changed=self.settings.changed,
            stuck=self.settings.stuck,
            module_changes=self.module_changes,
            ignored_checkpoint=self.ignored_checkpoint,
            lanes=lanes,
            notes=self._notes,
        )

    @contextlib.contextmanager
    def _channel_at_fault(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.channel_error = error
            raise


LOG = "output.log"


class AttemptLog:
    """The output of attempts that run in sequence. `file` may be called from another thread.

    Args:
        at_hand: The shared file; None: each attempt writes to its own file from the start.
    """

    def __init__(self, at_hand: Path | None) -> None:
        self._at_hand = at_hand
        self._directory: str | None = None
        self._guard = threading.Lock()

    def begin(self, directory: str) -> Path:
        """Begin an attempt; return the file for its output."""
        if self._at_hand is None:
            log = Path(directory, LOG)
            log.parent.mkdir(parents=True, exist_ok=True)
            return log
        with self._guard:
            self._directory = directory
        return self._at_hand

    def file(self) -> None:
        """Move the running attempt's output, if any, to its directory, where later output is appended."""
        with self._guard:
            if self._at_hand is not None and self._directory is not None:
                file_log(self._at_hand, Path(self._directory))

    def end(self) -> None:
        """End the attempt. An empty shared file is reused by the next attempt."""
        with contextlib.suppress(FileNotFoundError):
            if self._at_hand is not None and self._directory is not None and self._at_hand.stat().st_size:
                self.file()
        with self._guard:
            self._directory = None

    def close(self) -> None:
        """Delete the shared file."""
        if self._at_hand is not None:
            self._at_hand.unlink(missing_ok=True)


def file_log(log: Path, directory: Path, *, shared: bool = False) -> None:
    """Append a log, if it exists, to the log in an attempt's directory.

    Args:
        log: Path of the log. The file is removed.
        directory: The attempt's directory.
        shared: Whether other processes may write to the log in the directory.
    """
    directory.mkdir(parents=True, exist_ok=True)
    target = directory / LOG
    with contextlib.suppress(FileNotFoundError):
        if not shared and not target.exists():
            log.rename(target)
            return
        content = log.read_bytes()
        with target.open("ab") as file:
            file.write(content)
        log.unlink()


class LaneLog:
    """The output of one lane, which takes turns with other lanes.

    Args:
        at_hand: A shared file that all lanes of a process write to in turn. Content is moved to the lane's directory.
        directory: The attempt's directory.
        shared: Whether other processes write to the same log in the directory.
    """

    def __init__(self, at_hand: Path, directory: Path, *, shared: bool = False) -> None:
        self._log_path = directory / LOG
        self._shared = shared
        self.path = at_hand
        """The file for the lane's next turn."""

    def file(self) -> None:
        """Move the output of a turn to the attempt's directory, at the turn's end."""
        if self.path != self._log_path:
            with contextlib.suppress(FileNotFoundError):
                if self.path.stat().st_size:
                    file_log(self.path, self._log_path.parent, shared=self._shared)
                    self.path = self._log_path

    def add(self, text: str) -> None:
        """Append text; errors are ignored."""
        with contextlib.suppress(OSError):
            if text:
                self._log_path.parent.mkdir(parents=True, exist_ok=True)
                with self._log_path.open("a", encoding="utf-8", errors="backslashreplace") as file:
                    file.write(text)
                self.path = self._log_path
