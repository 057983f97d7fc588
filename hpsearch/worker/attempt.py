"""Records one attempt, as the `Listener` of a running trial: its reports, its checkpoints, and whether it was cut."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from hpsearch.events import Saved
from hpsearch.trial import Report, Segment
from hpsearch.worker.process_settings import Kept

if TYPE_CHECKING:
    from hpsearch.worker.job import Channel

__all__ = ["Attempt", "attempt_directory"]


def attempt_directory(segment: Segment, rank: int = 0) -> str:
    """Return the attempt's own directory, relative to the study's: `trials/00012/3`, or `trials/00012/3/rank-1`."""
    directory = f"trials/{segment.trial:05d}/{segment.attempt}"
    return directory if rank == 0 else f"{directory}/rank-{rank}"


class Attempt:
    """The `Listener` of a `RunningTrial`: records an attempt, and forwards live reports to the `Channel`.

    In a gang only rank 0 uses the channel; the others record their last iteration.
    """

    def __init__(self, segment: Segment, channel: Channel, rank: int = 0) -> None:
        self._segment = segment
        self._channel = channel
        self._leads = rank == 0
        self._saved: tuple[int, str] | None = None
        self._returned = False
        self.iteration = segment.start
        """Last reported iteration."""
        self.lanes = 1
        """Number of trials that train its next iteration together."""
        self.reports: list[Report] = []
        """Reports since the last checkpoint that the channel received."""
        self.cut = False
        """The segment ended early on request."""
        self.ignored_checkpoint = False
        """It resumed from a checkpoint that it never read."""
        self.settings: Kept = Kept()
        """Settings of the process that it changed."""
        self.module_changes: tuple[str, ...] = ()
        """Values of the trainable's modules that it changed, by name."""
        self.channel_error: Exception | None = None
        """Exception of the channel, which passes through the user's code but isn't its failure."""

    @property
    def checkpoint(self) -> str | None:
        """The checkpoint's address at `iteration`, relative to the study's directory; None without one."""
        if self._saved is None or self._saved[0] != self.iteration:
            return None
        return self._saved[1]

    @property
    def ended(self) -> bool:
        """Whether the last report ends the attempt."""
        return self._returned or self.cut or self.iteration == self._segment.end

    def reported(self, iteration: int, metrics: Mapping[str, float], seconds: float) -> None:
        """Record the report of an iteration."""
        self.iteration = iteration
        if not self._leads:
            return
        report = Report(self._segment.trial, iteration, metrics, seconds, self.lanes)
        self.reports.append(report)
        with self._channel_at_fault():
            self._channel.reported(report)

    def cut_requested(self) -> bool:
        """Return whether the channel requests the segment's end."""
        with self._channel_at_fault():
            return self._leads and self._channel.cut_requested()

    def was_cut(self) -> None:
        """Record that the segment ended early at the last report, as requested."""
        self.cut = True

    def wrote(self, address: str) -> None:
        """Record the address of the checkpoint at `iteration`, which was saved before and is now written."""
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

    @contextlib.contextmanager
    def _channel_at_fault(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.channel_error = error
            raise
