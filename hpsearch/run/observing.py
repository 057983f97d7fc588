"""Who is to watch a study, and what they are told: as it runs, or later, from its journal alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from hpsearch.errors import HpsearchError, exception_line
from hpsearch.observers import make_observer
from hpsearch.observers.base import Observed, Observer, Record
from hpsearch.observers.thread import ObserverThread, close_all
from hpsearch.report.study import stored_sweep
from hpsearch.study.directory import StudyDirectory
from hpsearch.study.journal import Journal
from hpsearch.study.journaled_state import Entry, JournaledState
from hpsearch.study.provenance import identity_of
from hpsearch.study.trial_records import TERMINAL
from hpsearch.sweep.sweep import Sweep

__all__ = ["catch_up", "observed_of", "observers_of", "records_of", "show_observer"]


def observed_of(place: StudyDirectory, sweep: Sweep, record: Mapping[str, Any]) -> Observed:
    """Give a study as observers are made for it.

    Args:
        place: Its directory.
        sweep: What is run.
        record: What was known of it before it ran.
    """
    created, provenance = record.get("created", 0.0), record.get("provenance", {})
    return Observed(place.path, sweep, created, identity_of(sweep.name, created, provenance))


def observers_of(
    asked: Sequence[str | Observer], observed: Observed, search_path: Sequence[str] = ()
) -> list[Observer]:
    """Make whoever is to watch.

    Raises:
        InvalidKey: One of them can't be made.
    """
    return [make_observer(name, observed, search_path) if isinstance(name, str) else name for name in asked]


def records_of(entries: Iterable[Entry]) -> Iterator[Record]:
    """Give a journal's entries, from its first on, as observers are told them."""
    for seq, entry in enumerate(entries, 1):
        yield Record(seq, entry.time, entry.event, entry.followed.decisions)


def catch_up(observers: Iterable[Observer], sweep: Sweep, history: Iterable[Entry], say: Callable[[str], None]) -> None:
    """Show a finished study to the observers that keep what they write, each within its deadline.

    Args:
        observers: Of all that are to watch.
        sweep: As the study was created.
        history: The journal's entries.
        say: Told of an observer that is let go.
    """
    threads = [ObserverThread(observer, say) for observer in observers if observer.keeps]
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
    sweep = stored_sweep(record)
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
