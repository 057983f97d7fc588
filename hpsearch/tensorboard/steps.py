"""A value that stays until it changes, written so that TensorBoard draws it so."""

from __future__ import annotations

import math

from hpsearch.tensorboard.event_file import EventFiles

__all__ = ["Steps"]


class Steps:
    """One scalar of a run. TensorBoard joins points by straight lines, so that a change has a point before it.

    Of equal steps the last value counts: TensorBoard's data server drops what came before.

    Args:
        files: Where to.
        run: Its run.
        tag: Its name.
    """

    def __init__(self, files: EventFiles, run: str, tag: str) -> None:
        self._files, self._run, self._tag = files, run, tag
        self._held: tuple[float, int, float] | None = None  # (time, step, value) that isn't written
        self._last: tuple[int, float] | None = None  # (step, value) that is
        self._end = 0

    def put(self, when: float, step: int, value: float) -> None:
        """Set the value from a step on.

        Args:
            when: In seconds since the epoch.
            step: A former one counts as the last: what was taken back had its cost all the same.
            value: What it is.
        """
        step = self._end = max(step, self._end)
        if self._held is not None and self._held[1] < step and self._changes(self._held[2]):
            self.flush()
        self._held = when, step, value

    def flush(self) -> None:
        """Write what is held back: the newest step."""
        if self._held is None:
            return
        (when, step, value), self._held = self._held, None
        if self._last is not None:
            last_step, last = self._last
            if step == last_step and not self._changes(value):
                return
            if last_step < step - 1:  # also where it is the same: this step may get another value yet
                self._files.scalars(self._run, when, step - 1, [(self._tag, last)])
        self._files.scalars(self._run, when, step, [(self._tag, value)])
        self._last = step, value

    def _changes(self, value: float) -> bool:
        """Say whether a value is another one than was written last."""
        return self._last is None or not _same(value, self._last[1])


def _same(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))
