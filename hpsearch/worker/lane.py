"""A segment that runs as a lane: its attempt, its log, and the state of the process in its turns."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hpsearch.errors import Interrupted
from hpsearch.events import Saved
from hpsearch.trainable import random_state
from hpsearch.trainable.assignment import Assignment
from hpsearch.trainable.failures import failure_of
from hpsearch.trainable.packs import Parts
from hpsearch.trainable.running_trial import RunningTrial
from hpsearch.trial import Failure, Report, Segment
from hpsearch.worker.attempt import Attempt
from hpsearch.worker.job import Channel
from hpsearch.worker.lane_log import LaneLog

__all__ = ["BuiltTrainer", "Lane"]


class BuiltTrainer:
    """A trial's object, and the checkpoint that it corresponds to."""

    def __init__(self, made: Any, trial: RunningTrial, settings: Mapping[str, Any]) -> None:
        self.object = made
        self.trial = trial
        self.settings = settings
        """Settings of the process that its build changed."""
        self.at: str | None = None
        """Absolute path of that checkpoint; None if there is none."""


class Lane:
    """A running segment."""

    trial: RunningTrial
    steps: Iterator[int]

    def __init__(
        self, assignment: Assignment, segment: Segment, channel: Channel, timeout: float | None, at_hand: Path
    ) -> None:
        self.assignment = assignment
        self.segment = segment
        self.attempt = self.listener = Attempt(segment, _Charged(channel, self))
        self.log = LaneLog(at_hand, Path(assignment.directory))
        self.standing: BuiltTrainer | None = None
        self.timeout = timeout
        self.late = False
        self.seconds = 0.0
        """Seconds that count toward its timeout."""
        self.generators: random_state.RandomState = {}
        """State of the random generators between its turns."""
        self.settings: Mapping[str, Any] = {}
        """Settings of the process that it changed."""
        self.changed: dict[str, None] = {}
        self.stuck: dict[str, None] = {}
        self.kept: Parts | None = None
        """Its last checkpoint, until the end of the round."""
        self.fused = 1
        self.failure: Failure | None = None
        self._alone_because: str | None = None

    @property
    def object(self) -> Any:
        """Its trainer."""
        assert self.standing is not None, "it has begun"
        return self.standing.object

    @property
    def has_ended(self) -> bool:
        """Whether it has ended."""
        return self.failure is not None or self.attempt.ended

    @contextlib.contextmanager
    def charged(self) -> Iterator[None]:
        """Count the block's time toward its timeout."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - began

    @contextlib.contextmanager
    def at_fault(self) -> Iterator[None]:
        """Turn the block's exceptions into its failure, except those of its channel and the user's interruption."""
        try:
            yield
        except Interrupted:
            raise
        except BaseException as error:  # SystemExit is a user's mistake like any other
            if self.attempt.channel_error is not None:
                raise self.attempt.channel_error from None
            self.failure = failure_of(error)
            error.__traceback__ = None  # it references all lanes

    def forget(self) -> None:
        """Drop its trial and object, once it has ended.

        They reference the lane: such a cycle would keep the object until Python's garbage collection.
        """
        self.standing = None
        for name in ("trial", "steps"):  # they are missing if it couldn't begin
            vars(self).pop(name, None)

    def trains_alone(self, reason: str) -> None:
        """Write the reason to its log, once."""
        if self._alone_because != reason:
            self._alone_because = reason
            self.log.add(f"hpsearch: this trial trains alone: {reason}\n")


class _Charged:
    """A lane's channel, which cuts it when it has exceeded its timeout."""

    def __init__(self, channel: Channel, lane: Lane) -> None:
        self._channel = channel
        self._lane = lane

    def reported(self, report: Report) -> None:
        self._channel.reported(report)

    def saved(self, saved: Saved) -> None:
        self._channel.saved(saved)

    def cut_requested(self) -> bool:
        lane = self._lane
        lane.late = lane.timeout is not None and lane.seconds > lane.timeout
        return lane.late or self._channel.cut_requested()
