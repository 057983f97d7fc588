"""What a sweep would run: the orchestrator and the scheduler themselves, on the simulated backend."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hpsearch.backends.base import Workers
from hpsearch.backends.simulated import SimulatedBackend
from hpsearch.course import Course
from hpsearch.events import Event, Opened, Started
from hpsearch.interrupts import Interrupts
from hpsearch.job import Job
from hpsearch.journal import Journal
from hpsearch.observers.base import Audience
from hpsearch.orchestrator import Orchestrator
from hpsearch.provenance import command_line, process_name
from hpsearch.schedulers.base import Decision, RungView
from hpsearch.sweep import Limits, Sweep
from hpsearch.trial import Report, Segment, Trial

__all__ = ["Plan", "make_plan", "plan_text", "simulate"]

_MOST_BRACKETS = 12
"""Brackets that the text lists one by one."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a sweep would run."""

    sweep: Sweep
    rungs: Sequence[RungView]
    trials: int
    segments: int
    """Trial-rungs: one for each rung that a trial runs in."""
    iterations: int
    """When each promotion resumes from its checkpoint."""
    iterations_from_zero: int
    """When the trainable saves no checkpoints."""
    workers: int
    makespan: float
    """In iterations, when all take equally long."""


class _Counter:
    """An audience that counts segments and the iterations they would take from zero."""

    def __init__(self) -> None:
        self.segments = 0
        self.from_zero = 0

    def observe(self, event: Event, decisions: Sequence[Decision]) -> None:
        if isinstance(event, Started):
            self.segments += 1
            self.from_zero += event.segment.end or 1

    def report(self, reports: Sequence[Report]) -> None: ...

    def say(self, text: str) -> None: ...

    def look(self, course: Course, workers: Workers, elapsed: float, last: bool) -> None: ...


def make_plan(sweep: Sweep, workers: int | None) -> Plan:
    """Run a sweep on a virtual clock where each iteration takes one second.

    Args:
        sweep: What would be run; its limits don't count.
        workers: Side by side; None: one per CPU's worth of this machine.
    """
    workers = workers or max((os.cpu_count() or 1) // sweep.resources.cpus_per_worker, 1)
    counter = _Counter()
    backend = SimulatedBackend(workers, _made_up_metric, _one_second_each)
    course = simulate(sweep, backend, counter)
    return Plan(
        sweep=sweep,
        rungs=course.rungs(),
        trials=len(course.rows()),
        segments=counter.segments,
        iterations=course.iterations,
        iterations_from_zero=counter.from_zero,
        workers=workers,
        makespan=backend.now(),
    )


def simulate(sweep: Sweep, backend: SimulatedBackend, audience: Audience | None = None) -> Course:
    """Run a sweep on a simulated backend, through the orchestrator, with a journal in memory."""
    course = Course(sweep)
    journal = Journal.in_memory({"sweep": sweep.to_json()})
    opened = Opened(backend.name, None, process_name(), command_line())
    journal.append([opened])
    course.apply(opened)
    with journal:
        orchestrator = Orchestrator(
            replace(sweep, limits=Limits()), course, journal, backend, audience or _Counter(), Interrupts()
        )
        orchestrator.run(_job(sweep))
    return course


def plan_text(plan: Plan) -> str:
    """Give the plan as a person reads it."""
    lines = [f"{plan.sweep.name}: {_method(plan.sweep)}", ""]
    brackets: dict[int, list[RungView]] = {}
    for rung in plan.rungs:
        brackets.setdefault(rung.bracket, []).append(rung)
    for bracket, rungs in list(brackets.items())[:_MOST_BRACKETS]:
        steps = ", then ".join(f"{rung.size} to iteration {rung.until}" for rung in rungs)
        lines.append(f"  bracket {bracket}: {steps}")
    if len(brackets) > _MOST_BRACKETS:
        lines.append(f"  ... and {len(brackets) - _MOST_BRACKETS} more brackets")
    lines += [
        "",
        f"trials       {plan.trials:,}",
        f"trial-rungs  {plan.segments:,}",
    ]
    if plan.sweep.iterations is None:
        lines.append("iterations   unknown: no max_iter is given; each trial runs until its trainable returns")
        return "\n".join(lines) + "\n"
    lines.append(f"iterations   {plan.iterations:,} when each promotion resumes from its checkpoint")
    if plan.iterations_from_zero != plan.iterations:
        lines.append(
            f"             {plan.iterations_from_zero:,} from zero: a trainable that saves no checkpoints starts each"
            " promotion anew"
        )
    busy = plan.iterations / (plan.workers * plan.makespan)
    workers = "1 worker" if plan.workers == 1 else f"{plan.workers:,} workers"
    lines.append(f"makespan     {plan.makespan:,.0f} iterations long on {workers}, which are busy {busy:.0%} of it")
    return "\n".join(lines) + "\n"


def _method(sweep: Sweep) -> str:
    how = sweep.method
    early = sweep.early_terminate
    if early is None:
        return f"{how}, every trial to its end"
    kind = type(early).__name__
    return f"{how}, {kind} from {early.min_iter} to {early.max_iter} iterations by {early.eta}"


def _job(sweep: Sweep) -> Job:
    return Job(
        study="",
        name=sweep.name,
        trainable="",
        search_path=(),
        metric=sweep.metric.name,
        save_every=None,
        max_iter=sweep.iterations,
        threads=1,
        paths={},
    )


def _made_up_metric(trial: Trial, iteration: int) -> float:
    """Any fixed order of the trials will do: the plan doesn't depend on who wins."""
    return float(trial.seed)


def _one_second_each(trial: Trial, segment: Segment) -> float:
    return float((segment.end or segment.start + 1) - segment.start)
