"""The driver's side of the protocol: which agent has which task, leases, acknowledgments. Pure; time is an argument.

A task is an agent's until its end was received, or its lease ended. Another attempt of the trial has another number, so
what a former agent still says about its attempt is ignored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from hpsearch.backends.agents.messages import AgentState, AttemptState, Key, Orders
from hpsearch.backends.gangs import Gang, Loss, LossKind
from hpsearch.backends.slots import Flight, Slot, Slots
from hpsearch.events import Saved
from hpsearch.task import Message, Notice, Progress, Result, Task, Workers
from hpsearch.trial import Segment
from hpsearch.worker.attempt import attempt_directory

_REMEMBERED_LEASES = 20
"""Leases for which an agent that is lost finds orders that its task is no longer its own."""


@dataclass(slots=True, eq=False)
class _Seat:
    """What is known of one agent."""

    slot: Slot
    state: AgentState
    heard_at: float
    present: bool = False
    """Whether it has a lease, and `slot` is among the slots."""
    flight: Flight | None = None
    begun: bool = False
    """Whether it has said that it runs the task."""
    reported: int = 0
    """Iteration of its last report that was received."""
    decided: int = 0
    """Iteration up to which its reports were handled."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """Notes of its attempt that were received."""
    orders: Orders | None = field(default=None)


@dataclass(frozen=True, slots=True)
class AgentRow:
    """One agent for people."""

    agent: str
    host: str
    trial: int | None
    """The trial that it runs."""


class Desk:
    """Assigns tasks to agents, and turns their documents into messages.

    Args:
        driver: Identifies this run of the driver.
        lease: Seconds without a new document of an agent after which it and its task are lost.
        most: Largest number of tasks at a time; None: as many as there are agents.
    """

    def __init__(self, driver: str, lease: float, most: int | None = None) -> None:
        self._driver = driver
        self._lease = lease
        self._most = most
        self._slots = Slots(ahead=False)
        self._seats: dict[str, _Seat] = {}
        self._by_key: dict[Key, _Seat] = {}
        self._messages: list[Message] = []
        self._counter = 0
        self._stop = ""
        self._refused: set[str] = set()
        self._left: set[str] = set()
        self.was_ready = False
        """Whether an agent could run the trainable."""
        self.mistake: str | None = None
        """Why the first agent can't run the trainable, although it has the same code."""

    def capacity(self) -> int:
        """Return the number of tasks that could start now."""
        free = self._slots.capacity()
        return free if self._most is None else max(min(free, self._most - len(self._by_key)), 0)

    def start(self, task: Task, now: float) -> None:
        """Assign a task to an agent; there must be capacity for it."""
        (slot,) = self._slots.choose_for(task)
        seat = self._seats[slot.name]
        seat.flight, seat.begun, seat.notes = Flight(Gang(task), 0), False, {}
        seat.flight.counted = seat.reported = seat.decided = task.segment.start
        self._by_key[task.key] = seat
        self._slots.send(slot, seat.flight, now)

    def cut(self, trial: int, attempt: int) -> None:
        """End a running attempt at its next report."""
        seat = self._by_key.get((trial, attempt))
        if seat is not None and seat.flight is not None:
            seat.flight.cut = True

    def hear(self, state: AgentState, now: float) -> None:
        """Read an agent's document; an old one changes nothing.

        Raises:
            ValueError: It says what no agent would say.
        """
        if state.agent in self._left:
            return
        seat = self._seats.get(state.agent)
        if seat is None:
            seat = self._seats[state.agent] = _Seat(_slot(state), state, now)
        elif state.counter <= seat.state.counter:
            return
        if seat.flight is not None and state.driver == self._driver:
            _check(seat.flight.task.segment, state.attempt)
        seat.state, seat.heard_at = state, now
        if state.driver != self._driver:
            return  # it may be a file of an agent that is gone: an agent that is there answers to the first orders
        if not seat.present:
            self._seat(seat)
        if seat.flight is not None and state.attempt is not None and state.attempt.key == seat.flight.task.key:
            self._follow(seat, seat.flight, state.attempt, now)
        elif seat.flight is not None and state.attempt is None and (state.leaving or state.refusal or state.mistake):
            seat.flight.gang.lost(0, Loss(f"the agent on {state.host} left before it began", "spared"), now)
            self._end(seat, seat.flight, now)
        if seat.flight is None:
            self._settle(seat, now)
        self._note_refusal(state)

    def expire(self, now: float) -> None:
        """End the leases of agents that weren't heard from, and forget those that were gone for long."""
        for agent, seat in list(self._seats.items()):
            silence = now - seat.heard_at
            if seat.present and silence > self._lease:
                self._lose(seat, f"the agent on {seat.state.host} wasn't heard from for {self._lease:g} s", now)
            elif silence > _REMEMBERED_LEASES * self._lease:  # it joins as a new one if it comes back
                del self._seats[agent]

    def decide(self) -> None:
        """Record that the caller has handled all messages that it took."""
        for seat in self._by_key.values():
            seat.decided = seat.reported

    def take(self) -> list[Message]:
        """Return the new messages."""
        messages, self._messages = self._messages, []
        return messages

    def stop(self, reason: str) -> None:
        """Let all agents end. Their tasks end with them."""
        self._stop = reason

    def orders(self) -> Mapping[str, Orders]:
        """Return the document for each agent that was ever heard from."""
        for agent, seat in self._seats.items():
            flight, former = seat.flight, seat.orders
            orders = Orders(
                driver=self._driver,
                counter=0 if former is None else former.counter,
                agent=agent,
                heard=seat.state.counter,
                task=None if flight is None else flight.task,
                cut=flight is not None and flight.cut,
                decided=seat.decided if flight is not None else 0,
                counted=flight.counted if flight is not None else 0,
                stop=self._stop,
            )
            if orders != former:
                self._counter += 1
                seat.orders = replace(orders, counter=self._counter)
        return {agent: seat.orders for agent, seat in self._seats.items() if seat.orders is not None}

    def gone(self) -> list[str]:
        """Return the agents that have left, and forget them."""
        gone = [agent for agent, seat in self._seats.items() if seat.state.leaving and seat.flight is None]
        gone = [agent for agent in gone if self._seats[agent].state.attempt is None]
        for agent in gone:
            self._slots.remove(self._seats.pop(agent).slot)
        self._left.update(gone)
        return gone

    def agents(self) -> list[AgentRow]:
        """Return the agents that have a lease."""
        rows = [(agent, seat) for agent, seat in self._seats.items() if seat.present]
        return [
            AgentRow(agent, seat.state.host, None if seat.flight is None else seat.flight.task.trial.number)
            for agent, seat in rows
        ]

    def workers(self) -> Workers:
        """Count the agents that can run tasks."""
        ready = sum(1 for slot in self._slots.all if slot.ready)
        return Workers(ready, self._slots.busy(), max(ready, 1) if self._most is None else self._most)

    def _seat(self, seat: _Seat) -> None:
        seat.slot, seat.present = _slot(seat.state), True
        self._slots.add(seat.slot)

    def _settle(self, seat: _Seat, now: float) -> None:
        """Take an idle agent into account, or no longer."""
        state, slot = seat.state, seat.slot
        ready = state.ready and not (state.leaving or state.refusal or state.mistake)
        if ready and not slot.ready:
            self._slots.make_ready(slot, now)
            self.was_ready = True
        elif slot.ready and not ready:
            self._slots.retire(slot, now)

    def _follow(self, seat: _Seat, flight: Flight, attempt: AttemptState, now: float) -> None:
        """Take what is new of a running attempt."""
        seat.begun = True
        reports = tuple(report for report in attempt.reports if report.iteration > seat.reported)
        if reports or attempt.notes != seat.notes:
            self._messages.append(Progress(*attempt.key, reports, attempt.notes))
            seat.reported = reports[-1].iteration if reports else seat.reported
            seat.notes = attempt.notes
        for saved in attempt.saves:
            if saved.iteration > flight.counted:
                self._messages.append(saved)
                flight.counted = saved.iteration
        if attempt.result is not None:
            flight.gang.landed(0, attempt.result, now)
            self._end(seat, flight, now)
        elif attempt.loss is not None:
            flight.gang.lost(0, attempt.loss, now)
            self._end(seat, flight, now)

    def _lose(self, seat: _Seat, reason: str, now: float) -> None:
        flight = seat.flight
        if flight is not None:
            kind: LossKind = "died" if seat.begun else "spared"
            flight.gang.lost(0, Loss(reason, kind, max(now - flight.since, 0.0)), now)
            self._end(seat, flight, now)
        self._slots.remove(seat.slot)
        seat.present = False

    def _end(self, seat: _Seat, flight: Flight, now: float) -> None:
        outcome = flight.gang.outcome()
        assert outcome is not None, "a gang of one has ended"
        self._messages.append(outcome)
        del self._by_key[flight.task.key]
        self._slots.land(seat.slot, flight, now, None)
        seat.flight = None

    def _note_refusal(self, state: AgentState) -> None:
        text = state.refusal or state.mistake
        if not text or state.agent in self._refused:
            return
        self._refused.add(state.agent)
        if state.mistake and not self.was_ready and self.mistake is None:
            self.mistake = f"agent on {state.host}: {state.mistake}"
        else:
            self._messages.append(Notice(f"the agent on {state.host} takes no trials: {text}"))


