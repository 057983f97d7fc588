"""Plan a sweep, by running the orchestrator and the scheduler on the simulated backend."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hpsearch.backends.simulated import SimulatedBackend
from hpsearch.config.import_paths import is_table
from hpsearch.errors import SweepError, TrainableError
from hpsearch.events import Finished, Started
from hpsearch.objective import Objective, without_targets
from hpsearch.objective.repeats import FIRST_TEST
from hpsearch.observers.base import Record
from hpsearch.run.reproducibility import gpu_notes, parallel_notes
from hpsearch.run.simulate import Nobody, simulate
from hpsearch.schedulers import settings_named
from hpsearch.schedulers.base import RungView
from hpsearch.schedulers.halving import Halving
from hpsearch.searchers import KNOWN, GridSearcher, RandomSearcher, refusals
from hpsearch.simulation import Simulation, Step
from hpsearch.simulation.simulation import EFFICIENCY
from hpsearch.study.state import SweepState
from hpsearch.sweep.parts import Limits, Search
from hpsearch.sweep.sweep import Sweep
from hpsearch.tables.wording import counted, shortened, up_to
from hpsearch.trial import Segment, Trial
from hpsearch.worker.job import job_of
from hpsearch.worker.shapes import Shapes, shapes_of

_MOST_BRACKETS = 12
"""Maximum number of brackets that the text lists one by one."""

_MOST_FIRST = 64

_COST = "hpsearch_cost"
"""The made-up metric by which the rungs of a plan end, where those of the sweep end by costs."""

_DRAWS, _CALLED_DRAWS = 1_000, 100
"""Samples to estimate the share of valid configurations; fewer if a function is called for each."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """The makespan and load of a sweep's segments, if all iterations take the same time on one worker."""

    makespan: float
    """In iterations on one worker."""
    busy: float
    """Fraction of the workers' time that is spent on segments."""
    widths: Mapping[tuple[int, int], Sequence[int]]
    """(bracket, rung) to the distinct widths of its segments, in ascending order."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a sweep would run; if unbounded, its first trials."""

    sweep: Sweep
    rungs: Sequence[RungView]
    trials: int
    segments: int
    """Number of (trial, rung) pairs that run."""
    iterations: int
    """Iterations if each promotion resumes from its checkpoint."""
    iterations_from_zero: int
    """Iterations if the trainable saves no checkpoints."""
    workers: int
    fixed: Schedule
    """Schedule if all trials run on `workers_per_trial` workers."""
    elastic: Schedule | None
    """Schedule if trials may be widened; None if they may not."""
    first: Sequence[Trial]
    """The first trials that it creates; for a method that learns, random ones in place of its suggestions."""

    @property
    def makespan(self) -> float:
        """In iterations on one worker."""
        return (self.elastic or self.fixed).makespan


class _Counter(Nobody):
    """Counts segments, the iterations they would take from zero, and the workers' time.

    Args:
        cost: Cost of each iteration, if rungs end by costs.
    """

    def __init__(self, cost: float) -> None:
        self._cost = cost
        self.segments: set[tuple[int, int]] = set()
        """(trial, until): one for each rung that a trial ran in."""
        self.widths: dict[tuple[int, int], set[int]] = {}
        """(bracket, rung) to the widths that its segments had."""
        self.from_zero = 0
        self.worked = 0.0
        self._running: dict[int, int] = {}  # trial to its width

    def observe(self, record: Record) -> None:
        event = record.event
        if isinstance(event, Started):
            segment = event.segment
            until = segment.end or 1
            if segment.costs is not None:
                until = math.ceil(segment.costs.end / self._cost)
            self._running[segment.trial] = segment.width
            if (segment.trial, until) not in self.segments:
                self.segments.add((segment.trial, until))
                self.from_zero += until
            self.widths.setdefault((event.bracket, event.rung), set()).add(segment.width)
        elif isinstance(event, Finished):
            self.worked += event.seconds * self._running[event.trial]


