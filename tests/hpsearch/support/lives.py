"""Random lives of a sweep, without a backend: whatever may happen to its attempts, in any order."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from hypothesis import strategies as st

from hpsearch.decision import Decision
from hpsearch.events import Dropped, Entry, Event, Failed, Finished, Lost, Opened, Retried, Saved, Started
from hpsearch.run.verdicts import Rules, verdict
from hpsearch.schedulers.asha import ASHA
from hpsearch.schedulers.base import Done, Wait
from hpsearch.schedulers.early_terminate import EarlyTerminate
from hpsearch.schedulers.halving import Hyperband, SuccessiveHalving
from hpsearch.schedulers.median import MedianStopping
from hpsearch.schedulers.pasha import PASHA
from hpsearch.schedulers.pbt import PBT
from hpsearch.space import Space, Uniform
from hpsearch.study.state import SweepState
from hpsearch.sweep.parts import Checkpoints, Metric, Repeats, Search
from hpsearch.sweep.sweep import Sweep
from hpsearch.task import Result
from hpsearch.trainable.addresses import in_pack, pack_of, pack_of_all
from hpsearch.trial import Failure, Report, Segment
from hpsearch.worker.attempt import attempt_directory
from tests.hpsearch.support.family import Family
from tests.hpsearch.support.population import Population
from tests.hpsearch.support.scripted import sweep_of

VALUES = (0.0, -0.0, 1.0, 1.0, 2.0, 3.0, math.nan, math.inf, -math.inf)

POPULATIONS = st.builds(Population, st.integers(1, 6), members=st.integers(1, 5), interval=st.integers(1, 3))

TRAINED = st.builds(PBT, st.integers(4, 9), population=st.integers(2, 4), interval=st.integers(1, 3))

ASYNCHRONOUS = st.one_of(
    st.builds(ASHA, st.integers(3, 9), eta=st.integers(2, 3), brackets=st.integers(1, 2)),
    st.builds(PASHA, st.integers(3, 9), eta=st.integers(2, 3)),
)

MEDIANS = st.builds(MedianStopping, st.integers(2, 9), min_iter=st.integers(1, 2), min_trials=st.integers(1, 4))

OPENED = Opened("inline", 1, "me@here:1", "test")


@st.composite
def sweeps(draw, keep: str = "best", settled: bool = False, joint: bool | None = False) -> Sweep:
    """Small sweeps of every method under every scheduler.

    Args:
        draw: Hypothesis gives it.
        keep: Which checkpoints are kept.
        settled: Of those only whose table depends on no order.
        joint: What is searched for is more than a number; None: where scheduler and searcher can rank that, it may be.
    """
    eta = draw(st.integers(2, 3))
    early: EarlyTerminate | None = draw(
        st.one_of(
            st.none(),
            st.builds(SuccessiveHalving, st.integers(3, 9), eta=st.just(eta), trials=st.integers(1, 9) | st.none()),
            st.builds(Hyperband, st.integers(2, 9), eta=st.just(eta), brackets=st.integers(1, 4) | st.none()),
            *([] if settled else [POPULATIONS, TRAINED, ASYNCHRONOUS, MEDIANS]),
        ).filter(lambda early: not joint or early is None or early.capabilities.several_goals)
    )
    forks = early is not None and early.capabilities.forks
    learning = [] if settled or joint else [Family.kind]
    method = draw(st.sampled_from(["random", *learning] if forks else ["random", "grid", *learning]))
    ends = not forks and (method == "grid" or (early is not None and not early.capabilities.endless))
    newest = early is not None and early.capabilities.newest
    caps = st.integers(4 if newest else 1, 20)
    scopes = ["last"] if newest else ["last", "best"]
    metric: Metric | tuple[Metric, ...]
    metric = Metric("loss", draw(st.sampled_from(["minimize", "maximize"])), draw(st.sampled_from(scopes)))
    constraints: tuple[str, ...] = ()
    kinds = [
        (several, constrained)
        for several, constrained in ((True, False), (False, True), (True, True))
        if early is None
        or (early.capabilities.several_goals >= several and early.capabilities.outcome_constraints >= constrained)
    ]
    if method != Family.kind and kinds and (joint or (joint is None and draw(st.booleans()))):
        several, constrained = draw(st.sampled_from(kinds))
        if several:
            metric = (replace(metric, scope="last"), Metric("size", draw(st.sampled_from(["minimize", "maximize"]))))
        if constrained:
            constraints = draw(st.sampled_from([("bytes <= 1",), ("loss >= 1",), ("bytes <= 2", "bytes >= 0.5")]))
    return sweep_of(
        method=method,
        metric=metric,
        outcome_constraints=constraints,
        parameters=Space.from_parameters({"x": Uniform(0.0, 1.0, points=draw(st.integers(2, 12)))}),
        early_terminate=early,
        max_iter=draw(st.integers(1, 5)) if early is None else None,
        run_cap=draw(caps | st.none() if ends else caps),
        checkpoints=Checkpoints(keep),  # type: ignore[arg-type]
    )


@st.composite
def repeated_sweeps(draw, learns: bool = True) -> Sweep:
    """Small sweeps with repeats, with or without a race; if it `learns`, also of a method that does."""
    racing = draw(st.booleans())
    method = draw(st.sampled_from(["random", "grid", *(["evolution"] if learns and not racing else [])]))
    n = draw(st.integers(4 if racing else 2, 5))
    several = not racing and draw(st.booleans())
    scopes = ["last"] if several or method == "evolution" else ["last", "best"]
    loss = Metric("loss", draw(st.sampled_from(["minimize", "maximize"])), draw(st.sampled_from(scopes)))
    return sweep_of(
        method=method,
        search=Search(startup=2, options={"population": 2, "sample": 2}) if method == "evolution" else Search(),
        metric=(loss, Metric("size")) if several else loss,
        outcome_constraints=("bytes <= 1",) if not racing and draw(st.booleans()) else (),
        parameters=Space.from_parameters({"x": Uniform(0.0, 1.0, points=draw(st.integers(2, 4)))}),
        early_terminate=None,
        max_iter=draw(st.integers(1, 3)),
        run_cap=None if method == "grid" and draw(st.booleans()) else n * draw(st.integers(1, 4)),
        repeats=Repeats(n, None if racing else draw(st.sampled_from([None, 0.25, 1.0])), racing),
    )


@dataclass
class Life:
    """One life of a sweep: it goes on by random events, and keeps the books that its checks need."""

    sweep: Sweep
    seed: int
    workers: int
    trouble: float
    """How likely an attempt is cut, lost, failed, ... instead of finished."""
    saves: bool = True
    events: list[Event] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    """The same, with what followed from each."""
    on_disk: set[str] = field(default_factory=set)
    packs: set[str] = field(default_factory=set)
    """Those on disk."""
    unfilled: set[str] = field(default_factory=set)
    """Packs with checkpoints that nobody hears of."""
    discarded: list[str] = field(default_factory=list)
    damaged_ones: set[str | None] = field(default_factory=set)
    owed: list[Event] = field(default_factory=list)
    """They belong to the last one, and come next."""
    finished: bool = False

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.packing = random.Random(self.seed + 1)
        self.room: list[str] = []
        """The pack that checkpoints are written to now, for each that it has still to get."""
        self.sweep_state = SweepState(self.sweep)
        self.at: dict[int, int] = {}
        """Of each running trial, the iteration whose checkpoint was saved last."""

    @property
    def forks(self) -> bool:
        """Whether trials may be forked."""
        early = self.sweep.early_terminate
        return self.sweep.searcher.capabilities.forks or (early is not None and early.capabilities.forks)

    def step(self) -> bool:
        """Take the next event; False at the end."""
        if self.owed:
            self.take(self.owed.pop(0))
            return True
        if not self.events or self.chance.random() < 0.02 * self.trouble:
            self.take(OPENED)
            return True
        if self.chance.random() < 0.1 * self.trouble and (failed := self.sweep_state.failed()):
            trial = self.chance.choice(failed)
            if self.sweep_state.may_run_again(trial) or self.sweep_state.room() != 0:
                self.take(Retried(trial))
                return True
        if len(self.sweep_state.running()) < self.workers:
            event = self.sweep_state.next()
            assert self.sweep_state.next() == event  # to ask changes nothing
            if not isinstance(event, Wait | Done):
                self.take(event)
                return True
            if isinstance(event, Done):
                self.finished = True
                return False
        self.take(self.happen(self.chance.choice(list(self.sweep_state.running()))))
        return True

    def run(self) -> Life:
        while self.step():
            pass
        return self

    def take(self, event: Event) -> Sequence[Decision]:
        if isinstance(event, Started):
            segment = event.segment
            assert segment.checkpoint is None or segment.checkpoint in self.on_disk
            self.at[segment.trial] = segment.start
        if isinstance(event, Saved | Finished) and event.checkpoint is not None:
            self.write(event.checkpoint)
        if isinstance(event, Dropped):
            dropped = self.sweep_state.record(event.trial).checkpoint
            self.on_disk.discard(str(dropped))
            self.damaged_ones.add(dropped)
        followed = self.sweep_state.apply(event)
        self.events.append(event)
        self.entries.append(Entry(float(len(self.events)), event, followed))
        gone = self.sweep_state.obsolete()
        self.discarded += gone
        for checkpoint in gone:
            (self.packs if checkpoint in self.packs else self.on_disk).remove(checkpoint)
        needed = packs_of(self.on_disk)
        assert needed <= self.packs, "a pack is gone that is needed"
        damaged = packs_of(str(checkpoint) for checkpoint in self.damaged_ones)
        assert self.packs <= needed | damaged | {*self.room, *self.unfilled}, "a pack has stayed that isn't needed"
        return followed.decisions

    def write(self, checkpoint: str) -> None:
        self.on_disk.add(checkpoint)
        self.packs |= packs_of([checkpoint])

    def find(self, former: Life) -> None:
        """Begin with the disk of another life."""
        self.on_disk, self.packs = former.on_disk, former.packs
        self.unfilled = former.unfilled | set(former.room)

    def happen(self, segment: Segment) -> Event:
        trial, attempt, at = segment.trial, segment.attempt, self.at[segment.trial]
        end = segment.end or segment.start + 2
        if self.chance.random() < self.trouble:
            kind = self.chance.choice(["saved", "cut", "early", "retry", "failed", "lost", "damaged"])
            reached = self.chance.randint(at, end)
            if kind == "saved" and at < end - 1 and self.saves:
                to = self.chance.randint(at + 1, end - 1)
                self.at[trial] = to
                return Saved(trial, attempt, to, self.checkpoint(segment, to), self.reports(trial, at, to))
            if kind in ("cut", "early") and reached > at:
                return self.end(segment, at, reached, kind == "cut")
            failure = Failure("raised", "ValueError: no", "Traceback")
            if kind == "retry":
                return Failed(trial, attempt, failure, True, ())
            if kind == "failed":
                return Failed(trial, attempt, failure, False, self.reports(trial, at, reached))
            if kind == "damaged" and segment.checkpoint is not None and at == segment.start:
                return self.damaged(segment)
            if kind == "lost":
                return self.lost(segment)
        return self.end(segment, at, end, False)

    def lost(self, segment: Segment) -> Lost:
        """Lose a worker that ran some beside this one, or none."""
        company = tuple(one.trial for one in self.sweep_state.running() if one == segment or self.chance.random() < 0.5)
        lost = Lost(segment.trial, segment.attempt, "node 7 died")
        if len(company) == 1:
            return replace(lost, then=self.chance.choice(["", "alone"]))
        return replace(lost, counts_against_trial=False, then="halved", company=company)

    def damaged(self, segment: Segment) -> Event:
        """Find that the checkpoint to start from can't be read; one's own is then of no more use to anybody."""
        record = self.sweep_state.record(segment.trial)
        if segment.checkpoint != record.source:
            forks = [self.sweep_state.record(row.number) for row in self.sweep_state.rows() if row.parent is not None]
            if segment.checkpoint in {fork.source for fork in forks}:
                return Lost(segment.trial, segment.attempt, "it is whole after all")
        failure = Failure("checkpoint", "gone", "")
        ended = Result(segment.trial, segment.attempt, segment.start, None, (), False, 0.1, failure)
        first, *self.owed = verdict(ended, record, Rules(self.sweep)).events
        return first

    def end(self, segment: Segment, at: int, iteration: int, cut: bool) -> Finished:
        checkpoint = self.checkpoint(segment, iteration) if self.saves else None
        reports = self.reports(segment.trial, at, iteration)
        return Finished(segment.trial, segment.attempt, iteration, checkpoint, reports, cut, 1.0)

    def checkpoint(self, segment: Segment, iteration: int) -> str:
        place = f"{attempt_directory(segment)}/hpsearch-checkpoint-{iteration}"
        if self.packing.random() < 0.05:
            self.unfilled |= set(self.room)  # nobody hears of the rest of it
            self.room = []
        if not self.room and self.packing.random() < 0.6:
            count = self.packing.randint(2, 5)
            self.room = [pack_of_all([place] * count)] * count
        return in_pack(self.room.pop(), place) if self.room else place

    def reports(self, trial: int, start: int, end: int) -> tuple[Report, ...]:
        return tuple(Report(trial, i, self.metrics(), 0.5) for i in range(start + 1, end + 1))

    def metrics(self) -> dict[str, float]:
        """Return a report's metrics: all that are needed; rarely, one of several is missing."""
        objective = self.sweep.objective
        metrics = {name: self.chance.choice(VALUES) for name in objective.names}
        if objective.joint and self.chance.random() < 0.05:
            del metrics[self.chance.choice(objective.names)]
        return metrics


def packs_of(addresses: Iterable[str]) -> set[str]:
    """Return the packs that contain some of these checkpoints."""
    return {pack for address in addresses if (pack := pack_of(address)) is not None}


@st.composite
def lives(draw, keep: str = "best", trouble: bool = True, settled: bool = False, joint: bool | None = None) -> Life:
    """A life that is still to be lived; `settled` and `joint` as for `sweeps`."""
    return Life(
        draw(sweeps(keep, settled, joint)),
        draw(st.integers(0, 2**32)),
        draw(st.integers(1, 8)),
        draw(st.sampled_from([0.0, 0.2, 0.7])) if trouble else 0.0,
        draw(st.booleans()),
    )
