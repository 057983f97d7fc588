"""What follows from the end of an attempt, as a table of cases."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hpsearch.errors import StorageError
from hpsearch.events import Dropped, Failed, Finished, Lost, Reverted
from hpsearch.run.verdicts import MOST_LOSSES, Rules, Verdict, verdict
from hpsearch.study.trial_record import RollbackPoint, TrialRecord, TrialResult
from hpsearch.sweep.parts import Limits, Metric, Resources, Scaling
from hpsearch.task import Result, Task
from hpsearch.trial import Failure, Parent, Report, Segment, Trial
from tests.hpsearch.support.scripted import sweep_of

REPORTS = (Report(3, 4, {"loss": 2.0}, 0.1),)
ROLLBACK_POINT = RollbackPoint(TrialResult(3, {"loss": 1.0}, 1.0, 3), "c3", 3, 1)


TRIAL = Trial(3, {"x": 0.5}, 0, "random")
FORK = replace(TRIAL, parent=Parent(1, 3, "c1"), start=3)


def record(**changes: Any) -> TrialRecord:
    """Trial 3, whose second attempt runs from iteration 3 to 9."""
    out = TrialRecord(changes.pop("trial", TRIAL))
    out.checkpoint, out.checkpoint_iteration = "c3", 3
    out.segment, out.attempts, out.width = Segment(3, 3, 9, "c3", 2, 2), 2, 2
    for name, value in changes.items():
        setattr(out, name, value)
    return out


def result(failure: Failure | None = None, **changes: Any) -> Result:
    return replace(Result(3, 2, 4, None, REPORTS, False, 1.5, failure), **changes)


def failure(kind: Any, message: str = "m") -> Failure:
    return Failure(kind, message, "Traceback")


def rules(proven: bool = True, ending: bool = False, scaling: Scaling | None = None, **limits: Any) -> Rules:
    return Rules(sweep_of(limits=Limits(**limits), scaling=scaling or Scaling()), proven, ending)


RAISED, CONTRACT = failure("raised"), failure("contract")
TIMED_OUT = Task(TRIAL, Segment(3, 3, 9, "c3", 2), 9.0).timed_out("", 9.0)
TIMEOUT = Failure("timeout", "killed: it ran over its trial_timeout", "")
GONE = Lost(3, 2, "node 7 died", seconds=0.5)
FAILED = Failed(3, 2, RAISED, False, REPORTS, 1.5)
RETRY = Failed(3, 2, RAISED, True, (), 1.5)
BROKEN = Failed(3, 2, CONTRACT, False, REPORTS, 1.5)
LOST = Lost(3, 2, "node 7 died", True, 0.5)
DIED = f"its worker died {MOST_LOSSES} times in a row without progress; the last time: node 7 died"


def reverted(why: str, seconds: float = 1.5) -> Reverted:
    return Reverted(3, 2, 3, f"width 2: {why}", seconds, None)


@pytest.mark.parametrize(
    ("ended", "changes", "by", "events"),
    [
        (result(), {}, rules(), (Finished(3, 2, 4, None, REPORTS, False, 1.5),)),
        (result(cut=True), {"rollback_point": ROLLBACK_POINT}, rules(), (Finished(3, 2, 4, None, REPORTS, True, 1.5),)),
        (result(RAISED), {}, rules(), (FAILED,)),
        (result(RAISED), {"failures": 1}, rules(max_retries=2), (RETRY,)),
        (result(RAISED), {"failures": 2}, rules(max_retries=2), (FAILED,)),
        (result(RAISED), {"seconds": 8.0}, rules(max_retries=2, trial_timeout=10), (RETRY,)),
        (result(RAISED), {"seconds": 8.5}, rules(max_retries=2, trial_timeout=10), (FAILED,)),
        (result(RAISED), {"seconds": 9.0, "excused": 4.0}, rules(max_retries=2, trial_timeout=10), (RETRY,)),
        (result(CONTRACT), {}, rules(max_retries=2), (BROKEN,)),
        (result(CONTRACT), {"rollback_point": ROLLBACK_POINT}, rules(proven=False), (BROKEN,)),
        (TIMED_OUT, {}, rules(max_retries=2), (Failed(3, 2, TIMEOUT, False, (), 9.0),)),
        (result(failure("checkpoint")), {}, rules(), (Lost(3, 2, "m", False, 1.5), Dropped(3, "m"))),
        # A fork goes back to what it was forked from, and fails where that is what is damaged.
        (result(failure("checkpoint")), {"trial": FORK}, rules(), (Lost(3, 2, "m", False, 1.5), Dropped(3, "m"))),
        (
            result(failure("checkpoint")),
            {"trial": FORK, "segment": Segment(3, 3, 9, "c1", 2, 2)},
            rules(max_retries=2),
            (Failed(3, 2, failure("checkpoint"), False, REPORTS, 1.5),),
        ),
        (result(failure("storage")), {}, rules(), (Lost(3, 2, "m", False, 1.5),)),
        (GONE, {"losses": MOST_LOSSES - 2}, rules(), (LOST,)),
        (GONE, {"losses": MOST_LOSSES - 1}, rules(), (Failed(3, 2, Failure("died", DIED, ""), False, (), 0.5),)),
        (GONE, {"losses": MOST_LOSSES - 1}, rules(ending=True), (LOST,)),
        (
            replace(GONE, counts_against_trial=False),
            {"losses": MOST_LOSSES - 1},
            rules(),
            (replace(LOST, counts_against_trial=False),),
        ),
        (GONE, {"losses": MOST_LOSSES - 1, "rollback_point": ROLLBACK_POINT}, rules(), (reverted(DIED, 0.5),)),
        # A script that was ended from outside, as by the signal that asks this process to end.
        (result(failure("died", "node 7 died")), {}, rules(), (replace(LOST, seconds=1.5),)),
        (
            result(failure("died", "node 7 died")),
            {"losses": MOST_LOSSES - 1},
            rules(),
            (Failed(3, 2, Failure("died", DIED, ""), False, (), 1.5),),
        ),
        (result(RAISED), {"rollback_point": ROLLBACK_POINT}, rules(), (reverted("m"),)),
        (result(CONTRACT), {"rollback_point": ROLLBACK_POINT}, rules(), (reverted("m"),)),
        (result(), {"rollback_point": ROLLBACK_POINT}, rules(), (Finished(3, 2, 4, None, REPORTS, False, 1.5),)),
        (
            result(),
            {"rollback_point": ROLLBACK_POINT},
            rules(scaling=Scaling(batch="per_worker", tolerance=0.1)),
            (reverted("loss 2 after 1, worse by more than the 10% of scaling.tolerance"),),
        ),
    ],
)
def test_what_follows_from_the_end_of_an_attempt(ended, changes, by, events):
    got = verdict(ended, record(**changes), by)
    assert got.events == events
    assert (got.mistake is not None) == (ended == result(failure("storage")))


def test_with_scope_best_a_trial_is_compared_with_what_it_reported_last_before_it_was_widened():
    """Its best may lie long before: that it isn't reached says nothing about the width."""
    sweep = sweep_of(metric=Metric("loss", scope="best"), scaling=Scaling(batch="per_worker", tolerance=0.1))
    point = RollbackPoint(TrialResult(3, {"loss": 1.9}, 0.5, 1), "c3", 3, 1)
    assert verdict(result(), record(rollback_point=point), Rules(sweep)).events == (
        Finished(3, 2, 4, None, REPORTS, False, 1.5),
    )


