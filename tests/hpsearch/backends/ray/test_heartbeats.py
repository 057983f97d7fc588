"""A worker's heartbeats and the mailbox, without Ray: those whose answer is lost arrive, and arrive once."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import threading
from collections import defaultdict
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpsearch import RunningTrial
from hpsearch.backends.ray import worker as ray_worker
from hpsearch.backends.ray.mailbox import Mailbox
from hpsearch.backends.ray.messages import Location, RunRequest
from hpsearch.backends.ray.worker import RayWorker
from hpsearch.objective import Metric, Objective
from hpsearch.trial import Segment, Trial
from hpsearch.worker.job import Job

SECONDS = 60.0


class Over(BaseException):
    """Ends the thread that sends heartbeats."""


class Line:
    """The way to a mailbox. The answer to the first checkpoint is lost, and maybe the exchange as well."""

    answered: defaultdict[int, threading.Event]
    """By iteration: an exchange with its checkpoint was answered."""

    def __init__(self, loses_exchange: bool) -> None:
        Line.answered = defaultdict(threading.Event)
        self.mailbox = Mailbox()
        self.exchange_all = SimpleNamespace(remote=self._exchange_all)
        self._loses_exchange = loses_exchange
        self._loses = True

    def _exchange_all(self, *arguments: Any) -> SimpleNamespace:
        if self.answered[2].is_set():
            self.answered[3].set()
            raise Over
        answer: Future[Any] = Future()
        saves = arguments[-1][0].saves
        loses, self._loses = self._loses and bool(saves), self._loses and not saves
        if not (loses and self._loses_exchange):
            answer.set_result(asyncio.run(self.mailbox.exchange_all(*arguments)))
        if loses:
            answer = Future()
            answer.set_exception(TimeoutError())
        for saved in () if loses else saves:
            self.answered[saved.iteration].set()
        return SimpleNamespace(future=lambda: answer)


class BeatingWorker(RayWorker):
    def _beat(self) -> None:
        with contextlib.suppress(Over):
            super()._beat()


def saves_each(trial: RunningTrial) -> None:
    """Save three iterations, each once the last one's checkpoint has arrived."""
    for iteration in trial.iterations():
        trial.report({"loss": float(iteration)}, {"iteration": iteration})
        if iteration < 3:
            assert Line.answered[iteration].wait(SECONDS)
    assert Line.answered[3].wait(SECONDS), "the thread ends before its segment"


@pytest.mark.parametrize("loses_exchange", [False, True])
def test_heartbeats_that_are_sent_again_arrive_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loses_exchange: bool
) -> None:
    monkeypatch.setattr(ray_worker, "start_guardian", lambda *_, mark: SimpleNamespace(mark=mark))
    monkeypatch.setattr(ray_worker, "BEAT_SECONDS", 0.01)
    line = Line(loses_exchange)
    worker = BeatingWorker("w", line, lambda: Location("here", "127.0.0.1"))
    study, token = str(tmp_path), tmp_path / "token"
    token.write_text("seen")
    job = Job(study, "beats", f"{__name__}:saves_each", (), Objective(Metric("loss")), 1, 1)
    hello = worker.open(pickle.dumps(job), (), (str(token), "seen"))
    assert (hello.sees, hello.mistake) == (True, None)
    try:
        response = worker.respond(RunRequest(Trial(0, {}, 0, "random"), Segment(0, 0, 3, None, 1, 1), None, None))
    finally:
        worker.release()
    assert response is not None
    assert response.result.failure is None
    heartbeats = asyncio.run(line.mailbox.collect(study))
    assert [saved.iteration for heartbeat in heartbeats for saved in heartbeat.saves] == [1, 2]
    assert [report.iteration for heartbeat in heartbeats for report in heartbeat.reports] == [1, 2]
