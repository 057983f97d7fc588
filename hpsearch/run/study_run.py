"""Run or resume a study: connect its directory, journal, backend and observers."""

from __future__ import annotations

import errno
import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hpsearch.backends.base import Backend
from hpsearch.backends.simulated import SimulatedBackend
from hpsearch.errors import JournalError, StorageError, SweepError
from hpsearch.events import ASK_TELL, Changed, Ended, Entry, Event, Extended, Finished, Opened, Saved, Steered
from hpsearch.journal.directory import StudyDirectory, next_directory
from hpsearch.journal.filesystem import identity
from hpsearch.journal.history import seconds_spent
from hpsearch.journal.journal import Journal
from hpsearch.journal.provenance import command_line, process_name, provenance
from hpsearch.observers.base import Observer, Record
from hpsearch.observers.display import Display, UnfailingDisplay
from hpsearch.observers.observer_hub import Callback, Callbacks, ObserverHub, Times
from hpsearch.observers.thread import ObserverThread
from hpsearch.results.study import Study, load
from hpsearch.run.interrupts import Interrupts
from hpsearch.run.observing import catch_up, observed_of, observers_of, records_of
from hpsearch.run.on_end import run_on_end
from hpsearch.run.orchestrator import Orchestrator
from hpsearch.run.reproducibility import bits_notes, bits_of, gpu_notes, parallel_notes
from hpsearch.run.searcher_process import ProcessCalls
from hpsearch.run.steering import retries
from hpsearch.storage.mirror import Mirror, mirrored
from hpsearch.storage.studies import Storage
from hpsearch.study.change import changed
from hpsearch.study.extension import extended, extension
from hpsearch.study.removal import settle
from hpsearch.study.state import SweepState
from hpsearch.study.suggestions import direct_calls
from hpsearch.study.warm_start import WarmStart, stored_warm_start
from hpsearch.sweep.sweep import Sweep
from hpsearch.tables.wording import duration
from hpsearch.warm_start.read import Given, read_warm_start, source_name
from hpsearch.worker.job import job_of, trainable_of
from hpsearch.worker.own_files import OwnFiles

_WORKERS_PATIENCE = 60.0
"""Seconds to wait for the workers of a killed run to end."""

_STORAGE = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE}
)
"""Error numbers of a file system that is full, read-only, broken or gone."""


@dataclass(frozen=True)
class RunSettings:
    """How a study is run, without effect on its results."""

    trainable: str | Callable[..., Any] | None
    """The trainable; None: the sweep's."""
    backend: Callable[[Sweep], Backend]
    """Makes the backend, when there is something to run."""
    display: Display
    tensorboard: bool = True
    """False: without it, even if the sweep names it."""
    observers: Sequence[str | Observer] | None = None
    """The observers; None: the sweep's."""
    on_locked: Callable[[], object] = lambda: None
    """Called once this process has locked the study, and the sweep matches."""
    callbacks: Sequence[Callback] = ()
    """Called with the row of each trial that ends."""
    search_path: tuple[str, ...] = ()
    durable: bool = False
    virtual: bool = False
    """The backend's clock is: searchers work on the loop, as the clock would jump while they think."""
    starting: str = ""
    """Name of the backend's start for messages, if it takes a while."""
    times: Times = field(default_factory=Times)
    """Records the run's times."""
    verbose: bool = False
    """Print each decision on trials, with its reason."""
    interrupts: Interrupts = field(default_factory=Interrupts)
    """Records the signals that end this process."""


