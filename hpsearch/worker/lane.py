"""One segment that is trained beside others: its account, its log, and how its process stands in its turns."""

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

__all__ = ["Lane", "Standing"]


class Standing:
    """A trial's object, and the checkpoint that it stands at."""

    def __init__(self, made: Any, trial: RunningTrial, settings: Mapping[str, Any]) -> None:
        self.object = made
        self.trial = trial
        self.settings = settings
        """What building it changed of the process."""
        self.at: str | None = None
        """Absolute path of its place; None: at none."""


class Lane:
    """A segment that runs."""

    trial: RunningTrial
    steps: Iterator[int]

    def __init__(
        self, assignment: Assignment, segment: Segment, channel: Channel, timeout: float | None, at_hand: Path
    ) -> None:
        self.assignment = assignment
        self.segment = segment
        self.attempt = self.listener = Attempt(segment, _Charged(channel, self))
        self.log = LaneLog(at_hand, Path(assignment.directory))
        self.standing: Standing | None = None
        self.timeout = timeout
        self.late = False
        self.seconds = 0.0
        """That it is charged for."""
        self.generators: random_state.RandomState = {}
        """Where they stand between its turns."""
        self.settings: Mapping[str, Any] = {}
        """Of the process, as it changed them."""
        self.changed: dict[str, None] = {}
        self.stuck: dict[str, None] = {}
        self.kept: Parts | None = None
        """The checkpoint at its end, until the round has ended."""
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
        """Whether nothing of it is to come."""
        return self.failure is not None or self.attempt.ended

    @contextlib.contextmanager
    def charged(self) -> Iterator[None]:
        """Charge it for what runs inside."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - began

    @contextlib.contextmanager
    def at_fault(self) -> Iterator[None]:
        """Let what is raised inside be its failure, but for what its channel raises, and the user's interruption."""
        try:
            yield
        except Interrupted:
            raise
        except BaseException as error:  # SystemExit is a user's mistake like any other
            if self.attempt.channel_error is not None:
                raise self.attempt.channel_error from None
            self.failure = failure_of(error)
            error.__traceback__ = None  # it leads back to all lanes, by whoever raises what it was given

    def forget(self) -> None:
        """Let go of its trial and object, once it has ended.

        They lead back here, and such a circle would keep the object until Python's collector comes by.
        """
        self.standing = None
        for name in ("trial", "steps"):  # which there are not where it couldn't begin
            vars(self).pop(name, None)

    def trains_alone(self, reason: str) -> None:
        """Say in its log why, once."""
        if self._alone_because != reason:
            self._alone_because = reason
            self.log.add(f"hpsearch: this trial trains alone: {reason}\n")


class _Charged:
    """A lane's channel, which cuts it where it has been charged for more than its timeout."""

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