def test_a_full_disk_ends_the_sweep_with_what_to_do():
    mistake = verdict(result(failure("storage", "no space left")), record(), rules()).mistake
    assert isinstance(mistake, StorageError)
    assert str(mistake) == "no space left"


def test_the_user_hears_of_a_trial_that_starts_anew_or_goes_back_and_of_nothing_else():
    back = verdict(result(failure("checkpoint", "it is gone")), record(trial=FORK), rules())
    assert back.message == "trial 3 starts again from the checkpoint of trial 1: it is gone"
    anew = verdict(result(failure("checkpoint", "it is gone")), record(), rules())
    assert anew.message == "trial 3 starts again from zero: it is gone"
    back = verdict(result(RAISED), record(rollback_point=ROLLBACK_POINT), rules())
    assert back.message == "trial 3 goes back to iteration 3 and to fewer workers: width 2: m"
    assert verdict(result(RAISED), record(), rules()) == Verdict((FAILED,))


MEMORY = failure("memory")


@pytest.mark.parametrize(
    ("changes", "shares", "workers", "most", "then"),
    [
        ({}, True, 1, None, "alone"),
        ({"company": (3,)}, True, 1, None, None),
        ({"company": (3,)}, True, 4, 4, "wider"),
        ({}, False, 4, 4, "wider"),
        ({}, False, 4, None, None),
        ({}, False, 1, 4, None),
        ({"width": 2, "narrowest": 2}, True, 4, 4, "wider"),
        ({"width": 2, "narrowest": 2}, True, 3, 4, None),
        ({"width": 4, "narrowest": 4}, True, 9, 4, None),
        ({"widest": 1}, False, 4, 4, None),
    ],
)
def test_a_trial_without_memory_enough_gets_a_worker_for_itself_then_more_of_them_and_then_fails(
    changes, shares, workers, most, then
):
    sweep = sweep_of(resources=Resources(max_workers_per_trial=most), limits=Limits(max_retries=0))
    by = Rules(sweep, shares=shares, workers=workers)
    follows = verdict(result(MEMORY), record(**{"width": 1, **changes}), by)
    if then is not None:
        assert follows.events == (Lost(3, 2, "not enough memory: m", False, 1.5, then),)
        assert follows.message.startswith("trial 3 runs again ")
        return
    (event,) = follows.events
    assert isinstance(event, Failed)
    width = changes.get("width", 1)
    had = "a worker for itself" if width == 1 else f"{width} workers"
    assert event.failure == failure("memory", f"m; it had {had}")


def test_a_trial_that_was_widened_for_speed_goes_back_for_want_of_memory_and_one_that_was_for_memory_doesnt():
    sweep = sweep_of(resources=Resources(max_workers_per_trial=4))
    by = Rules(sweep, workers=4)
    back = verdict(result(MEMORY), record(rollback_point=ROLLBACK_POINT), by)
    assert [type(event) for event in back.events] == [Reverted]
    on = verdict(result(MEMORY), record(rollback_point=ROLLBACK_POINT, narrowest=2), by)
    assert on.events == (Lost(3, 2, "not enough memory: m", False, 1.5, "wider"),)


def test_memory_that_lacks_beside_others_is_no_fault_of_the_workers_that_a_trial_had_before():
    by = Rules(sweep_of(resources=Resources(max_workers_per_trial=4)), workers=4, shares=True)
    follows = verdict(result(MEMORY), record(rollback_point=ROLLBACK_POINT, width=1), by)
    assert follows.events == (Lost(3, 2, "not enough memory: m", False, 1.5, "alone"),)


@pytest.mark.parametrize(
    ("company", "how"),
    [((3,), {"then": "alone"}), ((2, 3, 7), {"then": "halved", "company": (2, 3, 7)})],
)
def test_what_ran_beside_others_on_a_worker_that_died_runs_beside_those_that_are_named_or_alone(company, how):
    assert verdict(replace(GONE, counts_against_trial=False, company=company), record(), rules()).events == (
        replace(LOST, counts_against_trial=False, **how),
    )
