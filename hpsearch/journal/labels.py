"""What people wrote on a study: its tags and a note. They are words left in its journal, and decide nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hpsearch.errors import HpsearchError
from hpsearch.journal.directory import StudyDirectory
from hpsearch.journal.journal import Journal
from hpsearch.journal.provenance import process_name
from hpsearch.journal.requests import LABELS, Request

__all__ = ["Labels", "add_tags", "check_tags", "labels_in", "labels_of", "remove_tags", "write_note"]

_TAG, _UNTAG, _NOTE = LABELS


@dataclass(frozen=True, slots=True)
class Labels:
    """The tags and the note of a study."""

    tags: tuple[str, ...] = ()
    """In the order in which they were given."""
    note: str = ""
    """The one that was written last."""


def labels_in(requests: Iterable[Request]) -> Labels:
    """Find the labels among all words that were left in a journal."""
    tags: dict[str, None] = {}
    note = ""
    for request in requests:
        given = request.details
        if request.verb == _TAG:
            tags.update(dict.fromkeys(map(str, given.get("tags", ()))))
        elif request.verb == _UNTAG:
            for tag in given.get("tags", ()):
                tags.pop(str(tag), None)
        elif request.verb == _NOTE:
            note = str(given.get("text", ""))
    return Labels(tuple(tags), note)


def labels_of(study_dir: StudyDirectory) -> Labels:
    """Give the labels of a study.

    Raises:
        JournalError: There is no study here, or it can't be read.
    """
    with Journal.read(study_dir.journal) as journal:
        return labels_in(journal.all_requests())


def check_tags(tags: Sequence[str]) -> Sequence[str]:
    """Give tags on that are words, with no spaces, commas or control characters.

    Raises:
        HpsearchError: One isn't.
    """
    for tag in tags:
        if not tag or not tag.isprintable() or any(sign.isspace() or sign == "," for sign in tag):
            raise HpsearchError(f"a tag must be a word without spaces and commas, got {tag!r}; longer text is a note")
    return tags


def add_tags(study_dir: StudyDirectory, tags: Sequence[str]) -> Labels:
    """Put tags on a study; answer with all labels that it has now.

    Raises:
        HpsearchError: One isn't a word.
        JournalError: There is no study here, or it can't be written.
    """
    return _left(study_dir, _TAG, {"tags": list(check_tags(tags))})


def remove_tags(study_dir: StudyDirectory, tags: Sequence[str]) -> Labels:
    """Take tags off a study; answer with all labels that it has now.

    Raises:
        HpsearchError: It doesn't have one of them.
        JournalError: There is no study here, or it can't be written.
    """
    known = labels_of(study_dir).tags
    for tag in tags:
        if tag not in known:
            there = f"its tags are {', '.join(known)}" if known else "it has none"
            raise HpsearchError(f"{study_dir.path}: must have the tag {tag!r} to lose it; {there}")
    return _left(study_dir, _UNTAG, {"tags": list(tags)})


def write_note(study_dir: StudyDirectory, text: str) -> Labels:
    """Write the note of a study, in place of one that is there; an empty one takes it away.

    Raises:
        JournalError: There is no study here, or it can't be written.
    """
    return _left(study_dir, _NOTE, {"text": text})


def _left(study_dir: StudyDirectory, verb: str, details: dict[str, object]) -> Labels:
    with Journal.read(study_dir.journal) as journal:
        journal.request(verb, details, by=process_name())
        return labels_in(journal.all_requests())
