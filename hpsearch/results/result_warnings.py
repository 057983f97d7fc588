"""Warnings about results that suggest a bug in the trainable: no values, or parameters without effect."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from hpsearch.results.study import Study
from hpsearch.space import Derived, Space
from hpsearch.sweep.parallel import SECTION
from hpsearch.trial import TrialRow, TrialState

FEWEST = 5
"""Smallest number of equal results that causes a warning."""

_MOST = 5_000
"""Largest number of trials that are compared. Later ones are ignored."""

Group = list[list[TrialRow]]
"""Trials that differ in only one param, grouped by its value."""


def result_warnings(study: Study) -> list[str]:
    """Return warnings about a study's results, each a sentence; empty if there are none."""
    title = study.sweep.objective.title
    if study.rerun is not None or not study.sweep.objective.goals or not study.count:
        return []
    rows = [row for row in study.trials if row.score is not None]
    if not any(row.standing is not None for row in rows):
        if not any(row.failure or row.metrics for row in study.trials):  # the study ended too early to judge
            return []
        return [f"{study.directory}: {without_value(study)}{_first_failure(study)}"]
    if all_alike(rows):
        return [f"the params made no difference to {title}: does the training get them?"]
    return [
        f"{name} changed nothing: trials that differ in {name} alone reported the same {title}, to the last digit: "
        "does the training get it?"
        for name in _without_effect(study, [row for row in rows[:_MOST] if row.parent is None])
    ]


def without_value(study: Study) -> str:
    """Return a description of how trials ended, for a study in which none has a value."""
    counts = Counter(row.state for row in study.trials)
    states = ", ".join(f"{count} {state}" for state, count in counts.items())
    # Every report has the metrics as numbers: a missing value is NaN.
    reported = sum(bool(row.metrics) for row in study.trials if row.state is not TrialState.FAILED)
    if study.configurations:
        return f"no configuration has a value in all its repeats (trials: {states})"
    return f"no trial has a value ({states})" + (f"; {reported} reported NaN" if reported else "")


def _first_failure(study: Study) -> str:
    failed = next((row for row in study.trials if row.failure is not None), None)
    return "" if failed is None or failed.failure is None else f"; trial {failed.number}: {failed.failure.message}"


def all_alike(rows: Sequence[TrialRow]) -> bool:
    """Return whether trials with different params always have the same value after the same number of iterations.

    Args:
        rows: Trials with values.
    """
    by_length: defaultdict[tuple[int, int], set[tuple[float, ...]]] = defaultdict(set)
    for row in rows:
        by_length[_length(row)].add(row.values)
    params = {json.dumps(row.params, sort_keys=True) for row in rows}
    return (
        len(params) >= FEWEST
        and len(params) >= 2 * len(by_length)
        and all(len(values) == 1 for values in by_length.values())
    )


def _length(row: TrialRow) -> tuple[int, int]:
    """Return the number of iterations, and the repeat, whose seed only other trials of that repeat have."""
    return row.iterations, 0 if row.repeated is None else row.repeated.repeat


def _without_effect(study: Study, rows: Sequence[TrialRow]) -> list[str]:
    """Return the parameters without effect: trials that differ only in such a parameter have the same curve."""
    candidates = {
        name: groups
        for name, groups in _differing_in_one(rows, study.sweep.parameters)
        if sum(len(members) for group in groups for members in group) >= FEWEST
        and all(_is_one(row.values for members in group for row in members) for group in groups)
    }
    if not candidates:
        return []
    curves = {trial: repr(curve) for trial, curve in study.scores().items()}  # as strings, in which NaN equals NaN
    return [
        name
        for name, groups in candidates.items()
        if all(_is_one(curves[row.number] for members in group for row in members) for group in groups)
    ]


def _differing_in_one(rows: Sequence[TrialRow], space: Space) -> Iterator[tuple[str, list[Group]]]:
    """Yield each parameter with groups of trials that differ only in it and ran for the same number of iterations.

    Derived parameters follow from others, and parameters of parallel training needn't be read by the trainable.
    """
    varying: dict[str, bool] = {}
    for name in (name for row in rows for name in row.params):
        if name not in varying:
            parameter = space.find(name)
            derived = parameter is None or isinstance(parameter.distribution, Derived)
            varying[name] = not derived and not name.startswith(f"{SECTION}.")
    keys = [{name: hash((name, json.dumps(row.params[name]))) for name in row.params if varying[name]} for row in rows]
    totals = [sum(hashes.values()) + hash(_length(row)) for row, hashes in zip(rows, keys, strict=True)]
    for name in varying:
        groups: defaultdict[int, defaultdict[int, list[TrialRow]]] = defaultdict(lambda: defaultdict(list))
        for row, hashes, total in zip(rows, keys, totals, strict=True):
            if name in hashes:
                groups[total - hashes[name]][hashes[name]].append(row)
        yield name, [list(by_value.values()) for by_value in groups.values() if len(by_value) > 1]


def _is_one(values: Iterable[object]) -> bool:
    return len(set(values)) == 1
