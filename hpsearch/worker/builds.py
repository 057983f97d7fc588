"""Sees that building a trial changes nothing that the training of those beside it reads."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from hpsearch.errors import TrainableError
from hpsearch.worker.lane import Lane, Standing
from hpsearch.worker.parked import Parked

if TYPE_CHECKING:
    from hpsearch_trainers.lanes.reading import Place

__all__ = ["unshared"]

_MOST = 3
"""Of what a message names."""


@contextlib.contextmanager
def unshared(lane: Lane | None, beside: Sequence[Lane], parked: Parked[Standing], *, rounded: bool) -> Iterator[None]:
    """Let what runs inside, the build of a lane say, change nothing that others train with.

    Each lane beside it that reads what was changed fails, before it trains with that. What is parked and reads it is
    dropped: such a trial is built again, from its checkpoint, when it goes on.

    Args:
        lane: What is built; None: another segment has this process for itself.
        beside: Lanes that train.
        parked: What trials have left.
        rounded: Whether results depend on how many trials a worker trains, so that a study can't change it.

    Raises:
        TrainableError: A lane beside it reads what was changed.
    """
    from hpsearch_trainers.lanes import read

    others = [one.standing for one in beside if one.standing is not None]
    if not others and not parked:
        yield
        return
    before = read(one.reads for one in (*others, *parked))
    problem = ""
    try:
        yield
    finally:
        if changed := before.changed(read(one.reads for one in (*others, *parked))):
            parked.drop(lambda one: bool(_read_by(one, changed)))
            hit = {one: found for one in beside if one.standing and (found := _read_by(one.standing, changed))}
            if hit and lane is not None:
                names = dict.fromkeys(
                    before.told(place) for place in changed if any(place in of for of in hit.values())
                )
                problem = _problem(lane, [*hit], [*names], rounded)
                for one in hit:
                    with one.at_fault():
                        raise TrainableError(problem)
    if problem:
        raise TrainableError(problem)


def _read_by(standing: Standing, places: Sequence[Place]) -> list[Place]:
    """Give those of some places that a trial's training reads."""
    from hpsearch_trainers.lanes import read

    of_it = read([standing.reads])
    return [place for place in places if of_it.reaches(place)]


def _problem(lane: Lane, hit: Sequence[Lane], changed: Sequence[str], rounded: bool) -> str:
    numbers = sorted(one.assignment.number for one in hit)
    alone = "in a new study without fuse: rounding" if rounded else "with --set resources.trials_per_worker=1"
    others = f"trial{'s' if len(numbers) > 1 else ''} {_listed([*map(str, numbers)])}"
    return (
        f"what trials train with must be their own where a worker trains several, but building trial "
        f"{lane.assignment.number} changed {_listed(changed)}, which {others} would have trained with from here on: "
        f"keep it in the trainer or in the model, as an attribute of it say, or train one trial at a time, {alone}"
    )


def _listed(words: Sequence[str]) -> str:
    shown = [*words[:_MOST], *([f"{len(words) - _MOST} more"] if len(words) > _MOST else [])]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
