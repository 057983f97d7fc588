from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from hpsearch.backends.inline import InlineBackend
from hpsearch.objective import Metric, Objective
from hpsearch.task import Message, Notice, Result, Task
from hpsearch.trial import Segment, Trial
from hpsearch.worker.job import Job


class StoppedClock(InlineBackend):
    """Its clock only moves when it is told to."""

    seconds: ClassVar[float] = 0.0

    def now(self) -> float:
        return self.seconds


class SlowToClose:
    def __init__(self, trial: object) -> None: ...

    def step(self) -> dict[str, float]:
        return {"loss": 1.0}

    def close(self) -> None:
        StoppedClock.seconds += 100.0


def test_closing_an_object_is_no_part_of_the_next_trials_time(tmp_path: Path) -> None:
    backend = StoppedClock()
    backend.open(Job(str(tmp_path), "sweep", SlowToClose, (), Objective(Metric("loss")), None, 1), lambda message: None)
    for number in range(2):
        task = Task(Trial(number, {}, 0, "random"), Segment(number, 0, 3, None, 1), timeout=10.0)
        backend.start(task)
        (outcome,) = backend.wait(None)
        assert isinstance(outcome, Result)
        assert outcome.iteration == 3
    assert StoppedClock.seconds == 100.0
    backend.close()


def test_trials_of_a_company_run_one_after_the_other_where_the_worker_can_have_but_one(tmp_path: Path) -> None:
    """They were lanes in a former run, of a trainable that had no `close()` yet."""
    backend = InlineBackend()
    job = Job(str(tmp_path), "sweep", SlowToClose, (), Objective(Metric("loss")), None, 1, lanes=3)
    backend.open(job, lambda message: None)
    for number, (part, company) in enumerate([(3, (0, 1)), (3, (0, 1)), (1, ())]):
        backend.start(Task(Trial(number, {}, 0, "random"), Segment(number, 0, 3, None, 1), None, part, company))
        assert backend.capacity(3) == 0
    outcomes: list[Message] = []
    while len(outcomes) < 3:
        outcomes += [message for message in backend.wait(None) if not isinstance(message, Notice)]
    assert all(isinstance(outcome, Result) and outcome.iteration == 3 for outcome in outcomes)
    assert backend.capacity(3) == 1
    backend.close()


def test_it_is_busy_while_a_trial_reports(tmp_path: Path) -> None:
    backend, busy = InlineBackend(), []
    job = Job(str(tmp_path), "sweep", SlowToClose, (), Objective(Metric("loss")), None, 1)
    backend.open(job, lambda message: busy.append(backend.workers().busy))
    backend.start(Task(Trial(0, {}, 0, "random"), Segment(0, 0, 2, None, 1), None))
    backend.wait(None)
    assert set(busy) == {1}
    assert backend.workers().busy == 0
    backend.close()
