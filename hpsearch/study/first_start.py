"""The first segment of a new trial: what the scheduler asked for and what was suggested, put together."""

from __future__ import annotations

from hpsearch.events import Started
from hpsearch.schedulers.base import NewTrial
from hpsearch.searchers import Suggestion
from hpsearch.seeds import trial_seed
from hpsearch.study.trial_record import TrialRecord
from hpsearch.study.trial_records import TrialRecords, owner_of
from hpsearch.trial import Parent, Segment, StateAt, Trial

__all__ = ["first_start", "record_of_parent"]


def first_start(answer: NewTrial, suggestion: Suggestion, records: TrialRecords, seed: int, told: bool) -> Started:
    """Give the start of a new trial.

    Args:
        answer: What the scheduler asked for.
        suggestion: What is to be tried.
        records: Of the trials before it.
        seed: The sweep's.
        told: Trials run elsewhere, and whoever runs them keeps their states.

    Raises:
        ValueError: There is no such trial to fork, or the fork would start behind its end.
    """
    wanted, start = (suggestion.parent, 0) if answer.parent is None else (answer.parent, answer.start)
    if answer.until is not None and start >= answer.until:
        raise ValueError(f"a fork must start before the end of its segment, at {answer.until}, not at {start}")
    parent = None
    if wanted is not None:
        forked = record_of_parent(wanted, records).trial
        iteration, checkpoint = records.checkpoint_at(wanted)
        saved_by = forked if checkpoint is None else records.of(owner_of(checkpoint)).trial
        parent = Parent(forked.number, iteration, checkpoint, saved_by.params)
        # What its checkpoint hasn't done, the fork has to do, as every trial does that goes on from an older one.
        start = min(start, parent.iteration) if parent.checkpoint is not None or told else 0
    trial = Trial(answer.number, suggestion.params, trial_seed(seed, answer.number), suggestion.origin, parent, start)
    checkpoint = None if parent is None else parent.checkpoint
    segment = Segment(answer.number, start, answer.until, checkpoint, 1)
    return Started(segment, trial, bracket=answer.bracket, rung=answer.rung)


def record_of_parent(wanted: StateAt, records: TrialRecords) -> TrialRecord:
    """Give the record of a trial that is to be forked.

    Raises:
        ValueError: There is none.
    """
    if not 0 <= wanted.trial < len(records):
        raise ValueError(f"a trial must be forked from one of {len(records)}, got {wanted.trial}")
    return records.of(wanted.trial)
