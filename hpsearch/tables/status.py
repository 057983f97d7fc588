"""A study's state, as text and as JSON. docs/results.md lists the keys of the JSON."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from typing import Any

from hpsearch.results.study import Study
from hpsearch.study.stopping import CRITERIA
from hpsearch.tables.layout import one_line
from hpsearch.tables.wording import (
    amount_of,
    by_state,
    by_width,
    counted,
    duration,
    first_of,
    front_line,
    params_line,
    shortened,
    trials_named,
    up_to,
)
from hpsearch.trial import Failure, TrialRow, TrialState

_MOST_FAILURES = 5
_MOST_REVERTED = 5
_MOST_NAMED = 10
_MOST_RUNGS = 8

_WIDTH = 160


def status_text(study: Study, holder: str | None) -> str:
    """Describe a study.

    Args:
        study: The study.
        holder: Process that runs the study now, as `user@host:pid`; None if none does.
    """
    rows = study.trials
    lines = [f"{study.sweep.name}  {study.location}", f"state       {_state(study, holder)}"]
    labels = study.labels
    if labels.tags:
        lines.append(f"tags        {' '.join(labels.tags)}")
    if labels.note:
        lines.append(f"note        {one_line(labels.note)}")
    if study.rerun is not None:
        count, seeds = len(study.rerun.former), study.rerun.origin["seeds"]
        lines.append(
            f"rerun of    {study.rerun.directory}: {counted(count, 'configuration')}, {counted(seeds, 'run')} each"
        )
    states = by_state(Counter(row.state for row in rows))
    total = study.total
    lines.append(f"trials      {states or 'none yet'}" + ("" if total is None else f"; {total[0]:,} in all"))
    iterations = amount_of(study.iterations, None if total is None else total[1])
    where = "from ask to tell" if study.is_told else "in workers"
    lines.append(f"iterations  {iterations}, {duration(sum(row.seconds for row in rows))} {where}")
    if holder is not None:
        lines += _agents(study)
    lines += _leaders(study)
    lines += _widths(study)
    lines += _rungs(study)
    lines += _reverted(study)
    lines += _failures(study)
    return "\n".join(lines) + "\n"


def _agents(study: Study) -> list[str]:
    """Describe the agents of a running study, as of some seconds ago."""

    def doing(trial: int | None) -> str:
        return "idle" if trial is None else f"trial {trial}"

    try:
        rows = json.loads((study.directory / "agents" / "agents.json").read_bytes())
        named = [f"{row['host']} ({doing(row['trial'])})" for row in rows]
    except (OSError, ValueError, KeyError, TypeError):  # it doesn't run in agents
        return []
    return [f"agents      {len(named)}: {first_of(named, _MOST_NAMED)}"] if named else []


def _leaders(study: Study) -> list[str]:
    """Describe the best trial, or the Pareto front."""
    objective, leaders = study.sweep.objective, study.leaders
    if not leaders:
        return []
    if objective.several:
        lines = [f"front       {front_line(leaders, objective)}"]
        if leaders[0].feasible:
            pasted = shlex.quote(study.location)
            lines.append(f"            look at it with: hpsearch trials {pasted} --front")
        return lines
    (best,) = leaders
    goal = objective.goals[0].name
    broken = "" if best.feasible else f", which breaks {' and '.join(objective.broken(best.score))}, as all do"
    lines = [f"best        trial {best.number}: {goal} {best.values[0]!r} at {best.value_iteration}{broken}"]
    lines.append(f"            {params_line(best.params)}")
    further = {name: value for name, value in study.metrics_of(best).items() if name != goal}
    return [*lines, f"            reports {params_line(further)}"] if further else lines


def _open(study: Study) -> str:
    """Describe the open trials of an ask/tell study."""
    numbers = [row.number for row in study.trials if row.state is TrialState.RUNNING]
    waits = f"{trials_named(numbers, _MOST_NAMED)} to be told; " if numbers else ""
    return f"open: {waits}ask with: hpsearch ask {shlex.quote(study.location)}"


def way_on(study: Study, directory: str) -> str:
    """Return how to resume an unfinished study. `directory` is the path to show."""
    state = study.state
    resume = f"hpsearch resume {shlex.quote(directory)}"
    command = f"continue with: {resume}"
    if state == "max_time":
        return f"its limits.max_time, which is over all runs, is used up; {command} --set limits.max_time=TIME"
    if state in CRITERIA:
        changed = f"{_target_key(study)}=VALUE" if state == "target" else "limits.patience=TRIALS"
        return f"continue with another one, or null for none: {resume} --set {changed}"
    return command


def _target_key(study: Study) -> str:
    """Return the key of the target; with several goals, the key of the first goal that has a target."""
    objective = study.sweep.objective
    index = next((index for index, goal in enumerate(objective.goals) if goal.target is not None), 0)
    return f"metric.{index}.target" if objective.several else "metric.target"


def _state(study: Study, holder: str | None) -> str:
    state, message, onward = study.state, study.message, way_on(study, study.location)
    known = {
        "running": f"running in {holder}",
        "paused": f"paused {message}, in {holder}\n            {onward}",
        "cancelled": f"cancelled {message}; {onward}",
        "not begun": f"not begun; begin with: hpsearch resume {shlex.quote(study.location)}",
        "killed": f"killed: its process died; {onward}",
        "open": _open(study),
        "finished": "finished",
    }
    if state in known:
        return known[state]
    mend = "" if state in CRITERIA else "mend it and "
    return f"{state}: {message}\n            {mend}{onward}" if message else f"{state}; {onward}"


def _rungs(study: Study) -> list[str]:
    open_rungs = [rung for rung in study.rungs if rung.size is None or rung.finished < rung.size]
    lines = [
        f"rung        bracket {rung.bracket}, {up_to(rung.until, study.sweep.resource)}: "
        f"{rung.finished:,}{_of(rung.size)} finished, {rung.started:,} started"
        for rung in open_rungs[:_MOST_RUNGS]
    ]
    if len(open_rungs) > _MOST_RUNGS:
        lines.append(f"            and {counted(len(open_rungs) - _MOST_RUNGS, 'more rung')} open")
    return lines


def _of(size: int | None) -> str:
    return "" if size is None else f" of {size:,}"


def _widths(study: Study) -> list[str]:
    """Return the number of segments by width; empty if every trial has one worker."""
    if study.sweep.resources.widest == 1 and all(row.width == 1 for row in study.trials):
        return []
    segments = study.segments()
    widths = by_width(Counter(segment.width for segment in segments), "segment")
    running = Counter(segment.width for segment in segments if segment.ended == "running")
    now = f"; running now: {by_width(running, 'trial')}" if running else ""
    return [f"widths      {widths or 'no segment yet'}{now}"]


def _reverted(study: Study) -> list[str]:
    """Return the trials that were reverted to fewer workers, and why."""
    rows = [row for row in study.trials if row.reverted]
    lines = [f"taken back  trial {row.number}: {shortened(row.reverted, _WIDTH)}" for row in rows[:_MOST_REVERTED]]
    if len(rows) > _MOST_REVERTED:
        lines.append(
            f"            and {len(rows) - _MOST_REVERTED} more: hpsearch trials {shlex.quote(study.location)}"
        )
    return lines


def _failures(study: Study) -> list[str]:
    """Return each kind of failure once, with one traceback and the failed trials."""
    kinds = failures_by_kind(study)
    lines = []
    for first, struck in list(kinds.values())[:_MOST_FAILURES]:
        lines.append(f"failed      {shortened(first.message, _WIDTH)}")
        lines.append(f"            {trials_named(struck, _MOST_NAMED)}")
        lines += [f"            | {line}" for line in first.traceback.strip().splitlines()]
    if len(kinds) > _MOST_FAILURES:
        more = counted(len(kinds) - _MOST_FAILURES, "more kind")
        lines.append(f"            and {more}: hpsearch trials {shlex.quote(study.location)}")
    return lines


def failures_by_kind(study: Study) -> dict[str, tuple[Failure, list[int]]]:
    """Group the failed trials by kind of failure, in order of the first trial.

    Returns:
        For each kind, the failure of the first trial and the numbers of all trials.
    """
    kinds: dict[str, tuple[Failure, list[int]]] = {}
    for row in study.trials:
        if row.failure is not None:
            kinds.setdefault(_kind(row.failure), (row.failure, []))[1].append(row.number)
    return kinds


def _kind(failure: Failure) -> str:
    """Return the kind of a failure: the traceback without its last line, or the message if there is no traceback."""
    where, _, _ = failure.traceback.strip().rpartition("\n")
    return where or failure.message


def status_record(study: Study, holder: str | None) -> dict[str, Any]:
    """Return a study's state as JSON values.

    Args:
        study: The study.
        holder: Process that runs the study now, as `user@host:pid`; None if none does.
    """
    rows, objective, total, labels = study.trials, study.sweep.objective, study.total, study.labels
    counts = Counter(row.state.value for row in rows)
    leaders = [row for row in study.leaders if row.feasible]
    return {
        "directory": study.location,
        "name": study.sweep.name,
        "state": study.state,
        "message": study.message or None,
        "process": holder,
        "created": study.created,
        "tags": list(labels.tags),
        "note": labels.note or None,
        "goals": [{"name": goal.name, "goal": goal.goal, "target": goal.target} for goal in objective.goals],
        "trials": {state: counts.get(state, 0) for state in ("waiting", "running", "complete", "stopped", "failed")},
        "trials_in_all": None if total is None else total[0],
        "iterations": study.iterations,
        "iterations_in_all": None if total is None else total[1],
        "seconds": sum(row.seconds for row in rows),
        "best": [_best_record(study, row) for row in leaders],
        "rungs": [
            {
                "bracket": rung.bracket,
                "rung": rung.rung,
                "until": rung.until,
                "trials": rung.size,
                "started": rung.started,
                "finished": rung.finished,
            }
            for rung in study.rungs
        ],
        "failed": [
            {"trial": row.number, "kind": row.failure.kind, "message": row.failure.message}
            for row in rows
            if row.failure is not None
        ],
    }


def _best_record(study: Study, row: TrialRow) -> dict[str, Any]:
    checkpoint = study.checkpoint_path(row)
    names = (goal.name for goal in study.sweep.objective.goals)
    return {
        "trial": row.number,
        "values": dict(zip(names, row.values, strict=True)),
        "iteration": row.value_iteration,
        "params": study.sweep.parameters.nest(row.params),
        "checkpoint": None if checkpoint is None else str(checkpoint),
    }
