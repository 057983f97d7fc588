"""The part of a plan on lanes: which trials can be trained together."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from hpsearch.config.import_paths import is_table
from hpsearch.errors import TrainableError
from hpsearch.run.plan import Plan
from hpsearch.run.study_run import job_of
from hpsearch.tables.wording import counted, shortened
from hpsearch.worker.shapes import Shapes, shapes_of

__all__ = ["lanes_lines", "shapes_lines"]

_MOST_REASONS = 3
_LONGEST = 100

_SECONDS = 10.0
"""For which trials are built."""


def shapes_lines(plan: Plan, search_path: Sequence[str]) -> list[str]:
    """Build the first trials of a plan with lanes, and describe which can be trained together.

    Args:
        plan: The plan.
        search_path: Folders in which the trainable is looked for first.
    """
    sweep, lanes = plan.sweep, plan.sweep.resources.lanes
    if lanes == 1:
        return []
    if sweep.trainable is None or is_table(sweep.trainable):
        reason = (
            "a script has a process of its own" if sweep.trainable is None else "recorded trainings are played back"
        )
        return lanes_lines(lanes, Shapes(why_none=reason))
    job = job_of(sweep, "", sweep.trainable, search_path, os.environ.get("MKL_CBWR", "AUTO"))
    job = replace(job, save_every=None, widest=1, packs=True)
    try:
        shapes = shapes_of(job, plan.first, _SECONDS)
    except TrainableError as error:
        shapes = Shapes(why_none=shortened(str(error), _LONGEST))
    lines = lanes_lines(lanes, shapes)
    if (makespan := lanes_makespan(plan, shapes)) is not None:
        lines.append(
            f"{'':<13}makespan about {makespan:.3g} iterations of a trial alone, in place of {plan.makespan:.3g}"
        )
    return lines


def lanes_makespan(plan: Plan, shapes: Shapes) -> float | None:
    """Return the makespan of a sweep with trials of one shape, in iterations of a trial alone on a worker.

    Args:
        plan: The sweep's plan.
        shapes: Shapes of its first trials.

    Returns:
        The makespan; None if it isn't shorter, or unknown.
    """
    resources = plan.sweep.resources
    if len(shapes.sizes) != 1 or shapes.alone or len(shapes.tried) < 2 or plan.sweep.iterations is None:
        return None
    rounds = [count * ratio for count, ratio in shapes.tried.items()]  # a round: each trial runs an iteration
    each, base = statistics.linear_regression(list(shapes.tried), rounds)
    longest = max(plan.iterations / (plan.workers * resources.lanes), *(float(rung.until or 0) for rung in plan.rungs))
    makespan = max(base, 0.0) * longest + max(each, 0.0) * max(plan.iterations / plan.workers, longest)
    return makespan if makespan < plan.makespan and not plan.sweep.unbounded else None


def lanes_lines(lanes: int, shapes: Shapes) -> list[str]:
    """Describe the number of shapes of the first trials, and the speed of training them together.

    Args:
        lanes: Lanes of a worker.
        shapes: Shapes of the first trials.
    """
    return [f"{'' if index else 'lanes':<13}{line}" for index, line in enumerate(_describe_lanes(lanes, shapes))]


def _describe_lanes(lanes: int, shapes: Shapes) -> Iterator[str]:
    most = f"up to {counted(lanes, 'trial')} per worker"
    if shapes.why_none is not None:
        yield f"none, though {most} are asked for: {shapes.why_none}"
        return
    shapes_text = "" if not shapes.sizes else f" have {counted(len(shapes.sizes), 'shape')}"
    if len(shapes.sizes) > 1:
        shapes_text += f", the largest {counted(shapes.sizes[0], 'trial')}"
    yield f"{most}; the first {counted(shapes.trials, 'trial')}{shapes_text}" if shapes_text else f"{most}"
    if shapes.tried:
        count, ratio = max(shapes.tried.items())
        gain = (
            f"about {ratio:.1f} of the time of each alone"
            if ratio < 1
            else "longer than each alone, and so aren't fused"
        )
        yield f"{count} of {'one shape' if len(shapes.sizes) > 1 else 'them'}, tried here for two batches, take {gain}"
    yield from _counted(shapes.alone, "trains alone", "train alone")
    yield from _counted(shapes.failed, "can't be built", "can't be built")


def _counted(reasons: Mapping[str, int], singular: str, plural: str) -> Iterator[str]:
    ranked = sorted(reasons.items(), key=lambda item: -item[1])
    for reason, count in ranked[:_MOST_REASONS]:
        yield f"{count:,} {singular if count == 1 else plural}: {shortened(reason, _LONGEST)}"
    if len(ranked) > _MOST_REASONS:
        more = sum(count for _, count in ranked[_MOST_REASONS:])
        reasons_left = counted(len(ranked) - _MOST_REASONS, "other reason")
        yield f"{more:,} {singular if more == 1 else plural}, for {reasons_left}"
