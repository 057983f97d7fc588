from __future__ import annotations

from hpsearch.events import Started
from hpsearch.journal.event_codec import decode, encode
from hpsearch.objective import Metric, Objective
from hpsearch.schedulers.base import NewTrial
from hpsearch.searchers import Suggestion
from hpsearch.study.new_trials import first_start
from hpsearch.study.trial_records import TrialRecords
from hpsearch.trial import Parent, Segment, StateAt, Trial, TrialState


def test_a_fork_knows_the_params_of_the_trial_that_saved_its_first_checkpoint():
    records = TrialRecords(Objective(Metric("loss")))
    path = "trials/00000/1/hpsearch-checkpoint-3"
    records.start(Started(Segment(0, 0, 3, None, 1), Trial(0, {"lr": 0.1}, 0, "random")))
    records.of(0).save(3, path)
    records.release(0, TrialState.WAITING)
    for number in (1, 2):  # the second is forked from the first, which has saved nothing yet
        answer = NewTrial(number, 9, 0, 0, StateAt(number - 1, 3), 3)
        event = first_start(answer, Suggestion({"lr": 0.1 + number}, "random"), records, 0, is_ask_tell=False)
        assert event.new is not None
        assert event.new.parent == Parent(number - 1, 3, path, {"lr": 0.1})
        assert decode(*encode(event)) == event
        records.start(event)
        records.release(number, TrialState.WAITING)


def test_a_journal_of_before_has_no_params_of_parents():
    new = Trial(1, {}, 0, "random", Parent(0, 3, "c"), 3)
    kind, trial, body = encode(Started(Segment(1, 3, 9, "c", 1), new))
    event = decode(kind, trial, body.replace(',"params":{}}', "}", 1))
    assert isinstance(event, Started)
    assert event.new == new
