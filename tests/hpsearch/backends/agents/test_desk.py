"""The protocol of driver and agents, without processes: documents are lost, doubled, delayed and reordered."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpsearch.backends.agents.desk import Desk
from hpsearch.backends.agents.messages import AgentState, AttemptState, Orders, decode, encode
from hpsearch.backends.agents.outbox import Outbox
from hpsearch.events import Lost, Saved
from hpsearch.task import Progress, Result, Task
from hpsearch.trial import Costs, Failure, Parent, Report, Segment, Trial

LEASE = 10.0
END = 3
"""Iterations of each trial."""


def task_of(number: int, attempt: int = 1, start: int = 0) -> Task:
    checkpoint = f"trials/{number:05d}/{attempt - 1}/hpsearch-checkpoint-{start}" if start else None
    return Task(Trial(number, {"x": 0.5}, 7, "random"), Segment(number, start, END, checkpoint, attempt), None)


def saved(task: Task, iteration: int, first: int) -> Saved:
    path = f"trials/{task.segment.trial:05d}/{task.segment.attempt}/hpsearch-checkpoint-{iteration}"
    return Saved(*task.key, iteration, path, tuple(report(task, i) for i in range(first, iteration + 1)))


def report(task: Task, iteration: int) -> Report:
    return Report(task.segment.trial, iteration, {"loss": 1 / iteration}, 0.1)


def result(task: Task, iteration: int, first: int, cut: bool = False) -> Result:
    path = f"trials/{task.segment.trial:05d}/{task.segment.attempt}/hpsearch-checkpoint-{iteration}"
    reports = tuple(report(task, i) for i in range(first, iteration + 1))
    return Result(*task.key, iteration, path, reports, cut, 1.0, None)


class Agent:
    """An agent without processes: each step runs an iteration of its task, and every second one is saved."""

    def __init__(self, name: str) -> None:
        self.outbox = Outbox(name, "host")
        self.task: Task | None = None
        self.iteration = self.unsaved = 0

    def step(self) -> AgentState:
        if self.task is not None and not self.outbox.is_running(self.task.key):
            self.task = None  # revoked, or ended
        if self.task is None and (task := self.outbox.next_task()) is not None:
            self.outbox.begin(task)
            self.task, self.iteration = task, task.segment.start
            self.unsaved = self.iteration + 1
        elif self.task is not None:
            self.iteration += 1
            self.outbox.reported(self.task.key, report(self.task, self.iteration))
            if self.iteration == END or self.outbox.orders.cut:
                end = result(self.task, self.iteration, self.unsaved, cut=self.iteration < END)
                self.outbox.ended(self.task.key, end)
                self.task = None
            elif self.iteration % 2 == 0:
                self.outbox.saved(saved(self.task, self.iteration, self.unsaved))
                self.unsaved = self.iteration + 1
        return self.outbox.state(self.task is None)


@dataclass
class Sweep:
    """What the orchestrator does: every trial runs to its end, from its last checkpoint that counts."""

    desk: Desk
    trials: int
    counted: dict[int, list[int]] = field(default_factory=dict)
    attempts: Counter[int] = field(default_factory=Counter)
    running: dict[int, Task] = field(default_factory=dict)
    ends: Counter[tuple[int, int]] = field(default_factory=Counter)

    def step(self, now: float) -> None:
        self.desk.expire(now)
        for message in self.desk.take():
            if isinstance(message, Progress):
                continue
            assert isinstance(message, Saved | Result | Lost)
            task = self.running[message.trial]
            assert (message.trial, message.attempt) == task.key, "of the attempt that runs"
            if isinstance(message, Saved | Result):
                self.counted[message.trial] += [report.iteration for report in message.reports]
            if isinstance(message, Result | Lost):
                self.ends[task.key] += 1
                del self.running[message.trial]
        self.desk.decide()
        for number in range(self.trials):
            done = self.counted.setdefault(number, [])
            if number not in self.running and len(done) < END and self.desk.capacity():
                self.attempts[number] += 1
                self.running[number] = task_of(number, self.attempts[number], len(done))
                self.desk.start(self.running[number], now)

    @property
    def is_done(self) -> bool:
        return all(len(self.counted.get(number, ())) == END for number in range(self.trials))


class Wire:
    """A network that keeps all documents that were ever sent, and delivers any of them at any time."""

    def __init__(self, agents: int, trials: int) -> None:
        self.sweep = Sweep(Desk("d" * 32, LEASE), trials)
        self.agents = [Agent(f"{number:032x}") for number in range(agents)]
        self.states: list[bytes] = []
        self.orders: list[tuple[int, bytes]] = []
        self.now = 0.0

    def agent_steps(self, index: int) -> None:
        index %= len(self.agents)
        self.states.append(encode(self.agents[index].step()))

    def driver_steps(self) -> None:
        self.sweep.step(self.now)
        for name, orders in self.sweep.desk.orders().items():
            self.orders.append((int(name, 16), encode(orders)))

    def deliver_state(self, back: int) -> None:
        if self.states:
            self.sweep.desk.hear(decode(AgentState, self.states[-1 - back % len(self.states)]), self.now)

    def deliver_orders(self, back: int) -> None:
        if self.orders:
            index, content = self.orders[-1 - back % len(self.orders)]
            self.agents[index].outbox.receive(decode(Orders, content))

    def goes_well(self) -> None:
        """Exchange everything once."""
        for index in range(len(self.agents)):
            self.agent_steps(index)
            self.deliver_state(0)
        self.driver_steps()
        for back in range(len(self.agents)):
            self.deliver_orders(back)
        self.now += 1.0


BACK = st.one_of(st.just(0), st.integers(0, 8), st.integers(0, 60))
"""How many documents were sent after the one that is delivered: mostly it is a late one."""

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("goes_well")),
        st.tuples(st.just("agent_steps"), st.integers(0, 3)),
        st.tuples(st.just("driver_steps")),
        st.tuples(st.just("deliver_state"), BACK),
        st.tuples(st.just("deliver_orders"), BACK),
        st.tuples(st.just("sleep"), st.sampled_from([1.0, 4.0, LEASE + 1])),
    ),
    min_size=20,
    max_size=120,
)


@given(agents=st.integers(1, 4), trials=st.integers(1, 4), steps=STEPS)
@settings(deadline=None)
def test_every_iteration_counts_once_whatever_becomes_of_the_documents(agents, trials, steps):
    wire = Wire(agents, trials)
    for name, *arguments in steps:
        if name == "sleep":
            wire.now += arguments[0]
        else:
            getattr(wire, name)(*arguments)
    rounds = 0
    while not wire.sweep.is_done:
        wire.goes_well()
        rounds += 1
        assert rounds < 100, "nothing may stay stuck"
    assert all(iterations == list(range(1, END + 1)) for iterations in wire.sweep.counted.values())
    assert set(wire.sweep.ends.values()) <= {1}, "one outcome of each attempt"


def joined(desk: Desk) -> Outbox:
    """Let an agent join."""
    outbox = Outbox("a" * 32, "lab-3")
    desk.hear(outbox.state(True), 0.0)
    outbox.receive(desk.orders()["a" * 32])
    desk.hear(outbox.state(True), 0.0)
    return outbox


def test_an_agent_that_was_never_heard_to_answer_gets_nothing():
    desk = Desk("d", LEASE)
    outbox = Outbox("a" * 32, "lab-3")
    desk.hear(outbox.state(True), 0.0)  # as a file that an agent left, which is gone
    assert desk.capacity() == 0
    outbox.receive(desk.orders()["a" * 32])
    desk.hear(outbox.state(True), 0.0)
    assert desk.capacity() == 1


def test_a_lease_ends_after_its_time_and_a_new_document_begins_another():
    desk = Desk("d", LEASE)
    outbox = joined(desk)
    desk.start(task_of(3), 0.0)
    outbox.receive(desk.orders()["a" * 32])
    outbox.begin(task_of(3))
    desk.hear(outbox.state(False), 4.0)
    desk.expire(4.0 + LEASE)
    assert desk.take() == []
    desk.expire(4.1 + LEASE)
    (lost,) = desk.take()
    assert lost == Lost(3, 1, "the agent on lab-3 wasn't heard from for 10 s", True, 14.1)
    assert desk.workers().ready == 0
    outbox.reported((3, 1), report(task_of(3), 1))
    desk.hear(outbox.state(False), 20.0)  # it was stopped, and still runs the attempt
    assert desk.take() == []
    outbox.receive(desk.orders()["a" * 32])
    assert outbox.attempt is None
    desk.hear(outbox.state(True), 21.0)
    assert desk.capacity() == 1


def running(desk: Desk) -> Outbox:
    """Let an agent join and begin trial 3."""
    outbox = joined(desk)
    desk.start(task_of(3), 0.0)
    outbox.receive(desk.orders()["a" * 32])
    outbox.begin(task_of(3))
    return outbox


def test_a_document_that_comes_again_does_not_extend_a_lease():
    desk = Desk("d", LEASE)
    late = running(desk).state(False)
    desk.hear(late, 1.0)
    desk.hear(late, LEASE)
    desk.expire(LEASE + 1.1)
    assert isinstance(desk.take()[0], Lost)


def test_late_orders_do_not_end_an_attempt():
    desk = Desk("d", LEASE)
    outbox = joined(desk)
    late = desk.orders()["a" * 32]
    desk.start(task_of(3), 0.0)
    assert outbox.receive(desk.orders()["a" * 32])
    outbox.begin(task_of(3))
    assert not outbox.receive(late)
    assert outbox.is_running((3, 1))


def test_reports_saves_and_the_end_are_said_again_until_they_are_acknowledged():
    desk = Desk("d", LEASE)
    outbox = running(desk)
    for iteration in (1, 2):
        outbox.reported((3, 1), report(task_of(3), iteration))
    outbox.saved(saved(task_of(3), 2, 1))
    outbox.ended((3, 1), result(task_of(3), END, 3))
    outbox.state(False)  # it is lost
    outbox.receive(replace(desk.orders()["a" * 32], counter=9))  # orders that were written before
    assert outbox.next_task() is None, "it doesn't run again"
    desk.hear(outbox.state(False), 1.0)
    progress, checkpoint, end = desk.take()
    assert isinstance(progress, Progress)
    assert [each.iteration for each in progress.reports] == [1, 2]
    assert (checkpoint, end) == (saved(task_of(3), 2, 1), result(task_of(3), END, 3))
    outbox.receive(replace(desk.orders()["a" * 32], counter=10))
    assert outbox.attempt is None, "it is acknowledged"


def test_an_agent_that_was_gone_for_long_is_forgotten_and_joins_again():
    desk = Desk("d", LEASE)
    outbox = joined(desk)
    desk.expire(LEASE + 1)
    assert len(desk.orders()) == 1
    desk.expire(21 * LEASE)
    assert desk.orders() == {}
    desk.hear(outbox.state(True), 22 * LEASE)
    assert desk.capacity() == 1
    assert outbox.receive(desk.orders()["a" * 32]), "they are newer than the last ones"


def test_a_task_that_no_agent_was_heard_to_begin_does_not_count_against_its_trial():
    desk = Desk("d", LEASE)
    joined(desk)
    desk.start(task_of(3), 0.0)
    desk.expire(LEASE + 1)
    (lost,) = desk.take()
    assert isinstance(lost, Lost)
    assert not lost.counts_against_trial


def test_an_agent_that_left_is_forgotten_for_good():
    desk = Desk("d", LEASE)
    outbox = joined(desk)
    late = outbox.state(True)
    desk.hear(outbox.state(False, leaving=True), 1.0)
    assert desk.capacity() == 0
    assert desk.gone() == ["a" * 32]
    desk.hear(late, 2.0)
    assert (desk.capacity(), desk.agents(), desk.orders()) == (0, [], {})


def test_an_agent_that_leaves_with_a_task_that_it_has_not_begun_gives_it_back_at_once():
    desk = Desk("d", LEASE)
    outbox = joined(desk)
    desk.start(task_of(3), 0.0)
    desk.hear(outbox.state(False, leaving=True), 1.0)
    assert desk.take() == [Lost(3, 1, "the agent on lab-3 left before it began", False)]
    assert desk.gone() == ["a" * 32]


def test_no_more_tasks_start_than_the_sweep_has_workers():
    desk = Desk("d", LEASE, most=1)
    joined(desk)
    second = Outbox("b" * 32, "lab-4")
    desk.hear(second.state(True), 0.0)
    second.receive(desk.orders()["b" * 32])
    desk.hear(second.state(True), 0.0)
    assert desk.capacity() == 1
    desk.start(task_of(0), 0.0)
    assert desk.capacity() == 0


def test_the_first_agent_that_cannot_run_the_trainable_is_the_sweeps_mistake_and_later_ones_are_not():
    desk = Desk("d", LEASE)
    outbox = Outbox("a" * 32, "lab-3")
    desk.hear(outbox.state(False), 0.0)
    outbox.receive(desk.orders()["a" * 32])
    desk.hear(outbox.state(False, mistake="no module 'train'"), 0.0)
    assert desk.mistake == "agent on lab-3: no module 'train'"
    other = Desk("d", LEASE)
    joined(other)
    outbox = Outbox("b" * 32, "lab-4")
    other.hear(outbox.state(False), 0.0)
    outbox.receive(other.orders()["b" * 32])
    other.hear(outbox.state(False, mistake="no module 'train'"), 0.0)
    assert other.mistake is None
    (notice,) = other.take()
    assert "lab-4 takes no trials: no module 'train'" in str(notice)


@pytest.mark.parametrize(
    "state",
    [
        AttemptState(3, 1, (report(task_of(4), 1),), (), None, None, {}),
        AttemptState(3, 1, (report(task_of(3), END + 1),), (), None, None, {}),
        AttemptState(3, 1, (), (Saved(3, 1, 2, "trials/00009/1/hpsearch-checkpoint-2", ()),), None, None, {}),
        AttemptState(3, 1, (), (Saved(3, 1, 2, "../../x", ()),), None, None, {}),
        AttemptState(3, 1, (), (Saved(3, 1, 2, None, ()),), None, None, {}),
        AttemptState(3, 1, (), (saved(task_of(3), 2, 1),), result(task_of(3), 1, 1), None, {}),
        AttemptState(3, 1, (), (), result(task_of(3, 2), END, 1), None, {}),
    ],
)
def test_what_an_agent_says_about_anything_but_its_attempt_is_refused(state):
    desk = Desk("d", LEASE)
    outbox = joined(desk)
    desk.start(task_of(3), 0.0)
    outbox.receive(desk.orders()["a" * 32])
    outbox.attempt = state
    with pytest.raises(ValueError, match="about its attempt alone"):
        desk.hear(outbox.state(False), 1.0)
    assert desk.take() == []


def test_documents_come_back_as_they_were_sent():
    trial = Trial(1, {"a": [1, {"b": None}], "c": 0.1, "d": "ä"}, 3, "random", Parent(0, 2, None, {"x": 1}))
    task = Task(trial, Segment(1, 2, 5, "trials/00000/1/hpsearch-checkpoint-2", 1, costs=Costs(0.5, 2.0)), 9.5)
    orders = Orders("d", 1, "a", 2, task, True, 3, 2, "")
    assert decode(Orders, encode(orders)) == orders
    failed = Result(1, 1, 2, None, (report(task, 3),), False, 1.0, Failure("raised", "m", "t"), ("a",), stuck=("b",))
    state = AgentState("a", 1, "h", "d", False, True, "r", "m", AttemptState(1, 1, (), (), failed, None, {"a": "b"}))
    assert decode(AgentState, encode(state)) == state


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"counter":7', b'"counter":"7"'),
        (b'"counter":7', b'"counter":true'),
        (b'"counter":7', b'"other":7'),
        (b"{", b""),
    ],
)
def test_a_document_of_another_form_is_refused(old, new):
    content = encode(AgentState("a", 7, "h", "d", False, False, "", "", None))
    with pytest.raises(ValueError, match=r"AgentState|Extra data"):
        decode(AgentState, content.replace(old, new, 1))
