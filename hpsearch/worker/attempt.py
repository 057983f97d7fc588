"""Keep the account of one attempt: what it reported, what it saved, and whether it was cut."""

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
    """Give the attempt's own directory, relative to the study's: `trials/00012/3`, or `trials/00012/3/rank-1`."""
    directory = f"trials/{segment.trial:05d}/{segment.attempt}"
    return directory if rank == 0 else f"{directory}/rank-{rank}"


class Attempt:
    """Hears a running trial, and tells the channel what can't wait for the attempt's end.

    Of a gang, rank 0 alone speaks with the channel; of the others it is known how far they came.
    """

    def __init__(self, segment: Segment, channel: Channel, rank: int = 0) -> None:
        self._segment = segment
        self._channel = channel
        self._leads = rank == 0
        self._saved: tuple[int, str] | None = None
        self._returned = False
        self.iteration = segment.start
        """The last that was reported."""
        self.lanes = 1
        """Trials with which its next iteration to be reported was trained as one computation."""
        self.reports: list[Report] = []
        """Those since the last checkpoint that the channel was told of."""
        self.cut = False
        """The segment was told to end early, and did."""
        self.ignored_checkpoint = False
        """It went on from a checkpoint that it never looked at."""
        self.settings: Kept = Kept()
        """What it changed of its process."""
        self.module_changes: tuple[str, ...] = ()
        """Values of the trainable's modules that it changed, by name."""
        self.channel_error: Exception | None = None
        """What the channel raised. It passes through the user's code, but is none of its faults."""

    @property
    def checkpoint(self) -> str | None:
        """The address of the checkpoint at `iteration`, relative to the study's directory."""
        if self._saved is None or self._saved[0] != self.iteration:
            return None
        return self._saved[1]

    @property
    def ended(self) -> bool:
        """Whether nothing is to come after the last report."""
        return self._returned or self.cut or self.iteration == self._segment.end

    def reported(self, iteration: int, metrics: Mapping[str, float], seconds: float) -> None:
        """Take the report of an iteration."""
        self.iteration = iteration
        if not self._leads:
            return
        report = Report(self._segment.trial, iteration, metrics, seconds, self.lanes)
        self.reports.append(report)
        with self._channel_at_fault():
            self._channel.reported(report)

    def cut_requested(self) -> bool:
        """Ask the channel whether the segment is to end early."""
        with self._channel_at_fault():
            return self._leads and self._channel.cut_requested()

    def was_cut(self) -> None:
        """Take note that the segment ended early at the report just taken, as the channel had asked."""
        self.cut = True

    def wrote(self, address: str) -> None:
        """Take note of where the checkpoint at `iteration` lies, which was saved before and is written now."""
        self._saved = (self.iteration, address)

    def returned(self) -> None:
        """Take note that the trainable returned: a checkpoint from here on is the attempt's last."""
        self._returned = True

    def saved(self, iteration: int, name: str) -> None:
        """Take note of a checkpoint in the attempt's directory; inside the segment, the channel hears."""
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
