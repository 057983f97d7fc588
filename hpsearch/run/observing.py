"""Create the observers of a study, and replay a journal to them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from hpsearch.config.checks import InvalidKey
from hpsearch.config.observer_names import check_observer, check_once
from hpsearch.errors import HpsearchError, exception_line
from hpsearch.events import Changed, Entry
from hpsearch.journal.directory import StudyDirectory
from hpsearch.journal.journal import Journal
from hpsearch.journal.provenance import identity_of
from hpsearch.observers import find_observer, make_observer
from hpsearch.observers.base import Observed, Observer, Record
from hpsearch.observers.display import Display
from hpsearch.observers.thread import MAKING_SECONDS, ObserverThread, close_all
from hpsearch.study.change import spaces_of
from hpsearch.study.journaled_state import JournaledState
from hpsearch.study.standing import Standing
from hpsearch.study.trial_records import TERMINAL
from hpsearch.sweep.reader import listed
from hpsearch.sweep.sweep import Sweep


def observed_of(
    study_dir: StudyDirectory, sweep: Sweep, record: Mapping[str, Any], history: Iterable[Entry]
) -> Observed:
    """Return the description of a study that observers receive.

    Args:
        study_dir: Its directory.
        sweep: The sweep.
        record: The study's record.
        history: The journal's entries.
    """
    changes = [entry.event for entry in history if isinstance(entry.event, Changed)]
    spaces = spaces_of(Sweep.from_json(record["sweep"]), changes)
    created, provenance = record.get("created", 0.0), record.get("provenance", {})
    return Observed(study_dir.path, sweep, created, identity_of(sweep.name, created, provenance), spaces)


def check_observers(requested: Sequence[str | Observer], search_path: Sequence[str] = ()) -> None:
    """Check the observers, as far as possible without creating them.

    Raises:
        InvalidKey: One of them is invalid.
    """
    for observer in requested:
        if isinstance(observer, str):
            find_observer(observer, search_path)


def names_of(observers: Sequence[str | Observer]) -> tuple[str, ...]:
    """Return the observers of a list that are names, as a sweep can only store names.

    Raises:
        InvalidKey: It isn't a list.
    """
    return tuple(name for name in listed(observers, ("observers",)) if isinstance(name, str))


def checked_observers(
    observers: Sequence[str | Observer] | None, sweep: Sweep, folders: Sequence[str]
) -> tuple[str | Observer, ...] | None:
    """Return the requested observers, or the sweep's, checked as far as possible without creating them.

    Raises:
        InvalidKey: An observer doesn't exist or isn't an observer; or it isn't a list.
    """
    named = None
    if observers is not None:
        named = tuple(
            observer if isinstance(observer, Observer) else check_observer(observer, ("observers", index))
            for index, observer in enumerate(listed(observers, ("observers",)))
        )
        check_once(named, ("observers",))
    check_observers(sweep.observers if named is None else named, folders)
    return named


@contextmanager
def observers_of(
    requested: Sequence[str | Observer], observed: Observed, display: Display, search_path: Sequence[str] = ()
) -> Iterator[list[ObserverThread]]:
    """Create the observers, each on its own thread; those that the block hasn't closed are dropped.

    Args:
        requested: Names, import paths and observers.
        observed: The study.
        display: Shows dropped observers.
        search_path: Folders for import paths.

    Raises:
        InvalidKey: One of them can't be created, or not within `MAKING_SECONDS`.
    """
    with ExitStack() as stack:
        threads = []
        for observer in requested:
            make = partial(_observer, observer, observed, search_path)
            try:
                threads.append(ObserverThread(make, display.note))
            except TimeoutError as error:
                problem = f"must be made of what it observes within {MAKING_SECONDS:g} s, and wasn't"
                raise InvalidKey(("observers", str(observer)), problem, "connect to servers in `seen`") from error
            stack.callback(threads[-1].abandon)
        yield threads


def _observer(requested: str | Observer, observed: Observed, search_path: Sequence[str]) -> Observer:
    return make_observer(requested, observed, search_path) if isinstance(requested, str) else requested


def records_of(entries: Iterable[Entry]) -> Iterator[Record]:
    """Yield a journal's entries, from its first on, as records for observers."""
    for seq, entry in enumerate(entries, 1):
        yield Record(seq, entry.time, entry.event, entry.followed.decisions)


def catch_up(threads: Iterable[ObserverThread], sweep: Sweep, history: Iterable[Entry]) -> None:
    """Replay a finished study to the observers that write permanent output, each within its deadline.

    Args:
        threads: Threads of all observers.
        sweep: The sweep as the study was created.
        history: The journal's entries.
    """
    threads = [thread for thread in threads if thread.keeps]
    if not threads:
        return
    journaled = JournaledState(sweep)
    for event_record in records_of(journaled.read(history)):
        for thread in threads:
            thread.observe(event_record)
    for thread in threads:
        thread.rungs(journaled.rungs())
    close_all(threads)


def show_observer(study_dir: StudyDirectory, name: str, search_path: Sequence[str] = ()) -> int:
    """Replay a study's journal to an observer; return the number of trials that haven't ended.

    Raises:
        JournalError: There is no study, or it can't be read.
        InvalidKey: There is no such observer, or it can't be created.
        HpsearchError: The observer raised, without effect on the study.
    """
    with Journal.read(study_dir.journal) as journal:
        record, history = journal.study(), list(journal.entries())
    sweep = Sweep.from_json(record["sweep"])
    standing = Standing(sweep)
    for entry in history:
        standing.take(entry)
    observer = make_observer(name, observed_of(study_dir, standing.sweep, record, history), search_path)
    journaled = JournaledState(sweep)
    try:
        last_seq = observer.seen()
        for event_record in records_of(journaled.read(history)):
            if event_record.seq > last_seq:
                observer.observe(event_record)
        observer.rungs(journaled.rungs())
        observer.close()
    except (HpsearchError, OSError):
        raise
    except Exception as error:  # any exception of another tool
        raise HpsearchError(
            f"{study_dir.path}: the observer {name} must take what the study tells, but raised "
            f"{exception_line(error)}. Mend that, and give the command again: what it holds by then stays"
        ) from error
    return sum(row.state not in TERMINAL for row in journaled.rows())