def make_plan(sweep: Sweep, workers: int | None, cost: float | None = None) -> Plan:
    """Run a sweep on a virtual clock where each iteration takes one second on one worker.

    Args:
        sweep: The sweep; its limits and its target are ignored.
        workers: Number of workers; None: as many as the CPUs of this machine allow.
        cost: Assumed cost of each iteration; required if rungs end by costs.

    Raises:
        SweepError: There are too few workers for a trial; or the cost is missing, or must not be given.
    """
    if sweep.resource is not None and cost is None:
        raise SweepError(
            f"early_terminate.resource: rungs end by {sweep.resource}, and how much of it an iteration costs isn't "
            "known before it runs: assume so much with --cost-per-iteration 1000"
        )
    if sweep.resource is None and cost is not None:
        raise SweepError(
            f"--cost-per-iteration {cost:g}: must be given where early_terminate.resource is, but rungs end by "
            "iterations: leave it out"
        )
    resources = sweep.resources
    workers = workers or max((os.cpu_count() or 1) // resources.cpus_per_worker, 1)
    if workers < resources.workers_per_trial:
        raise SweepError(
            f"resources: a trial takes workers_per_trial = {resources.workers_per_trial} workers at once, "
            f"got {workers} in all: plan for more (--workers), or lower workers_per_trial"
        )
    bounded = replace(sweep, run_cap=sweep.repeats.n) if sweep.unbounded else sweep
    if isinstance(bounded.early_terminate, Halving) and cost is not None:
        bounded = replace(bounded, early_terminate=replace(bounded.early_terminate, resource=_COST))
    cost = 1.0 if cost is None else cost
    inelastic = replace(bounded, resources=replace(resources, elastic=False))
    fixed, sweep_state, counter = _schedule(inelastic, workers, cost)
    widened = min(resources.widest, workers) > resources.workers_per_trial
    return Plan(
        sweep=sweep,
        rungs=sweep_state.rungs(),
        trials=len(sweep_state.rows()),
        segments=len(counter.segments),
        iterations=sweep_state.iterations,
        iterations_from_zero=counter.from_zero,
        workers=workers,
        fixed=fixed,
        elastic=_schedule(bounded, workers, cost)[0] if widened else None,
        first=[sweep_state.record(row.number).trial for row in sweep_state.rows()[:_MOST_FIRST]],
    )


def _schedule(sweep: Sweep, workers: int, cost: float) -> tuple[Schedule, SweepState, _Counter]:
    counter = _Counter(cost)
    elastic = sweep.resources.widest > sweep.resources.workers_per_trial
    backend = SimulatedBackend(workers, _MadeUp(cost), live=elastic)  # widening depends on live reports
    endless = replace(unlearned(sweep), limits=Limits(), metric=without_targets(sweep.objective.goals) or None)
    sweep_state = simulate(endless, backend, counter)
    makespan = backend.now()
    shown = {rung: sorted(widths) for rung, widths in counter.widths.items()}
    return Schedule(makespan, counter.worked / (workers * makespan), shown), sweep_state, counter


def unlearned(sweep: Sweep) -> Sweep:
    """Return the sweep with a random search in place of a method that learns, since results are simulated anyway."""
    if not sweep.searcher.capabilities.learns:
        return sweep
    return replace(sweep, method=RandomSearcher.kind, search=Search())


def plan_text(plan: Plan) -> str:
    """Return the plan as text for the user."""
    lines = [f"{plan.sweep.name}: {_method(plan.sweep)}", *_lag(plan.sweep), ""]
    sections = [*_goals(plan.sweep.objective), *_space_lines(plan.sweep), *_parallel(plan.sweep)]
    sections += [f"{'gpu':<13}{note}" for note in gpu_notes(plan.sweep)]
    if plan.sweep.unbounded:
        return "\n".join([*lines, *sections, *_unbounded(plan)]) + "\n"
    brackets: dict[int, list[RungView]] = {}
    for rung in plan.rungs:
        brackets.setdefault(rung.bracket, []).append(rung)
    for bracket, rungs in list(brackets.items())[:_MOST_BRACKETS]:
        steps = ", then ".join(_step(plan, rung) for rung in rungs if rung.size or rung.started)
        lines.append(f"  bracket {bracket}: {steps}")
    if len(brackets) > _MOST_BRACKETS:
        lines.append(f"  ... and {counted(len(brackets) - _MOST_BRACKETS, 'more bracket')}")
    lines += [
        "",
        *([] if plan.sweep.seed else ["seed         0, the default: every sweep with it tries the same trials"]),
        *sections,
        f"trials       {plan.trials:,}{_of_grid(plan)}",
        *_repeats(plan),
        f"trial-rungs  {plan.segments:,}",
    ]
    if plan.sweep.iterations is None and plan.sweep.resource is None:
        lines.append("iterations   unknown: no max_iter is given; each trial runs until its trainable returns")
        lines += _ends(plan)
        return "\n".join(lines) + "\n"
    early = plan.sweep.early_terminate
    if early is not None and early.capabilities.endless:
        lines.append(f"             in {early.course}")
    lines.append(f"iterations   {plan.iterations:,} when each promotion resumes from its checkpoint")
    if plan.iterations_from_zero != plan.iterations:
        lines.append(
            f"             {plan.iterations_from_zero:,} from zero: a trainable that saves no checkpoints starts each"
            " promotion anew"
        )
    lines += _makespans(plan)
    lines += _ends(plan)
    return "\n".join(lines) + "\n"


def _of_grid(plan: Plan) -> str:
    """Return a note if a grid has more configurations than the sweep runs."""
    size = plan.sweep.parameters.grid_size if plan.sweep.method == GridSearcher.kind else 0
    configurations = plan.trials // plan.sweep.repeats.n
    of = "" if configurations == plan.trials else f" of {counted(configurations, 'point')}"
    return f"{of} of the grid's {size:,} points" if configurations < size else ""


def _repeats(plan: Plan) -> list[str]:
    """Describe how many configurations are repeated."""
    repeats = plan.sweep.repeats
    if not repeats.several:
        return []
    configurations = counted(plan.trials // repeats.n, "configuration")
    lines = [f"repeats      {configurations}, each trained with the same {repeats.n} seeds"]
    if repeats.racing:
        lines.append(f"             fewer trials where the race eliminates some, from {FIRST_TEST} repeats on")
    return lines


def _unbounded(plan: Plan) -> list[str]:
    """Note that trials are created until the sweep is stopped, and how to bound them."""
    sweep = plan.sweep
    limit = "limits.max_time is used up" if sweep.limits.max_time is not None else "it is stopped"
    each = "unknown; each trial runs until it ends by itself"
    lines = [f"trials       without end: they are created until {limit} (Ctrl-C, hpsearch stop)"]
    lines.append(f"iterations   {each if sweep.iterations is None else f'up to {sweep.iterations:,} each'}")
    return [*lines, *_ends(plan), "bound        --set run_cap=100 shows what so many trials would run"]


def _goals(objective: Objective) -> list[str]:
    """Describe the goals and constraints, if there is more than one metric."""
    if not objective.joint:
        return []
    lines = [f"decides      {objective.aim}"]
    return lines + [f"{'within':<13}{constraint}" for constraint in objective.constraints]


def _parallel(sweep: Sweep) -> list[str]:
    """Describe how several workers train one trial, if the sweep uses several."""
    if not sweep.strategies.named:
        return []
    lines = [f"parallel     {', '.join(sweep.strategies.possible)}"]
    return lines + [f"{'':<13}{note}" for note in parallel_notes(sweep)]


def _step(plan: Plan, rung: RungView) -> str:
    """Describe how many trials run in a rung, and their widths if these differ."""
    step = f"{rung.started if rung.size is None else rung.size:,} {up_to(rung.until, plan.sweep.resource)}"
    if plan.elastic is None:
        return step
    widths = plan.elastic.widths.get((rung.bracket, rung.rung), ())
    if not widths:  # no simulated trial reached this rung
        return step
    least, most = widths[0], widths[-1]
    span = counted(most, "worker") if least == most else f"{least} to {most} workers"
    return f"{step} ({span}{'' if rung.size == 1 else ' each'})"


def _makespans(plan: Plan) -> list[str]:
    on = counted(plan.workers, "worker")
    least = plan.sweep.resources.workers_per_trial
    each = "" if least == 1 and plan.elastic is None else f", {counted(least, 'worker')} per trial"
    fixed = f"{_long(plan.fixed)} on {on}{each}, which are busy {plan.fixed.busy:.0%} of it"
    assumption = f"when each doubling of a trial's workers makes its iterations {2 * EFFICIENCY:.2g} times as fast"
    if plan.elastic is None:
        lines = [f"makespan     {fixed}"]
        return lines if least == 1 else [*lines, f"             {assumption}"]
    most = min(plan.sweep.resources.widest, plan.workers)
    gain = plan.fixed.makespan / plan.elastic.makespan
    return [
        f"makespan     {_long(plan.elastic)} on {on}, {least} to {most} per trial, which are busy "
        f"{plan.elastic.busy:.0%} of it",
        f"             {fixed}",
        f"             elastic is {gain:.1f} times as short, {assumption}",
    ]


def _ends(plan: Plan) -> list[str]:
    """Describe what may end the sweep early, and whether that could be in its first rung."""
    objective, patience = plan.sweep.objective, plan.sweep.limits.patience
    lines = []
    aimed = [f"{goal.name} {goal.target!r}" for goal in objective.goals if goal.target is not None]
    if aimed:
        lines.append(f"ends early   when a trial reaches {' and '.join(aimed)}")
    if patience is not None:
        better = f"better in {objective.title} than each before" if objective.several else f"a better {objective.title}"
        lines.append(f"ends early   when {counted(patience, 'trial')} in a row ended without {better}")
        stopped = [
            ((lower.size or 0) - (upper.size or 0), lower)
            for lower, upper in itertools.pairwise(plan.rungs)
            if lower.bracket == upper.bracket
        ]
        most, rung = max(stopped, key=lambda found: found[0], default=(0, None))
        if rung is not None and most >= patience:
            lines.append(
                f"             which bracket {rung.bracket} may bring about at iteration {rung.until}, where "
                f"{most:,} are stopped at once: a larger limits.patience is wanted"
            )
    return lines


def _long(schedule: Schedule) -> str:
    makespan = schedule.makespan
    if makespan == 1:
        return "1 iteration long"
    return f"{makespan:,.0f} iterations long" if makespan >= 100 else f"{makespan:.3g} iterations long"


def _method(sweep: Sweep) -> str:
    known_as = sweep.searcher.known_as
    how = sweep.method if known_as is None else f"{sweep.method} ({known_as})"
    if sweep.auto_reason is not None:
        how = f"{how} (chosen by auto, as {sweep.auto_reason})"
    early = sweep.early_terminate
    if early is None:
        return f"{how}, every trial to its end"
    return f"{how}, {early.summary()}"


def _lag(sweep: Sweep) -> list[str]:
    """Describe which results a suggestion is based on, if the sweep sets a lag."""
    lag = sweep.search.lag
    if lag is None:
        return []
    if sweep.early_terminate is None:
        return [f"lag {lag}: suggestion n knows the results of trials 0 to n - {lag}"]
    return [
        f"lag {lag}: suggestion n knows the first rung of trials 0 to n - {lag}, and all rungs of the brackets two or "
        "more before its own"
    ]


class _MadeUp(Simulation):
    """A simulation with arbitrary metrics: the plan doesn't depend on which trials win."""

    def __init__(self, cost: float) -> None:
        self._cost = cost

    def steps(self, trial: Trial, segment: Segment, state: bytes | None) -> Iterator[Step]:
        if segment.costs is not None:
            made_up = dict.fromkeys(self.metrics, float(trial.seed))
            return (Step(made_up | {_COST: self._cost * at}, 1.0) for at in itertools.count(segment.start + 1))
        step = Step(dict.fromkeys(self.metrics, float(trial.seed)), 1.0)
        return itertools.repeat(step, (segment.end or segment.start + 1) - segment.start)


def _space_lines(sweep: Sweep) -> list[str]:
    """Describe the space's size, the fraction of valid configurations, and the methods that can search it."""
    space = sweep.parameters
    if not space.conditional and not space.constraints:
        return []
    always = len(space.columns([]))
    if space.bounded:
        sometimes = len(space.parameters) - always
        count = f"{counted(len(space.parameters), 'parameter')}, {sometimes:,} of which don't always apply"
    else:
        count = f"{counted(always, 'parameter')} that always apply, and no end of others"
    size = space.size
    lines = [f"space        {count}" + ("" if size is None else f"; {counted(size, 'point')}")]
    if space.constraints:
        draws = _CALLED_DRAWS if space.calls else _DRAWS
        valid = space.count_valid(sweep.seed, draws)
        lines.append(f"             {valid:,} of {draws:,} draws keep the constraints; others are drawn again")
    refused = refusals(sweep.problem)
    for method, searcher in KNOWN.items():
        over = None if searcher.over is None else settings_named(searcher.over)
        if (
            over is not None
            and over.capabilities.forks
            and refused[method] is None
            and over.capabilities.unsupported_key(sweep.objective)
        ):
            refused[method] = "forks trials by one number"
    lines.append(f"methods      {', '.join(method for method, why in refused.items() if why is None)}")
    lines += [f"             not {method}: {why}" for method, why in refused.items() if why is not None]
    return lines


_MOST_REASONS = 3
_LONGEST = 100

_SECONDS = 10.0
"""Seconds for which trials are built."""


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
    return lanes_lines(lanes, shapes)


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
