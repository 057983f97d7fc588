"""What lanes of a worker are to their neighbours: nothing, until the worker is lost."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from hpsearch.errors import BackendError
from hpsearch.events import Lost
from hpsearch.objective import Metric, Objective
from hpsearch.task import (
    Message,
    Progress,
    Result,
    Task,
)
from hpsearch.trial import Segment, Trial
from hpsearch.worker.job import Job
from tests.hpsearch.support.driver import is_timeout
from tests.hpsearch.support.packing import PackingBackend


@pytest.fixture
def packing() -> PackingBackend:
    """Two workers."""
    made = PackingBackend(2, metric=lambda _, iteration: float(iteration))
    made.open(Job("", "s", "", (), Objective(Metric("value")), None, 1), lambda message: None)
    return made


def task(number: int, end: int = 3, lanes: int = 3, timeout: float | None = None, width: int = 1) -> Task:
    trial = Trial(number, {}, 0, "random")
    return Task(trial, Segment(number, 0, end, None, 1, width), timeout, lanes)


def outcomes(packing: PackingBackend) -> dict[int, Message]:
    """Let all come to their ends; return each trial's one outcome."""
    ended: dict[int, Message] = {}
    while messages := packing.wait(None):
        for message in messages:
            if isinstance(message, Result | Lost):
                assert message.trial not in ended
                ended[message.trial] = message
    return ended


def whole(messages: Sequence[Message]) -> None:
    """See that these attempts ran to their ends as if they had been alone."""
    for message in messages:
        assert isinstance(message, Result)
        result = message
        assert (result.iteration, result.cut, result.failure) == (3, False, None)
        assert [report.metrics["value"] for report in result.reports] == [1.0, 2.0, 3.0]


def start_three(packing: PackingBackend, timeout: float | None = None) -> None:
    """Fill a worker with trials 0, 1 and 2, and let them run for a second; trial 1 has the timeout."""
    for number in range(3):
        packing.start(task(number, timeout=timeout if number == 1 else None))
    assert len({packing.worker_of(number) for number in range(3)}) == 1
    assert all(isinstance(message, Progress) for message in packing.wait(None))


def test_capacity_is_asked_for_each_kind_of_place(packing):
    def capacities() -> list[int]:
        return [packing.capacity(lanes) for lanes in (1, 3, 2)]

    assert capacities() == [2, 6, 4]
    packing.start(task(0))
    assert capacities() == [1, 5, 3]
    packing.start(task(1, lanes=1))
    assert capacities() == [0, 2, 1]
    packing.start(task(2))
    packing.start(task(3))
    assert capacities() == [0, 0, 0]
    with pytest.raises(BackendError, match="no room for trial 4"):
        packing.start(task(4))
    outcomes(packing)
    assert capacities() == [2, 6, 4]


def test_tasks_join_and_leave_a_worker_at_any_time(packing):
    packing.start(task(0, end=5))
    packing.wait(None)
    packing.start(task(1, end=1))
    (_, left) = packing.wait(None)
    assert isinstance(left, Result)
    packing.start(task(2, end=2))
    assert packing.worker_of(2) == packing.worker_of(0)
    ended = outcomes(packing)
    assert list(ended) == [2, 0]
    assert packing.now() == 5.0


def test_a_cut_ends_one_lane(packing):
    start_three(packing)
    packing.cut(1, 1)
    ended = outcomes(packing)
    cut = ended.pop(1)
    assert isinstance(cut, Result)
    assert (cut.iteration, cut.cut) == (2, True)
    whole(list(ended.values()))
    assert sorted(ended) == [0, 2]


def test_a_timeout_ends_one_lane(packing):
    start_three(packing, timeout=2.0)
    ended = outcomes(packing)
    assert is_timeout(ended.pop(1))
    whole(list(ended.values()))
    assert sorted(ended) == [0, 2]


def test_a_failure_ends_one_lane(packing):
    start_three(packing)
    packing.fail(1)
    ended = outcomes(packing)
    failed = ended.pop(1)
    assert isinstance(failed, Result)
    assert failed.failure is not None
    whole(list(ended.values()))
    assert sorted(ended) == [0, 2]


def test_a_lost_worker_loses_all_its_lanes_and_no_others_each_with_one_outcome(packing):
    start_three(packing)
    packing.start(task(3))
    assert packing.worker_of(3) != packing.worker_of(0)
    packing.lose(packing.worker_of(0))
    ended = outcomes(packing)
    whole([ended.pop(3)])
    assert sorted(ended) == [0, 1, 2]
    assert all(isinstance(message, Lost) for message in ended.values())
    assert packing.capacity(3) == 6
