"""Count the shapes of a sweep's trials. Trials of one shape can be lanes of one computation."""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hpsearch.errors import Interrupted
from hpsearch.trainable.failures import failure_of
from hpsearch.trial import Trial
from hpsearch.worker.job import Job
from hpsearch.worker.output import OutputRedirect
from hpsearch.worker.process_settings import restored_settings
from hpsearch.worker.worker import Worker


@dataclass(frozen=True, slots=True)
class Shapes:
    """Shapes of the first trials of a sweep."""

    trials: int = 0
    """Number of trials that were built."""
    sizes: Sequence[int] = ()
    """Number of trials of each shape, largest first."""
    alone: Mapping[str, int] = field(default_factory=dict)
    """Number of trials by the reason why they can't be lanes."""
    failed: Mapping[str, int] = field(default_factory=dict)
    """Number of trials by the error of their build, or of training them on a few batches."""
    why_none: str | None = None
    """Why no trial of this trainable can be a lane."""
    tried: Mapping[int, float] = field(default_factory=dict)
    """Time of lanes of the largest shape relative to as many trials alone, by number of lanes."""


def shapes_of(job: Job, trials: Sequence[Trial], seconds: float) -> Shapes:
    """Build trials in this process, in sequence, and train some of the largest shape on a few batches.

    Args:
        job: Their job. Their output and the files in their directories are discarded.
        trials: New trials.
        seconds: Time after which no more are built.

    Raises:
        TrainableError: The trainable can't be imported, or isn't a trainable.
    """
    with tempfile.TemporaryDirectory(prefix="hpsearch-plan-") as root:
        worker = Worker(job, Path(root))
        try:
            if worker.why_whole is not None:
                return Shapes(why_none=worker.why_whole)
            with OutputRedirect().to(Path(os.devnull)), restored_settings():
                return _Builder(worker, job.lanes, job.rounded).shapes(trials, seconds)
        finally:
            worker.close()


class _Builder:
    def __init__(self, worker: Worker, lanes: int, rounded: bool) -> None:
        self._worker, self._lanes, self._rounded = worker, lanes, rounded
        self._alone: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()

    def shapes(self, trials: Sequence[Trial], seconds: float) -> Shapes:
        """Build trials until the time limit."""
        until = time.monotonic() + seconds
        by_key: defaultdict[Hashable, list[Trial]] = defaultdict(list)
        built = 0
        for trial in trials:
            if built and time.monotonic() > until:
                break
            built += 1
            if (key := self._key(trial)) is not None:
                by_key[key].append(trial)
        by_size = sorted(by_key.values(), key=len, reverse=True)
        tried = self._train_largest(by_size)
        return Shapes(built, [*map(len, by_size)], self._alone, self._failed, tried=tried)

    def _key(self, trial: Trial) -> Hashable:
        """Return a trial's shape; None if it has none, which is counted."""
        from hpsearch_trainers.lanes import NotFusible, shape_key

        try:
            return shape_key(self._worker.build(trial), rounded=self._rounded)
        except NotFusible as reason:
            self._alone[str(reason)] += 1
        except (KeyboardInterrupt, Interrupted):
            raise
        except BaseException as error:  # SystemExit is a user's mistake like any other
            self._failed[failure_of(error).message] += 1
        return None

    def _train_largest(self, by_size: list[list[Trial]]) -> Mapping[int, float]:
        """Train trials of the largest shape together and alone; skip it if they can't be trained together."""
        from hpsearch_trainers.lanes import NotFusible, check_pack, check_places

        if not by_size or len(by_size[0]) < 2:
            return {}
        count = min(len(by_size[0]), self._lanes)
        try:
            built = self._worker.build(by_size[0][0])
            if not self._rounded:
                return check_pack(built, count)
            check_places(built, self._lanes)
        except NotFusible as reason:
            self._alone[str(reason)] += len(by_size.pop(0))
        except (KeyboardInterrupt, Interrupted):
            raise
        except BaseException as error:
            self._failed[failure_of(error).message] += len(by_size.pop(0))
        return {}
