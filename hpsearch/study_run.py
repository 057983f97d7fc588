"""Run a study from where it stands to its end: the directory, the journal, the backend and the watchers joined."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpsearch.backends.base import Backend
from hpsearch.course import Course
from hpsearch.errors import JournalError
from hpsearch.events import Ended, Event, Extended, Finished, Opened, Saved
from hpsearch.extension import extended, extension
from hpsearch.interrupts import Interrupts
from hpsearch.job import CommandLine, Job
from hpsearch.journal import Journal
from hpsearch.macros import DEFAULT_COMMAND
from hpsearch.observers.base import Observer
from hpsearch.observers.domains import domains_of
from hpsearch.observers.progress import Display, Unfailing
from hpsearch.observers.tensorboard import TensorBoardObserver
from hpsearch.orchestrator import Orchestrator
from hpsearch.provenance import command_line, process_name, provenance
from hpsearch.study import Study, load, stored_sweep
from hpsearch.study_directory import StudyDirectory, next_directory
from hpsearch.sweep import Sweep
from hpsearch.watching import Watching
from hpsearch.widths import Widths

__all__ = ["Run", "create_study", "run_study", "write_tensorboard"]

_WORKERS_PATIENCE = 60.0
"""Seconds to wait for the workers of a killed run to end."""


@dataclass(frozen=True)
class Run:
    """How a study is to be run; none of it changes what comes out."""

    trainable: str | Callable[..., Any] | None
    """What runs a trial; None: what the sweep names."""
    backend: Callable[[Sweep], Backend]
    """Makes the backend, when there is something to run."""
    display: Display
    tensorboard: bool = True
    search_path: tuple[str, ...] = ()
    durable: bool = False


def create_study(sweep: Sweep, directory: Path | None, sweep_text: str | None = None) -> StudyDirectory:
    """Make the directory of a new study.

    Args:
        sweep: What will be run.
        directory: Where; None: the next free `runs/<name>-<n>`.
        sweep_text: The sweep file, kept beside the journal.

    Raises:
        JournalError: The directory is taken by something else.
    """
    record = {"sweep": sweep.to_json(), "created": time.time(), "provenance": provenance(Path.cwd())}
    while True:
        place = StudyDirectory(directory or next_directory(sweep.name))
        try:
            place.create(record, sweep_text)
            return place
        except JournalError:
            if directory is not None or not place.path.exists():
                raise  # else another process took the name in between


def run_study(place: StudyDirectory, sweep: Sweep | None, run: Run) -> Study:
    """Run a study until it is finished or told to end.

    Args:
        place: Its directory.
        sweep: What the user asks for now: the same sweep, or one with more to do; None: what the study holds.
        run: How.

    Raises:
        StudyInUseError: A live process runs it.
        SweepError: The sweep is another one than the study's.
        JournalError: The journal can't be read or doesn't replay.
        BackendError, TrainableError: It can't be run here.
    """
    run = replace(run, display=Unfailing(run.display))
    with place.running(process_name()), Journal.open(place.journal, durable=run.durable) as journal:
        history = list(journal.events())
        sweep, more = _extend(stored_sweep(journal.study()), history, sweep)
        if more is None and history and history[-1][1] == Ended("finished"):
            run.display.note(f"{place.path}: this sweep is finished")
            return load(place.path)
        _go_on(place, journal, history, sweep, more, run)
    return load(place.path)


def _extend(
    stored: Sweep, history: Sequence[tuple[float, Event]], asked: Sweep | None
) -> tuple[Sweep, Extended | None]:
    """Give the sweep as it is to be run, and the event that adds to it."""
    current = stored
    for _, event in history:
        if isinstance(event, Extended):
            current = extended(current, event)
    if asked is None:
        return current, None
    more = extension(current, asked)
    if more is not None:
        current = extended(current, more)
    return replace(current, limits=asked.limits, resources=asked.resources), more


def _go_on(
    place: StudyDirectory,
    journal: Journal,
    history: Sequence[tuple[float, Event]],
    sweep: Sweep,
    more: Extended | None,
    run: Run,
) -> None:
    record = journal.study()
    folder = record.get("provenance", {}).get("directory") or str(Path.cwd())
    run.display.note(f"study: {place.path}")
    place.outwait_workers(_WORKERS_PATIENCE, run.display.note)
    course = Course(stored_sweep(record))
    widths = Widths(sweep.resources, course.widest, course.bracket)
    replayed = []
    for event, decisions in course.replay(event for _, event in history):
        widths.observe(event, decisions)  # in step: it asks the course where trials stand
        replayed.append((event, decisions))
    course.obsolete()
    with Interrupts() as interrupts:  # before Ray is imported, which takes seconds
        backend = run.backend(sweep)
        watching = Watching(sweep, [_tensorboard(place, sweep)] if run.tensorboard else [], run.display)
        try:
            for event, decisions in replayed:
                watching.observe(event, decisions)
            resources = sweep.resources
            opened = Opened(
                backend.name, resources.workers, process_name(), command_line(), resources.workers_per_trial
            )
            news: list[Event] = [opened]
            if more is not None:
                news.append(more)
            for event in news:
                decisions = course.apply(event)
                widths.observe(event, decisions)
                journal.append([event])
                watching.observe(event, decisions)
            keep_all = sweep.checkpoints.keep == "all"
            place.remove_unnamed(_named_checkpoints(history) if keep_all else course.checkpoints())
            Orchestrator(
                sweep,
                course,
                widths,
                journal,
                backend,
                watching,
                interrupts,
                spent=_seconds_spent(history),
                discard=lambda gone: _remove(place.path, gone),
            ).run(_job(place, sweep, run, folder))
        finally:
            watching.close()


def _tensorboard(place: StudyDirectory, sweep: Sweep) -> Observer:
    metric = sweep.metric
    return TensorBoardObserver(place.tensorboard, domains_of(sweep.parameters), metric.name, metric.goal, sweep.name)


def write_tensorboard(place: StudyDirectory) -> None:
    """Write the event files of a study that was run without, from its journal."""
    with Journal.read(place.journal) as journal:
        course = Course(stored_sweep(journal.study()))
        observer = _tensorboard(place, stored_sweep(journal.study()))
        for event, decisions in course.replay(event for _, event in journal.events()):
            observer.observe(event, decisions)
    observer.rungs(course.rungs())
    observer.close()


def _job(place: StudyDirectory, sweep: Sweep, run: Run, folder: str) -> Job:
    return Job(
        study=str(place.path),
        name=sweep.name,
        trainable=run.trainable or _trainable(sweep, folder),
        search_path=run.search_path,
        metric=sweep.metric.name,
        save_every=sweep.checkpoints.every,
        max_iter=sweep.iterations,
        threads=sweep.resources.cpus_per_worker,
        paths={parameter.name: parameter.path for parameter in sweep.parameters.parameters},
        scaling=sweep.scaling.for_trainers(),
        widest=sweep.resources.widest,
    )


def _trainable(sweep: Sweep, folder: str) -> str | CommandLine:
    if sweep.trainable is not None:
        return sweep.trainable
    return CommandLine(sweep.program, sweep.command or DEFAULT_COMMAND, folder)


def _named_checkpoints(history: Sequence[tuple[float, Event]]) -> set[str]:
    named = (event.checkpoint for _, event in history if isinstance(event, Saved | Finished))
    return {checkpoint for checkpoint in named if checkpoint is not None}


def _seconds_spent(history: Sequence[tuple[float, Event]]) -> float:
    """Add up how long former runs took, as far as their journal tells."""
    spent, began, last = 0.0, None, 0.0
    for when, event in history:
        if isinstance(event, Opened):
            spent += 0.0 if began is None else last - began
            began = when
        last = when
    return spent + (0.0 if began is None else last - began)


def _remove(root: Path, checkpoints: Sequence[str]) -> None:
    for checkpoint in checkpoints:
        shutil.rmtree(root / checkpoint, ignore_errors=True)
