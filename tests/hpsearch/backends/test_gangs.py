from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpsearch.backends.gangs import GRACE_SECONDS, Gang, Loss, halved
from hpsearch.events import Lost
from hpsearch.task import Result, Task
from hpsearch.trial import Failure, Report, Segment, Trial

KEY = (4, 2)


def make_gang(width: int) -> Gang:
    return Gang(Task(Trial(4, {}, 0, "random"), Segment(4, 0, 9, None, 2, width), None))


def result(iteration: int = 9, kind: str = "", rank: int = 0) -> Result:
    failure = Failure(kind, f"what rank {rank} said", "text") if kind else None  # type: ignore[arg-type]
    reports = (Report(4, iteration, {"value": 1.0}, 1.0),) if rank == 0 else ()
    checkpoint = "trials/00004/2/hpsearch-checkpoint-9" if rank == 0 and not kind else None
    return Result(*KEY, iteration, checkpoint, reports, False, 1.0, failure)


def test_the_result_of_rank_0_is_the_gangs_once_all_are_back():
    gang = make_gang(3)
    gang.landed(0, result(), 1.0)
    gang.landed(2, result(rank=2), 1.0)
    assert gang.outcome() is None
    gang.landed(1, result(rank=1), 1.0)
    assert gang.outcome() == result()


def test_a_gang_of_one_speaks_of_no_ranks():
    gang = make_gang(1)
    gang.lost(0, Loss("killed"), 0.0)
    assert gang.outcome() == Lost(*KEY, "killed")
    gang = make_gang(1)
    gang.landed(0, result(kind="raised"), 0.0)
    assert gang.outcome() == replace(result(kind="raised"), checkpoint=None)
    gang = make_gang(1)
    gang.lost(0, Loss("its worker was replaced", "spared"), 0.0)
    assert gang.outcome() == Lost(*KEY, "its worker was replaced", counts_against_trial=False)


@pytest.mark.parametrize("other", ["", "peer", "raised"])
def test_a_lost_worker_counts_whatever_the_others_say(other):
    gang = make_gang(2)
    gang.landed(0, result(kind=other), 0.0)
    gang.lost(1, Loss("it was killed", seconds=3.5), 0.0)
    assert gang.outcome() == Lost(*KEY, "rank 1 of 2: it was killed", seconds=3.5)


def test_a_timeout_counts_whatever_the_others_say():
    gang = make_gang(3)
    gang.landed(1, result(kind="peer", rank=1), 0.0)
    gang.lost(0, Loss("killed", "timeout", 9.5), 0.0)
    gang.lost(2, Loss("killed", "timeout"), 0.0)
    outcome = gang.outcome()
    assert isinstance(outcome, Result)
    assert outcome.failure is not None
    assert outcome.failure.kind == "timeout"
    assert outcome.failure.message == "killed: it ran over its trial_timeout (killed)"
    assert outcome.seconds == 9.5


def test_the_failure_of_its_own_counts_and_not_those_that_it_caused():
    gang = make_gang(3)
    gang.landed(0, result(5, kind="peer"), 0.0)
    gang.landed(1, result(5, kind="peer", rank=1), 0.0)
    gang.landed(2, result(5, kind="raised", rank=2), 0.0)
    outcome = gang.outcome()
    assert isinstance(outcome, Result)
    assert outcome.failure == Failure("raised", "rank 2 of 3: what rank 2 said", "text")
    assert (outcome.iteration, outcome.reports) == (5, result(5).reports)


def test_of_several_failures_of_their_own_the_lowest_ranks_counts():
    gang = make_gang(3)
    gang.landed(2, result(kind="contract", rank=2), 0.0)
    gang.landed(1, result(kind="raised", rank=1), 0.0)
    gang.landed(0, result(kind="checkpoint"), 0.0)
    outcome = gang.outcome()
    assert isinstance(outcome, Result)
    assert outcome.failure is not None
    assert outcome.failure.kind == "checkpoint"


def test_ranks_that_ran_unlike_break_the_contract():
    gang = make_gang(2)
    gang.landed(1, result(3, rank=1), 0.0)
    gang.landed(0, result(4, kind="peer"), 0.0)
    outcome = gang.outcome()
    assert isinstance(outcome, Result)
    failure = outcome.failure
    assert failure is not None
    assert failure.kind == "contract"
    assert "rank 1 ended after iteration 3 and rank 0, at iteration 4, still needed it" in failure.message
    assert outcome.checkpoint is None


