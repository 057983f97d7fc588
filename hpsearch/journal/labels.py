"""Tags and a note of a study. They are stored in its journal, and have no effect on the sweep."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hpsearch.errors import HpsearchError, JournalError
from hpsearch.journal.directory import StudyDirectory
from hpsearch.journal.journal import LABELS, Journal, Request
from hpsearch.journal.provenance import process_name

_TAG, _UNTAG, _NOTE = LABELS


@dataclass(frozen=True, slots=True)
class Labels:
    """The tags and the note of a study."""

    tags: tuple[str, ...] = ()
    """Tags, in the order of addition."""
    note: str = ""
    """The newest note."""


def labels_in(requests: Iterable[Request]) -> Labels:
    """Return the labels among all requests of a journal.

    Raises:
        JournalError: A request is damaged.
    """
    tags: dict[str, None] = {}
    note = ""
    for request in requests:
        details = request.details
        if request.verb == _TAG:
            tags.update(dict.fromkeys(_tags_of(request)))
        elif request.verb == _UNTAG:
            for tag in _tags_of(request):
                tags.pop(tag, None)
        elif request.verb == _NOTE:
            note = str(details.get("text", ""))
    return Labels(tuple(tags), note)


def _tags_of(request: Request) -> list[str]:
    tags = request.details.get("tags", [])
    if not isinstance(tags, list):
        raise JournalError(f"request {request.number} can't be read: its tags must be a list, got {tags!r:.80}")
    return list(map(str, tags))


def labels_of(study_dir: StudyDirectory) -> Labels:
    """Return the labels of a study.

    Raises:
        JournalError: There is no study here, or it can't be read.
    """
    with Journal.read(study_dir.journal) as journal:
        return labels_in(journal.all_requests())


def check_tags(tags: Sequence[str]) -> Sequence[str]:
    """Return tags that are words, without spaces, commas or control characters.

    Raises:
        HpsearchError: A tag isn't a word.
    """
    for tag in tags:
        if not tag or not tag.isprintable() or any(sign.isspace() or sign == "," for sign in tag):
            raise HpsearchError(f"a tag must be a word without spaces and commas, got {tag!r}; longer text is a note")
    return tags


def add_tags(study_dir: StudyDirectory, tags: Sequence[str]) -> Labels:
    """Add tags to a study; return all its labels.

    Raises:
        HpsearchError: A tag isn't a word.
        JournalError: There is no study here, or it can't be written.
    """
    return _request(study_dir, _TAG, {"tags": list(check_tags(tags))})


def remove_tags(study_dir: StudyDirectory, tags: Sequence[str]) -> Labels:
    """Remove tags from a study; return all its labels.

    Raises:
        HpsearchError: The study doesn't have one of the tags.
        JournalError: There is no study here, or it can't be written.
    """
    existing = labels_of(study_dir).tags
    for tag in tags:
        if tag not in existing:
            there = f"its tags are {', '.join(existing)}" if existing else "it has none"
            raise HpsearchError(f"{study_dir.path}: must have the tag {tag!r} to lose it; {there}")
    return _request(study_dir, _UNTAG, {"tags": list(tags)})


def write_note(study_dir: StudyDirectory, text: str) -> Labels:
    """Replace the note of a study; an empty note removes it.

    Raises:
        JournalError: There is no study here, or it can't be written.
    """
    return _request(study_dir, _NOTE, {"text": text})


def _request(study_dir: StudyDirectory, verb: str, details: dict[str, object]) -> Labels:
    with Journal.read(study_dir.journal) as journal:
        journal.request(verb, details, by=process_name())
        return labels_in(journal.all_requests())
