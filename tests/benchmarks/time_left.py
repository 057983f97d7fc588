"""How often the time left that a sweep shows is right within a factor of two, on a virtual clock."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import hpsearch
from hpsearch.backends.simulated import SimulatedBackend
from hpsearch.observers.base import Record
from hpsearch.observers.time_left import TimeLeft
from hpsearch.run.simulate import Nobody, simulate
from hpsearch.schedulers.early_terminate import EarlyTerminate
from hpsearch.study.state import StudyState
from hpsearch.sweep.sweep import Limits, Metric, Resources, Sweep
from hpsearch.task import Workers
from hpsearch.trial import Report
from tests.benchmarks.figures import Figure

__all__ = ["CASES", "Case", "measure", "shown_at"]

MOMENTS = (0.1, 0.25, 0.5, 0.75, 0.9)
"""Parts of a sweep at which one looks."""


@dataclass(frozen=True)
class Case:
    """A kind of sweep, and what its trials cost."""

    name: str
    early_terminate: EarlyTerminate | None
    run_cap: int | None
    workers: int
    costs: str
    """`even`, `uneven` (a factor of three), `wild` (a factor of thirty), or `better` (the better the slower)."""
    max_iter: int | None = None
    widest: int | None = None
    start_seconds: float = 0.0
    fails: float = 0.0
    stops: float = 0.0
    """Share of the trials that end by themselves, halfway."""


class Costs(hpsearch.Curves):
    """Curves that get better, at what the case says that they cost; the first trials warm up."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.start_seconds = case.start_seconds

    def curve(self, params: dict[str, Any], seed: int) -> hpsearch.Curve:
        """Give a trial's curve."""
        chance, x, most = random.Random(seed), params["x"], self.case.max_iter or 81
        factor = {
            "even": 1.0,
            "uneven": 3.0 ** params["cost"],
            "wild": 30.0 ** params["cost"],
            "better": 10.0 ** (1.0 - x),
        }[self.case.costs]
        seconds = [factor * chance.lognormvariate(0.0, 0.2) for _ in range(most)]
        seconds[0] += 3.0
        length = max(most // 2, 1) if chance.random() < self.case.stops else most
        failed = chance.random() < self.case.fails
        length = max(chance.randrange(most), 1) if failed else length
        losses = [x + 1.0 / i + 0.1 * chance.random() for i in range(1, length + 1)]
        return hpsearch.Curve({"loss": losses}, seconds[:length], "ValueError: failed" if failed else "")


class _Looks(Nobody):
    """Keeps what would have been shown, and when."""

    def __init__(self, sweep: Sweep, live: bool) -> None:
        self.shown: list[tuple[float, float | None]] = []
        self._live = live
        self._time_left = TimeLeft(sweep, live=live)

    def observe(self, record: Record) -> None:
        self._time_left.observe(record.event)

    def report(self, reports: Sequence[Report]) -> None:
        if self._live:
            self._time_left.report(reports)

    def look(self, study_state: StudyState, workers: Workers, elapsed: float, last: bool) -> None:
        left = self._time_left.estimate(study_state.rungs(), study_state.total(), workers, elapsed)
        self.shown.append((elapsed, left))


def shown_at(case: Case, seed: int, live: bool = True) -> Iterator[tuple[float, float | None, float]]:
    """Run a case; give (part of the sweep, what is shown, what is left) at each moment.

    Args:
        case: What is run.
        seed: The sweep's.
        live: Reports are seen as they are made; else with what the journal holds alone.
    """
    sweep = Sweep(
        name="costs",
        trainable="tests.benchmarks.time_left:Costs",
        metric=Metric("loss", "minimize"),
        method="random",
        parameters=hpsearch.Space.from_parameters(
            {"x": hpsearch.Uniform(0.0, 1.0), "cost": hpsearch.Uniform(0.0, 1.0)}
        ),
        early_terminate=case.early_terminate,
        max_iter=case.max_iter if case.early_terminate is None else None,
        run_cap=case.run_cap,
        resources=Resources(max_workers_per_trial=case.widest),
        limits=Limits(max_failures="none"),
        seed=seed,
    )
    backend = SimulatedBackend(case.workers, Costs(case))
    backend.tick = 2.0
    looks = _Looks(sweep, live)
    simulate(sweep, backend, looks)
    end = backend.now()
    for part in MOMENTS:
        elapsed, left = next(look for look in looks.shown if look[0] >= part * end)
        yield part, left, end - elapsed


_HYPERBAND = hpsearch.Hyperband(max_iter=27)
_HALVING = hpsearch.SuccessiveHalving(max_iter=81, min_iter=1, eta=3, trials=81)
_ASHA = hpsearch.ASHA(max_iter=27)
_MEDIAN = hpsearch.MedianStopping(max_iter=20)

_KINDS: tuple[tuple[str, EarlyTerminate | None, int | None, int | None, dict[str, Any]], ...] = (
    ("random", None, 40, 10, {}),
    ("random, failures", None, 60, 10, {"fails": 0.15}),
    ("random, early ends", None, 60, 10, {"stops": 0.3}),
    ("random, slow starts", None, 40, 5, {"start_seconds": 10.0}),
    ("hyperband", _HYPERBAND, None, None, {}),
    ("hyperband, 3 rounds", _HYPERBAND, 120, None, {}),
    ("halving", _HALVING, None, None, {}),
    ("halving, failures", _HALVING, None, None, {"fails": 0.1}),
    ("asha", _ASHA, 80, None, {}),
    ("median", _MEDIAN, 50, None, {}),
)

CASES = tuple(
    Case(f"{name}, {costs}, {workers} workers", early, cap, workers, costs, most, **more)
    for name, early, cap, most, more in _KINDS
    for costs in ("even", "uneven", "wild", "better")
    for workers in (1, 4, 16)
) + tuple(
    Case(f"elastic halving, {costs}, {workers} workers", _HALVING, None, workers, costs, None, workers)
    for costs in ("even", "uneven", "wild", "better")
    for workers in (4, 16)
)


HELD_OUT = CASES[1::2]
"""Those by which the constants of `hpsearch.observers.time_left` weren't chosen; nor by seed 1 and those after it."""


def measure(rounds: int) -> list[Figure]:
    """Run the cases, each with so many seeds: how much is shown at each moment, and how much of it is right."""
    seen: dict[float, list[list[bool]]] = {part: [] for part in MOMENTS}
    for seed in range(1, rounds + 1):
        looks = [look for case in HELD_OUT for look in shown_at(case, seed)]
        for part in MOMENTS:
            right = [left is not None and truth / 2 <= left <= truth * 2 for at, left, truth in looks if at == part]
            shown = [left is not None for at, left, _ in looks if at == part]
            seen[part].append([*shown, *right])
    half = len(HELD_OUT)
    figures = []
    for part, turns in seen.items():
        shown_share = [100 * sum(turn[:half]) / half for turn in turns]
        right_share = [100 * sum(turn[half:]) / max(sum(turn[:half]), 1) for turn in turns]
        figures.append(Figure(f"after {part:.0%} of a sweep: a time left is shown", "% of sweeps", shown_share, ""))
        figures.append(
            Figure(f"after {part:.0%} of a sweep: right within a factor of two", "% of shown", right_share, "")
        )
    return figures