def create_study(
    sweep: Sweep,
    directory: Path | None,
    sweep_text: str | None = None,
    folder: Path | None = None,
    warm_start: WarmStart | None = None,
    rerun: Mapping[str, Any] | None = None,
) -> StudyDirectory:
    """Create the directory of a new study.

    Args:
        sweep: The sweep.
        directory: The directory; None: the next free `runs/<name>-<n>`.
        sweep_text: The sweep file, stored with the journal.
        folder: Folder of the user's code; None: the current one.
        warm_start: Results that its searcher begins with.
        rerun: Of a rerun what it records of the original study, in JSON values.

    Raises:
        JournalError: The directory contains something else, or the bucket has a study of its name.
        StorageError: The sweep's storage can't be written or read.
    """
    storage = None if sweep.storage is None else Storage(sweep.storage)
    record = {
        "sweep": sweep.to_json(),
        "created": time.time(),
        "provenance": provenance(folder or Path.cwd()),
        **bits_of(sweep),
        **({} if warm_start is None else warm_start.to_record()),
        **({} if rerun is None else {"rerun": rerun}),
    }
    while True:
        taken = () if storage is None else storage.taken()
        study_dir = StudyDirectory(directory or next_directory(sweep.name, taken=taken))
        name, url = study_dir.path.name, None
        if storage is not None and (url := storage.claim(name, record, sweep_text)) is None:
            if directory is None:
                continue  # another process took the name in the meantime
            raise JournalError(
                f"{sweep.storage}/{name}: expected no study in the bucket, but there is one. Continue it with "
                f"`hpsearch resume {sweep.storage}/{name}`, or give the new one's directory another name with --dir."
            )
        try:
            study_dir.create(record if url is None else {**record, "storage": url}, sweep_text)
            return study_dir
        except JournalError:
            if storage is not None and url is not None:
                storage.release(url)
            if directory is not None or not os.path.lexists(study_dir.path):
                raise  # otherwise another process took the name in the meantime


def warm_start_of(sources: Sequence[Given], sweep: Sweep, study_dir: StudyDirectory | None) -> WarmStart | None:
    """Return a new study's warm start; None: there is none, or an existing study has its own.

    Args:
        sources: The requested ones.
        sweep: The sweep.
        study_dir: The study's directory, if requested.

    Raises:
        SweepError: A source can't be read; or the warm start differs from an existing study's.
        JournalError: The existing study's can't be read.
    """
    if not sources:
        return None
    if study_dir is None or not study_dir.exists():
        return read_warm_start(sources, sweep)
    with Journal.read(study_dir.journal) as journal:
        began = stored_warm_start(journal.study()).sources
    if (requested := tuple(map(source_name, sources))) != began:
        raise SweepError(
            f"--from {', '.join(requested)}: expected what the study in {study_dir.path} began with, which is "
            f"{', '.join(began) or 'nothing'}: what a search begins with can't change. Leave --from out to go on, or "
            "name another directory"
        )
    return None


def run_study(
    study_dir: StudyDirectory, sweep: Sweep | None, run: RunSettings, retry: Sequence[int] | None = None
) -> Study:
    """Run a study until it is finished or stopped.

    Args:
        study_dir: Its directory.
        sweep: The requested sweep: the same one, or an extension; None: the study's.
        run: How to run it.
        retry: Failed trials to retry; empty: all; None: none.

    Raises:
        StudyInUseError: A live process runs it.
        SweepError: The sweep differs from the study's, or a trial can't be retried.
        JournalError: The journal can't be read or doesn't replay.
        BackendError, TrainableError: The study can't be run here.
    """
    run = replace(run, display=UnfailingDisplay(run.display))
    started: list[Sweep] = []
    state = "error"
    try:
        with (
            storage_errors(study_dir),
            study_dir.running(process_name()),
            Journal.open(study_dir.journal, durable=run.durable) as journal,
            mirrored(study_dir, journal, run.display.note, run.display.wait) as mirror,
        ):
            history = list(journal.entries())
            sweep, more = sweep_to_run(Sweep.from_json(journal.study()["sweep"]), history, sweep)
            run.on_locked()
            if more is None and retry is None and history and history[-1].event == Ended("finished"):
                run.display.note(f"{study_dir.path}: this sweep is finished")
                if mirror is not None:
                    mirror.fetch(load(study_dir.path).needed_checkpoints, history)
                record = journal.study()
                with _observers(study_dir, sweep, record, run, history) as threads:
                    catch_up(threads, Sweep.from_json(record["sweep"]), history)
                return load(study_dir.path)
            _check_workers_may(study_dir, sweep, history)
            limit = sweep.limits.max_time
            last = history[-1].event if history and more is None and retry is None else None
            if limit is not None and last == Ended("max_time") and seconds_spent(history) >= limit:
                # Else it would start Ray, only to end at once.
                run.display.note(
                    f"{study_dir.path}: limits.max_time, {duration(limit)}, is used up: resume it with more"
                )
                return load(study_dir.path)
            _run_or_resume(study_dir, journal, mirror, history, sweep, more, run, retry, started.append)
            state = ""
    except KeyboardInterrupt:
        state = "interrupted"
        raise
    finally:  # others may look at the study by now
        for ended in started:
            if ended.on_end is not None:
                run.interrupts.signals += run_on_end(ended.on_end, study_dir.path, state)
    return load(study_dir.path)


