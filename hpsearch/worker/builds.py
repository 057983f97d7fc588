"""Check that building a trial changes nothing that other lanes may use."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from hpsearch.errors import TrainableError
from hpsearch.worker.lane import BuiltTrainer, Lane
from hpsearch.worker.module_values import ModuleValues, module_changes
from hpsearch.worker.parked import Parked

__all__ = ["unshared"]


@contextlib.contextmanager
def unshared(
    lane: Lane | None, beside: Sequence[Lane], parked: Parked[BuiltTrainer], modules: ModuleValues, *, rounded: bool
) -> Iterator[None]:
    """Check that the block, such as the build of a lane, changes no value of the trainable's modules.

    All lanes of a process share these values. If one changes, each other lane fails before it trains with the new
    value. Parked objects are dropped: those trials are built again from their checkpoints.

    Args:
        lane: The lane that is built; None: another segment has this process for itself.
        beside: The other lanes.
        parked: Objects of trials that don't run.
        modules: Modules of the trainable.
        rounded: Whether results depend on the number of trials per worker, so that a study can't change it.

    Raises:
        TrainableError: There are other lanes, and a value was changed.
    """
    others = [one for one in beside if one.standing is not None]
    if not others and not parked:
        yield
        return
    before = modules.look()
    problem = ""
    try:
        yield
    finally:
        if changes := module_changes(before):
            parked.drop(lambda _: True)
            if others and lane is not None:
                problem = _problem(lane, others, changes, rounded)
                for one in others:
                    with one.at_fault():
                        raise TrainableError(problem)
    if problem:
        raise TrainableError(problem)


def _problem(lane: Lane, others: Sequence[Lane], changes: Sequence[str], rounded: bool) -> str:
    numbers = sorted(one.assignment.number for one in others)
    alone = "in a new study without fuse: rounding" if rounded else "with --set resources.trials_per_worker=1"
    trials = f"trial{'s' if len(numbers) > 1 else ''} {_listed([*map(str, numbers)])}"
    return (
        f"what trials train with must be their own where a worker trains several, but building trial "
        f"{lane.assignment.number} changed {_listed(changes)}, which {trials} may train with from here on: "
        f"keep it in the trainer or in the model, as an attribute of it say, or train one trial at a time, {alone}"
    )


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
