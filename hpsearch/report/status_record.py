"""How a study stands, for programs: plain JSON, with the keys that docs/looking.md lists."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hpsearch.report.study import Study
from hpsearch.trial import TrialRow

__all__ = ["status_record"]


def status_record(study: Study, holder: str | None) -> dict[str, Any]:
    """Give how a study stands.

    Args:
        study: As it was read.
        holder: The process that runs it now, `user@host:pid`; None when there is none.
    """
    rows, objective, total, labels = study.trials, study.sweep.objective, study.total, study.labels
    counts = Counter(row.state.value for row in rows)
    leaders = [row for row in study.leaders if row.feasible]
    return {
        "directory": str(study.directory),
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
        "best": [_best(study, row) for row in leaders],
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


def _best(study: Study, row: TrialRow) -> dict[str, Any]:
    checkpoint = study.checkpoint_path(row)
    names = (goal.name for goal in study.sweep.objective.goals)
    return {
        "trial": row.number,
        "values": dict(zip(names, row.values, strict=True)),
        "iteration": row.value_iteration,
        "params": study.sweep.parameters.nest(row.params),
        "checkpoint": None if checkpoint is None else str(checkpoint),
    }
