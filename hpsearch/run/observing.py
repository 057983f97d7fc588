"""Who is to watch a study, and what they are told: as it runs, or later, from its journal alone."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from hpsearch.config.observer_names import check_observer, check_once
from hpsearch.errors import HpsearchError, exception_line
from hpsearch.events import Entry
from hpsearch.journal.directory import StudyDirectory
from hpsearch.journal.journal import Journal
from hpsearch.journal.provenance import identity_of
from hpsearch.observers import find_observer, make_observer, making_of
from hpsearch.observers.base import Observed, Observer, Record
from hpsearch.observers.display import Display
from hpsearch.observers.thread import Making, ObserverThread, close_all
from hpsearch.study.journaled_state import JournaledState
from hpsearch.study.trial_records import TERMINAL
from hpsearch.sweep.reader import listed
from hpsearch.sweep.sweep import Sweep

__all__ = [
    "catch_up",
    "check_observers",
    "checked_observers",
    "names_of",
    "observed_of",
    "observers_of",
    "records_of",
    "show_observer",
]

_MAKING_SECONDS = 5.0
"""What a sweep waits for its observers to be made: mistakes in them show before anything runs."""


def observed_of(place: StudyDirectory, sweep: Sweep, record: Mapping[str, Any]) -> Observed:
    """Give a study as observers are made for it.

    Args:
        place: Its directory.
        sweep: What is run.
        record: What was known of it before it ran.
    """
    created, provenance = record.get("created", 0.0), record.get("provenance", {})
    return Observed(place.path, sweep, created, identity_of(sweep.name, created, provenance))


def check_observers(asked: Sequence[str | Observer], search_path: Sequence[str] = ()) -> None:
    """See that all who are to watch are there and can be called, as far as that shows without making them.

    Raises:
        InvalidKey: One of them isn't.
    """
    for who in asked:
        if isinstance(who, str):
            find_observer(who, search_path)


def names_of(observers: Sequence[str | Observer]) -> tuple[str, ...]:
    """Give those of a list of observers that are named, which alone a sweep can hold.

    Raises:
        InvalidKey: It is no list.
    """
    return tuple(name for name in listed(observers, ("observers",)) if isinstance(name, str))


def checked_observers(
    observers: Sequence[str | Observer] | None, sweep: Sweep, folders: Sequence[str]
) -> tuple[str | Observer, ...] | None:
    """Give who watches, if not those whom the sweep names, as far as mistakes show before they are made.

    Raises:
        InvalidKey: One of them isn't there, or is no observer; or it is no list.
    """
    named = None
    if observers is not None:
        named = tuple(
            observer if isinstance(observer, Observer) else check_observer(observer, ("observers", place))
            for place, observer in enumerate(listed(observers, ("observers",)))
        )
        check_once(named, ("observers",))
    check_observers(sweep.observers if named is None else named, folders)
    return named


@contextmanager
def observers_of(
    asked: Sequence[str | Observer], observed: Observed, display: Display, search_path: Sequence[str] = ()
) -> Iterator[list[ObserverThread]]:
    """Make whoever is to watch, each on a thread of its own; those that the block hasn't closed hear nothing more.

    One that isn't made within five seconds is made while the sweep runs, and hears everything then.

    Args:
        asked: Names, import paths and observers.
        observed: What they are to watch.
        display: Shows what is waited for; told of an observer that is let go.
        search_path: Where import paths are looked for.

    Raises:
        InvalidKey: One of them can't be made.
    """
    makings = [making_of(who, observed, search_path) if isinstance(who, str) else Making.done(who) for who in asked]
    with ExitStack() as stack:
        threads = [ObserverThread(making, display.note) for making in makings]
        for thread in threads:
            stack.callback(thread.abandon)
        until = time.monotonic() + _MAKING_SECONDS
        slow = [thread.name for thread in threads if not thread.await_made(until)]
        if slow:
            display.note(
                f"{' and '.join(slow)}: not made within {_MAKING_SECONDS:g} s; the sweep begins without waiting for "
                "that, and all that happens is told once it is made"
            )
        yield threads


def records_of(entries: Iterable[Entry]) -> Iterator[Record]:
    """Give a journal's entries, from its first on, as observers are told them."""
    for seq, entry in enumerate(entries, 1):
        yield Record(seq, entry.time, entry.event, entry.followed.decisions)


def catch_up(threads: Iterable[ObserverThread], sweep: Sweep, history: Iterable[Entry]) -> None:
    """Show a finished study to the observers that keep what they write, each within its deadline.

    Args:
        threads: Of all that are to watch.
        sweep: As the study was created.
        history: The journal's entries.
    """
    threads = [thread for thread in threads if thread.keeps]
    if not threads:
        return
    journaled = JournaledState(sweep)
    for told in records_of(journaled.read(history)):
        for thread in threads:
            thread.observe(told)
    for thread in threads:
        thread.rungs(journaled.rungs())
    close_all(threads)


def show_observer(place: StudyDirectory, name: str, search_path: Sequence[str] = ()) -> int:
    """Show an observer a study from its journal, as if it had watched; say how many of its trials haven't ended.

    Raises:
        JournalError: There is no study, or it can't be read.
        InvalidKey: There is no such observer, or it can't be made.
        HpsearchError: The observer raised, which changes nothing of the study.
    """
    with Journal.read(place.journal) as journal:
        record, history = journal.study(), list(journal.entries())
    sweep = Sweep.from_json(record["sweep"])
    observer = make_observer(name, observed_of(place, sweep, record), search_path)
    journaled = JournaledState(sweep)
    try:
        seen = observer.seen()
        for told in records_of(journaled.read(history)):
            if told.seq > seen:
                observer.observe(told)
        observer.rungs(journaled.rungs())
        observer.close()
    except (HpsearchError, OSError):
        raise
    except Exception as error:  # whatever another tool raises
        raise HpsearchError(
            f"{place.path}: the observer {name} must take what the study tells, but raised {exception_line(error)}. "
            "Mend that, and give the command again: what it holds by then stays"
        ) from error
    return sum(row.state not in TERMINAL for row in journaled.rows())