def test_where_all_blame_the_others_it_is_nobodys_fault():
    gang = make_gang(2)
    gang.landed(1, result(kind="peer", rank=1), 0.0)
    gang.landed(0, result(kind="peer"), 0.0)
    assert gang.outcome() == Lost(*KEY, "rank 0 of 2: what rank 0 said", seconds=result().seconds)


def test_others_are_late_some_time_after_rank_0_or_after_anything_went_wrong():
    late = GRACE_SECONDS + 1.1
    gang = make_gang(3)
    assert not gang.is_late(1e9)
    gang.landed(1, result(rank=1), 1.0)  # rank 0 may be writing a checkpoint
    assert not gang.is_late(1e9)
    gang.landed(0, result(), 1.0)
    assert not gang.is_late(GRACE_SECONDS)
    assert gang.is_late(late)
    gang = make_gang(2)
    gang.landed(1, result(kind="raised", rank=1), 1.0)
    assert gang.is_late(late)
    gang = make_gang(2)
    gang.lost(1, Loss("killed"), 1.0)
    gang.landed(0, result(kind="peer"), 5.0)
    assert gang.is_late(late)


def test_those_that_were_killed_for_being_late_change_nothing():
    gang = make_gang(2)
    gang.landed(0, result(), 0.0)
    gang.lost(1, Loss("it stayed", "late"), 20.0)
    assert gang.outcome() == result()
    gang = make_gang(2)
    gang.landed(1, result(7, kind="raised", rank=1), 0.0)
    gang.lost(0, Loss("it stayed", "late"), 20.0)
    outcome = gang.outcome()
    assert isinstance(outcome, Result)
    assert outcome.failure is not None
    assert outcome.failure.kind == "raised"
    assert outcome.reports == ()


def test_a_rank_that_was_late_may_be_the_one_that_others_needed():
    """Its node died in the last iteration, where rank 0 had all that it needed, and that came out too late."""
    gang = make_gang(3)
    gang.landed(0, result(), 0.0)
    gang.landed(1, result(8, kind="peer", rank=1), 0.0)
    gang.lost(2, Loss("it stayed", "late"), 20.0)
    assert gang.outcome() == Lost(*KEY, "rank 1 of 3: what rank 1 said", seconds=result().seconds)


ENDS = st.one_of(
    st.builds(
        result, st.integers(1, 9), st.sampled_from(["", "", "peer", "raised", "contract", "checkpoint", "storage"])
    ),
    st.builds(Loss, st.just("why"), st.sampled_from(["died", "spared", "timeout"])),
)


@given(st.lists(ENDS, min_size=1, max_size=5), st.randoms())
def test_whatever_happens_there_is_one_outcome_when_all_have_ended(ends, order):
    gang = make_gang(len(ends))
    ranks = list(range(len(ends)))
    order.shuffle(ranks)
    for count, rank in enumerate(ranks):
        assert gang.outcome() is None, count
        end = ends[rank]
        if isinstance(end, Loss):
            gang.lost(rank, end, 0.0)
        else:
            gang.landed(rank, end, 0.0)
    outcome = gang.outcome()
    assert outcome is not None
    assert (outcome.trial, outcome.attempt) == KEY
    lost = [end for end in ends if isinstance(end, Loss)]
    failures = [end.failure for end in ends if isinstance(end, Result) and end.failure is not None]
    if lost:
        assert isinstance(outcome, Lost) or (outcome.failure is not None and outcome.failure.kind == "timeout")
    elif not failures:
        assert outcome == ends[0]
    else:
        blameless = len(failures) == len(ends) and all(failure.kind == "peer" for failure in failures)
        assert isinstance(outcome, Lost if blameless else Result)
        assert not isinstance(outcome, Result) or outcome.failure is not None


@given(st.sets(st.integers(0, 99), min_size=2))
def test_those_that_are_lost_together_are_halved_in_their_order(trials):
    companies = halved(trials)
    first, second = sorted(set(companies.values()))
    assert (*first, *second) == tuple(sorted(trials))
    assert 0 <= len(first) - len(second) <= 1
    assert all(trial in companies[trial] for trial in trials)
