"""A study's state, in the lines above its trials."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from hpsearch.tables.layout import one_line
from hpsearch.tables.wording import amount_of, by_state, counted, duration, front_line, params_line
from hpsearch.trial import TrialState
from hpsearch.watch.live_study import LiveStudy

__all__ = ["header_lines"]

_STYLES = {
    "running": "bold cyan",
    "open": "bold cyan",
    "paused": "bold yellow",
    "killed": "bold red",
    "error": "bold red",
}


def header_lines(study: LiveStudy, pasted: str, problem: str = "") -> Iterator[Text]:
    """Describe a study in lines.

    Args:
        study: The study.
        pasted: Its directory, quoted for a shell.
        problem: Why it can't be read any more; empty if it can.
    """
    yield Text.assemble((study.sweep.name, "bold"), f"  {study.sweep.objective.aim}  ", (pasted, "dim"))
    yield _state(study, pasted)
    total = study.journaled.total
    of_all = "" if total is None else f"; {total[0]:,} in all"
    yield Text(f"trials      {by_state(study.journaled.counts()) or 'none yet'}{of_all}")
    yield Text(
        f"iterations  {amount_of(study.journaled.iterations, None if total is None else total[1])}{_workers(study)}"
    )
    yield from _best(study)
    if study.failure is not None:
        trial, message = study.failure
        yield Text(f"failed      trial {trial}: {one_line(message)}", "red")
    if problem:
        yield Text(f"no news     {one_line(problem)}", "bold red")


def _state(study: LiveStudy, pasted: str) -> Text:
    ended = study.ended
    line = Text("state       ")
    line.append(ended.state, _STYLES.get(ended.state, "bold"))
    message = one_line(ended.message)
    if ended.state == "paused":
        line.append(f" {message}, in {study.holder}")
    elif ended.state == "cancelled":
        line.append(f" {message}{_way_on(ended.state, pasted)}")
    elif ended.state == "open":
        line.append(": used with ask and tell")
    elif ended.state == "killed":
        line.append(f": its process died; continue with: hpsearch resume {pasted}")
    elif ended.state == "not begun":
        line.append(f"; begin with: hpsearch resume {pasted}")
    elif ended.state == "running":
        line.append(f" in {study.holder}")
    else:
        line.append((f": {message}" if message else "") + _way_on(ended.state, pasted))
    return line


def _way_on(state: str, pasted: str) -> str:
    return "" if state == "finished" else f"; see: hpsearch status {pasted}"


def _workers(study: LiveStudy) -> str:
    if study.is_ask_tell or study.ended.state not in ("running", "paused"):
        return ""
    remaining = study.remaining()
    return _busy(study) if remaining is None else f"{_busy(study)}, ~{duration(remaining)} left"


def _busy(study: LiveStudy) -> str:
    workers, is_known = study.workers, study.workers_are_known
    if study.sweep.resources.lanes > 1:  # the journal doesn't record which worker has a trial
        running = counted(study.journaled.counts().get(TrialState.RUNNING, 0), "trial")
        return f", {running} on {counted(workers.ready, 'worker')}" if is_known else f", {running} at once"
    if is_known:
        return f", {workers.busy:,} of {workers.ready:,} workers busy"
    return f", {counted(workers.busy, 'worker')} busy"


def _best(study: LiveStudy) -> Iterator[Text]:
    objective, leaders = study.sweep.objective, study.journaled.leaders()
    if not objective.goals:
        return
    if not leaders or objective.several:
        yield Text(f"{'front' if objective.several else 'best':<12}{front_line(leaders, objective)}")
        return
    best, line = leaders[0], Text("best        ")
    line.append(f"{objective.title} {best.values[0]:.6g}", "bold green" if best.feasible else "yellow")
    line.append(f", trial {best.number} after {counted(best.value_iteration, 'iteration')}")
    if not best.feasible:
        line.append(f", which breaks {' and '.join(objective.broken(best.score))}")
    yield line
    yield Text(f"            {one_line(params_line(study.sweep.parameters.nest(best.params)))}")
