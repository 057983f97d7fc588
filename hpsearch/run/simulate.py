"""Run a sweep on a virtual clock, through the orchestrator, with a journal in memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hpsearch.backends.simulated import SimulatedBackend
from hpsearch.events import Opened
from hpsearch.journal.journal import Journal
from hpsearch.observers.base import Observers, Record
from hpsearch.results.study import Study, study_of
from hpsearch.run.interrupts import Interrupts, interrupted
from hpsearch.run.orchestrator import Orchestrator
from hpsearch.searchers import Past
from hpsearch.study.state import SweepState
from hpsearch.study.warm_start import WarmStart
from hpsearch.sweep.sweep import Sweep
from hpsearch.task import Workers
from hpsearch.trial import Report
from hpsearch.worker.job import job_of

IN_MEMORY = ":memory:"
"""Replaces the directory of a study that isn't written to disk."""


class Nobody:
    """Observers that ignore everything."""

    def observe(self, record: Record) -> None:
        """Do nothing."""

    def report(self, reports: Sequence[Report]) -> None:
        """Do nothing."""

    def say(self, text: str) -> None:
        """Do nothing."""

    def look(self, sweep_state: SweepState, workers: Workers, elapsed: float, last: bool) -> None:
        """Do nothing."""


def simulate(
    sweep: Sweep, backend: SimulatedBackend, observers: Observers | None = None, journal: Journal | None = None
) -> SweepState:
    """Run a sweep on a simulated backend, through the orchestrator; equal sweeps write equal journals.

    Args:
        sweep: The sweep; its limits are in virtual time.
        backend: A new backend.
        observers: The observers; None: none.
        journal: A new journal, closed at the end; None: one in memory.
    """
    backend.simulation.open(sweep.parameters, *sweep.objective.names)
    with journal or Journal.in_memory({"sweep": sweep.to_json()}) as journal:
        return _run(sweep, backend, observers or Nobody(), journal)


def run_in_memory(sweep: Sweep, backend: SimulatedBackend, warm_start: WarmStart | None = None) -> Study:
    """Run a sweep without writing anything; return its study, which exists only in this process.

    Args:
        sweep: The sweep.
        backend: A new backend, with an opened simulation.
        warm_start: Results that its searcher begins with.

    Raises:
        TrainableError: Too many trials have failed, or a trial broke the sweep's contract.
        KeyboardInterrupt: Ctrl-C ended it.
    """
    record = {"sweep": sweep.to_json(), "created": backend.wall()}
    with Journal.in_memory(record) as journal:
        _run(sweep, backend, Nobody(), journal, () if warm_start is None else warm_start.past)
        history = list(journal.entries())
    study = study_of(Path(IN_MEMORY), record, history, lambda: False, lambda: iter(history))
    if study.state in ("interrupted", "killed"):
        raise interrupted(f"directory={IN_MEMORY!r}: nothing is kept of this sweep")
    return study


def _run(
    sweep: Sweep, backend: SimulatedBackend, observers: Observers, journal: Journal, past: Sequence[Past] = ()
) -> SweepState:
    sweep_state = SweepState(sweep, past=past, restart=0.0)
    opened = Opened(backend.name, None, process="", command="")  # the same in every process
    journal.append([opened], [sweep_state.apply(opened)], backend.wall())
    Orchestrator(sweep_state, journal, backend, observers, Interrupts()).run(job_of(sweep, "", "", (), None))
    return sweep_state