def _slot(state: AgentState) -> Slot:
    return Slot(None, state.agent, node=state.host)


def _check(segment: Segment, attempt: AttemptState | None) -> None:
    """Check what an agent says about its own task.

    Raises:
        ValueError: It names other trials or paths, or iterations that aren't the segment's or go back.
    """
    if attempt is None or attempt.key != (segment.trial, segment.attempt):
        return
    ends: list[Saved | Result] = [*attempt.saves, *([] if attempt.result is None else [attempt.result])]
    of_attempt = all((end.trial, end.attempt) == attempt.key for end in ends)
    reports = [report for end in ends for report in end.reports]
    of_attempt &= all(report.trial == segment.trial for report in (*attempt.reports, *reports))
    most = math.inf if segment.end is None else segment.end
    in_order = all(
        segment.start <= min(iterations) and max(iterations) <= most and iterations == sorted(iterations)
        for iterations in ([part.iteration for part in parts] for parts in (attempt.reports, reports, ends))
        if iterations
    )
    own_paths = all(
        end.checkpoint == f"{attempt_directory(segment)}/hpsearch-checkpoint-{end.iteration}"
        for end in ends
        if end.checkpoint is not None or isinstance(end, Saved)
    )
    if not (of_attempt and in_order and own_paths):
        raise ValueError(f"what an agent says about trial {segment.trial} must be about its attempt alone")
