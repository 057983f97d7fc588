"""The outcome of a segment that several workers run together, from the ends of these workers.

A segment of width 1 is a gang of one. This module starts no processes, and the caller passes the time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from hpsearch.events import Lost
from hpsearch.task import Company, Result, Task
from hpsearch.trial import Failure

LossKind = Literal["died", "spared", "timeout", "late"]

GRACE_SECONDS = 10.0
"""How long the other workers of a gang may continue alone. A worker that uses its group notices the end at once."""


CLOSE_SECONDS = 10.0
"""How long an object's `close()` may take."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A worker of a gang was lost before it returned."""

    reason: str
    kind: LossKind = "died"
    """Why it was lost. `spared`: its task hadn't begun or shared the worker with others, or the worker was ended on
    purpose. `timeout`: it was killed for exceeding the trial's timeout. `late`: it was killed for continuing alone."""
    seconds: float = 0.0
    """Seconds for which it had run the task."""
    company: Company = ()
    """If several trials shared the worker: the trials that will share a worker again with this one."""


def halved(trials: Iterable[int]) -> dict[int, Company]:
    """Split the trials that shared a dead worker into halves, to find the trial that killed it.

    Args:
        trials: Two or more trials.

    Returns:
        Each trial's half. The first half has one more trial if the number is odd.
    """
    in_order = sorted(trials)
    middle = (len(in_order) + 1) // 2
    halves = tuple(in_order[:middle]), tuple(in_order[middle:])
    return {trial: half for half in halves for trial in half}


class Gang:
    """The workers that run one task, by rank, and how they ended."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self._results: dict[int, Result] = {}
        self._losses: dict[int, Loss] = {}  # in order of arrival
        self._alone_since: float | None = None

    def landed(self, rank: int, result: Result, now: float) -> None:
        """Record that a worker returned."""
        self._results[rank] = result
        if rank == 0 or result.failure is not None:
            self._leave_alone(now)

    def lost(self, rank: int, loss: Loss, now: float) -> None:
        """Record that a worker was lost."""
        self._losses[rank] = loss
        self._leave_alone(now)

    def is_late(self, now: float) -> bool:
        """Return whether the remaining workers have run too long since rank 0 ended or the gang broke."""
        return self._alone_since is not None and now - self._alone_since > GRACE_SECONDS

    def outcome(self) -> Result | Lost | None:
        """Return the task's outcome; None until all workers of the gang have ended."""
        if len(self._results) + len(self._losses) < self.task.segment.width:
            return None
        key = self.task.key
        for rank, loss in self._losses.items():
            if loss.kind == "timeout":
                return self.task.timed_out(f" ({loss.reason})", loss.seconds)
            if loss.kind != "late":
                reason = self._of(rank, loss.reason)
                return Lost(*key, reason, loss.kind == "died", loss.seconds, company=loss.company)
        failures = {rank: result.failure for rank, result in sorted(self._results.items()) if result.failure}
        for rank, failure in failures.items():
            if failure.kind != "peer":
                return self._failed(rank, replace(failure, message=self._of(rank, failure.message)))
        if not failures:
            return self._results[0]
        rank, failure = next(iter(failures.items()))
        in_order = [rank for rank in sorted(self._results) if rank not in failures]
        if in_order and not self._losses:  # a late worker may be the needed rank, and have died unnoticed
            return self._failed(in_order[0], self._unlike(in_order[0], rank))
        return Lost(*key, self._of(rank, failure.message), seconds=self._results[rank].seconds)

    def _leave_alone(self, now: float) -> None:
        if self._alone_since is None:
            self._alone_since = now

    def _failed(self, rank: int, failure: Failure) -> Result:
        """Combine the failure of a rank with the reports of rank 0, if rank 0 returned."""
        result = self._results.get(0, self._results[rank])
        return replace(result, checkpoint=None, cut=False, failure=failure)

    def _unlike(self, ended: int, other: int) -> Failure:
        there = self._results[other]
        assert there.failure is not None, "it was chosen for its failure"
        message = (
            f"all workers of a trial must run the same iterations and call the same operations, but rank {ended} ended "
            f"after iteration {self._results[ended].iteration} and rank {other}, at iteration {there.iteration}, still "
            f"needed it ({there.failure.message}): call trial.report() and the group's operations in the same order on "
            "every rank"
        )
        return Failure("contract", message, there.failure.traceback, there.failure.key)

    def _of(self, rank: int, reason: str) -> str:
        """Prefix a reason with its rank, if there are several workers."""
        width = self.task.segment.width
        return reason if width == 1 else f"rank {rank} of {width}: {reason}"
