"""How a study stands, in the lines above its trials."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from hpsearch.report.layout import one_line
from hpsearch.report.wording import by_state, counted, duration, front_line, params_line
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
    """Describe a study, one line after the other.

    Args:
        study: As it stands.
        pasted: Its directory, as a shell takes it.
        problem: Why it can't be read any more; empty where it can.
    """
    yield Text.assemble((study.sweep.name, "bold"), f"  {study.sweep.objective.aim}  ", (pasted, "dim"))
    yield _state(study, pasted)
    total = study.total
    of_all = "" if total is None else f"; {total[0]:,} in all"
    yield Text(f"trials      {by_state(study.counts) or 'none yet'}{of_all}")
    yield Text(f"iterations  {_of(study.iterations, None if total is None else total[1])}{_workers(study)}")
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
    elif ended.state == "open":
        line.append(": its trials are asked for and told of")
    elif ended.state == "killed":
        line.append(f": its process ended without a word; go on with: hpsearch resume {pasted}")
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
    if study.is_told or study.ended.state not in ("running", "paused"):
        return ""
    workers = study.workers
    of_all = f" of {workers.ready:,}" if study.workers_are_told else ""
    told = f", {workers.busy:,}{of_all} workers busy" if of_all else f", {counted(workers.busy, 'worker')} busy"
    left = study.remaining()
    return told if left is None else f"{told}, about {duration(left)} left"


def _best(study: LiveStudy) -> Iterator[Text]:
    objective, leaders = study.sweep.objective, study.leaders
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


def _of(done: int, total: int | None) -> str:
    return f"{done:,}" if total is None else f"{done:,} of {total:,}"