def sweep_to_run(stored: Sweep, history: Sequence[Entry], requested: Sweep | None) -> tuple[Sweep, Extended | None]:
    """Return the sweep to run, and the event of its extension.

    Args:
        stored: The sweep at the study's creation.
        history: The journal's entries.
        requested: The requested sweep; None: the study's.

    Raises:
        SweepError: The requested sweep differs from the study's.
    """
    current = stored
    for entry in history:
        if isinstance(entry.event, Extended):
            current = extended(current, entry.event)
        elif isinstance(entry.event, Changed):
            current = changed(current, entry.event)
    if requested is None:
        return current, None
    more = extension(current, requested)
    if more is not None:
        current = extended(current, more)
    return replace(
        current,
        metric=requested.metric,
        limits=requested.limits,
        resources=requested.resources,
        observers=requested.observers,
        on_end=requested.on_end,
    ), more


def _check_workers_may(study_dir: StudyDirectory, sweep: Sweep, history: Sequence[Entry]) -> None:
    """Check that workers may run a study.

    Raises:
        JournalError: It is an ask/tell study.
        SweepError: It has no trainable.
    """
    if any(isinstance(entry.event, Opened) and entry.event.backend == ASK_TELL for entry in history):
        raise JournalError(
            f"{study_dir.path}: this study is used with ask and tell, and others may still run its trials, so "
            f"no workers can resume it. Continue with `hpsearch ask {shlex.quote(str(study_dir.path))}` and "
            "`hpsearch tell`, or run the sweep in a directory of its own."
        )
    sweep.check_runs()


