"""The agent's side of the protocol: what it should run, and what the driver hasn't acknowledged. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hpsearch.backends.agents.messages import AgentState, AttemptState, Key, Orders
from hpsearch.backends.gangs import Loss
from hpsearch.events import Saved
from hpsearch.task import Result, Task
from hpsearch.trial import Report


class Outbox:
    """Keeps what an agent has to say about its attempt until the driver has acknowledged it.

    An attempt is kept, also after its end, while the driver's orders list its task. So no task is run twice.

    Args:
        agent: Identifies the agent's process.
        host: Its machine.
    """

    def __init__(self, agent: str, host: str) -> None:
        self._agent = agent
        self._host = host
        self.orders = Orders("", 0, agent, 0, None, False, 0, 0, "")
        """The last orders; of no driver before the first ones."""
        self._former: set[str] = set()
        """Drivers before the last one, whose orders may still be on their way."""
        self._counter = 0
        self.attempt: AttemptState | None = None
        """The attempt that runs, or whose end isn't acknowledged."""

    def receive(self, orders: Orders) -> bool:
        """Read orders; return whether they are new. An attempt that they don't list is dropped."""
        if orders.agent != self._agent or orders.driver in self._former:
            return False
        if orders.driver != self.orders.driver:
            self._former.add(self.orders.driver)
        elif orders.counter <= self.orders.counter:
            return False
        self.orders = orders
        attempt = self.attempt
        if attempt is not None and (orders.task is None or orders.task.key != attempt.key):
            self.attempt = None
        elif attempt is not None:
            self.attempt = replace(
                attempt,
                reports=tuple(report for report in attempt.reports if report.iteration > orders.decided),
                saves=tuple(saved for saved in attempt.saves if saved.iteration > orders.counted),
            )
        return True

    def next_task(self) -> Task | None:
        """Return the task to begin now; None: there is none, or it has begun."""
        return self.orders.task if self.attempt is None else None

    def begin(self, task: Task) -> None:
        """Record that a task begins."""
        assert self.attempt is None, "one at a time"
        self.attempt = AttemptState(*task.key, (), (), None, None, {})

    def is_running(self, key: Key) -> bool:
        """Return whether this attempt runs."""
        return self._running(key) is not None

    def _running(self, key: Key) -> AttemptState | None:
        attempt = self.attempt
        runs = attempt is not None and attempt.key == key and attempt.result is None and attempt.loss is None
        return attempt if runs else None

    def reported(self, key: Key, report: Report) -> None:
        """Record a report; ignore it if the attempt was dropped."""
        if (attempt := self._running(key)) is not None:
            self.attempt = replace(attempt, reports=(*attempt.reports, report))

    def noted(self, key: Key, notes: Mapping[str, str]) -> None:
        """Record notes; ignore them if the attempt was dropped."""
        if (attempt := self._running(key)) is not None:
            self.attempt = replace(attempt, notes={**attempt.notes, **notes})

    def saved(self, saved: Saved) -> None:
        """Record a checkpoint; ignore it if the attempt was dropped."""
        if (attempt := self._running((saved.trial, saved.attempt))) is not None:
            self.attempt = replace(attempt, saves=(*attempt.saves, saved))

    def ended(self, key: Key, end: Result | Loss) -> None:
        """Record how an attempt ended; ignore it if the attempt was dropped."""
        if (attempt := self._running(key)) is not None:
            self.attempt = replace(attempt, result=end) if isinstance(end, Result) else replace(attempt, loss=end)

    def state(self, ready: bool, leaving: bool = False, refusal: str = "", mistake: str = "") -> AgentState:
        """Return the next document."""
        self._counter += 1
        return AgentState(
            self._agent,
            self._counter,
            self._host,
            self.orders.driver,
            ready,
            leaving,
            refusal,
            mistake,
            self.attempt,
        )