def _run_or_resume(
    study_dir: StudyDirectory,
    journal: Journal,
    mirror: Mirror | None,
    history: Sequence[Entry],
    sweep: Sweep,
    more: Extended | None,
    run: RunSettings,
    retry: Sequence[int] | None,
    begins: Callable[[Sweep], object],
) -> None:
    """Run or resume a study; `begins` is called once it is sure to run, after all checks."""
    record = journal.study()
    folder = record.get("provenance", {}).get("directory") or str(Path.cwd())
    run.display.note(f"study: {study_dir.path}")
    if mirror is not None:
        run.display.note(f"copied to {record['storage']}")
    if not history and sweep.seed == 0:
        run.display.note("seed 0, the default: every sweep with it tries the same trials; give another for others")
    if sweep.auto_reason is not None:
        run.display.note(f"method auto is {sweep.method}, as {sweep.auto_reason}")
    if (known_as := sweep.searcher.known_as) is not None:
        run.display.note(f"method {sweep.method} is {known_as} here")
    for note in (*parallel_notes(sweep), *gpu_notes(sweep), *_script_notes(sweep, folder), *bits_notes(record)):
        run.display.note(note)
    study_dir.outwait_workers(_WORKERS_PATIENCE, run.display.note)
    stored = Sweep.from_json(record["sweep"])
    warm_start = stored_warm_start(record)
    for note in warm_start.told:
        run.display.note(f"begins with results of {note}")
    calls_of = direct_calls if run.virtual else lambda sweep, _, past: ProcessCalls(sweep, past)
    sweep_state = SweepState(stored, calls_of, warm_start.past, current=sweep)
    with closing(sweep_state), _observers(study_dir, sweep, record, run, history) as threads:
        replayed = list(records_of(sweep_state.resume(history)))
        if mirror is not None:
            mirror.fetch(sweep_state.checkpoints(), history)
        with run.interrupts as interrupts:  # before Ray is imported, which takes seconds
            if run.starting:
                run.display.wait(run.starting)
            backend = run.backend(sweep)
            if history and isinstance(backend, SimulatedBackend):
                backend.go_on_from(history[-1].time)
            spent = seconds_spent(history)
            callbacks = Callbacks(
                run.callbacks,
                lambda trial: sweep_state.records.row(trial),
                lambda: journal.request("stop", by=process_name()),
                run.display.note,
            )
            watching = ObserverHub(sweep, threads, run.display, spent, run.times, run.verbose, callbacks)
            try:
                sweep_state.prepare()  # while workers start
                for event_record in replayed:
                    watching.observe(event_record)
                resources = sweep.resources
                trainable = run.trainable or trainable_of(sweep, folder)
                job = job_of(sweep, str(study_dir.path), trainable, run.search_path, record.get("mkl_cbwr"))
                own_files = None if isinstance(backend, SimulatedBackend) else OwnFiles(job)
                opened = Opened(
                    backend.name,
                    resources.workers,
                    process_name(),
                    command_line(),
                    resources.workers_per_trial,
                    "" if own_files is None else own_files.digest,
                )
                begin: list[Event] = [opened] if more is None else [opened, more]
                if retry is not None:
                    begin.insert(0, Steered("retry", process_name(), None, {"trials": list(retry)}))
                applied = [(event, sweep_state.apply(event)) for event in begin]
                if retry is not None:
                    applied += [(event, sweep_state.apply(event)) for event in retries(sweep_state, retry)]
                written = journal.append(
                    [event for event, _ in applied], [followed for _, followed in applied], backend.wall()
                )
                begins(sweep)
                for (seq, when), (event, followed) in zip(written, applied, strict=True):
                    watching.observe(Record(seq, when, event, followed.decisions))
                keep_all = sweep.checkpoints.keep == "all"
                named = _named_checkpoints(history) if keep_all else sweep_state.checkpoints()
                study_dir.remove_unnamed(named)
                if mirror is not None:
                    mirror.begin(named)
                Orchestrator(
                    sweep_state,
                    journal,
                    backend,
                    watching,
                    interrupts,
                    spent=spent,
                    discard=study_dir.discard if mirror is None else mirror.discard,
                    edited=own_files.edit_note if own_files is not None and backend.runs_edits else lambda: None,
                ).run(job)
                if not keep_all:
                    settle(study_dir, sweep_state, durable=run.durable)
            finally:
                try:
                    if mirror is not None:
                        mirror.close()  # while the display is open
                finally:
                    watching.close()


def _observers(
    study_dir: StudyDirectory, sweep: Sweep, record: Mapping[str, Any], run: RunSettings, history: Sequence[Entry]
) -> AbstractContextManager[list[ObserverThread]]:
    """Create the observers; mistakes show before anything runs."""
    requested = sweep.observers if run.observers is None else run.observers
    names = [name for name in requested if run.tensorboard or name != "tensorboard"]
    return observers_of(names, observed_of(study_dir, sweep, record, history), run.display, run.search_path)


def _script_notes(sweep: Sweep, folder: str) -> list[str]:
    """Return where a script runs, if that isn't the folder where we are, or not the one where the sweep was started."""
    if sweep.trainable is not None or folder == str(Path.cwd()):
        return []
    if Path(folder).is_dir():
        return [f"its script runs in {folder}, where the sweep was started"]
    return [f"{folder}, where the sweep was started, is gone: its script runs in {Path.cwd()}"]


def _named_checkpoints(history: Sequence[Entry]) -> set[str]:
    named = (entry.event.checkpoint for entry in history if isinstance(entry.event, Saved | Finished))
    return {checkpoint for checkpoint in named if checkpoint is not None}


@contextmanager
def storage_errors(study_dir: StudyDirectory) -> Iterator[None]:
    """Add to errors of writing that the study isn't lost."""
    try:
        yield
    except OSError as error:
        if error.errno not in _STORAGE and identity(study_dir.journal) is not None:
            raise
        raise StorageError(
            f"{study_dir.path}: expected a writable directory, got: {error}. All results are in the journal: "
            "free disk space, or fix the cause, then resume."
        ) from error
