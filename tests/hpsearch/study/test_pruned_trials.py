"""Trials that a user prunes, at any moment of any sweep, and points that one adds."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpsearch.errors import SweepError
from hpsearch.events import Added, Event, Exhausted, Finished, Opened, Pruned, Retried, Started, Steered
from hpsearch.journal.journal import Request
from hpsearch.run.steering import follows
from hpsearch.schedulers.asha import ASHA
from hpsearch.schedulers.base import Done
from hpsearch.schedulers.halving import Hyperband, SuccessiveHalving
from hpsearch.schedulers.median import MedianStopping
from hpsearch.schedulers.pasha import PASHA
from hpsearch.schedulers.pbt import PBT
from hpsearch.searchers import Search
from hpsearch.space import Categorical, Space, Uniform
from hpsearch.study.journaled_state import JournaledState
from hpsearch.study.state import SweepState
from hpsearch.study.trial_records import TERMINAL
from hpsearch.sweep.sweep import Sweep
from hpsearch.trial import TrialState
from tests.hpsearch.support.climbing import Climbing
from tests.hpsearch.support.doubling import Doubling
from tests.hpsearch.support.eager import Eager
from tests.hpsearch.support.lives import Life, lives
from tests.hpsearch.support.population import Population
from tests.hpsearch.support.scripted import sweep_of
from tests.hpsearch.support.steady import sweep_over

SCHEDULERS = [
    None,
    Hyperband(9),
    SuccessiveHalving(9, eta=2, trials=8),
    ASHA(9, brackets=2),
    PASHA(9, 1, eta=2),
    MedianStopping(6, min_iter=1, every=2, min_trials=1),
    PBT(6, population=4, interval=2),
    Doubling(5, trials=4),
    Eager(9, eta=2, trials=9),
    Population(6, members=4, interval=2),
]


def asked(verb: str, **details: object) -> Request:
    return Request(0.0, verb, "ada@there:7", details)


@dataclass
class Steering(Life):
    """A life in which somebody prunes trials and adds points now and then."""

    often: float = 0.3

    def step(self) -> bool:
        if not self.owed and self.events and self.chance.random() < self.often:
            for event in self.asked():
                self.take(event)
        return super().step()

    def asked(self) -> list[Event]:
        rows = self.sweep_state.rows()
        if rows and self.chance.random() < 0.8:
            request = asked("prune", trials=[self.chance.randrange(len(rows))])
        else:
            request = asked("add", points=[{"x": self.chance.random()} if self.chance.random() < 0.9 else {}])
        try:
            return follows(request, self.sweep_state, "DIR")
        except SweepError:
            return []


def check(life: Steering) -> None:
    """Nobody waits for ever, what was pruned has stopped, and the journal tells all of it."""
    pruned: set[int] = set()
    for event in life.events:
        if isinstance(event, Pruned):
            pruned.add(event.trial)
        elif isinstance(event, Retried):
            pruned.discard(event.trial)  # it failed before it could be pruned, and runs again
    rows = {row.number: row for row in life.sweep_state.rows()}
    for trial in pruned:
        assert rows[trial].state in (TrialState.STOPPED, TrialState.FAILED)
        if rows[trial].state is TrialState.STOPPED:
            assert rows[trial].reason == "pruned by ada@there"
    assert not life.sweep_state.running()
    for view in life.sweep_state.rungs():
        assert view.started == view.finished
        assert view.size in (None, view.finished)
    replayed = SweepState(life.sweep)
    followed = [followed for _, followed in replayed.replay(life.events)]
    assert followed == [entry.followed for entry in life.entries]
    assert repr(replayed.rows()) == repr(life.sweep_state.rows())
    assert list(replayed.rungs()) == list(life.sweep_state.rungs())
    read = JournaledState(life.sweep)
    list(read.read(life.entries))
    read_rows = [replace(row, checkpoint=None) for row in read.rows()]  # who only reads lets none of them go
    assert repr(read_rows) == repr([replace(row, checkpoint=None) for row in life.sweep_state.rows()])
    assert list(read.rungs()) == list(life.sweep_state.rungs())
    assert read.counts() == life.sweep_state.counts()
    assert life.sweep_state.checkpoints() <= life.on_disk


@pytest.mark.some_cases(2)
@pytest.mark.parametrize("early", SCHEDULERS, ids=lambda early: "full" if early is None else early.kind)
def test_pruning_at_any_moment_never_blocks_a_sweep_and_replays(early):
    for seed in range(25):
        chance = random.Random(seed)
        sweep = sweep_of(early_terminate=early, max_iter=4 if early is None else None, run_cap=12)
        life = Steering(sweep, seed, chance.randint(1, 5), chance.choice([0.0, 0.3]), chance.random() < 0.7)
        life.run()
        check(life)
        assert life.finished
        if not isinstance(early, Doubling | Eager | Population):
            assert {row.state for row in life.sweep_state.rows()} <= TERMINAL  # ours leave nobody stranded


@given(lives(), st.sampled_from([0.05, 0.5]))
@settings(deadline=None, max_examples=60)
def test_any_sweep_can_be_steered(life, often):
    steered = Steering(life.sweep, life.seed, life.workers, life.trouble, life.saves, often=often)
    steered.run()
    check(steered)


@pytest.mark.parametrize("method", [Climbing.kind, "evolution"])
@pytest.mark.parametrize("early", [None, Hyperband(4, eta=2, brackets=3)], ids=["full", "hyperband"])
def test_a_method_that_waits_for_results_waits_for_no_pruned_trial(method, early):
    given = {"max_iter": 3, "run_cap": 12} if early is None else {}
    sweep = sweep_over(method, search=Search(lag=1, startup=None), early_terminate=early, **given)
    for seed in range(6):
        life = Steering(sweep, seed, 1 + seed % 4, 0.3)
        life.run()
        check(life)
        assert life.finished


def ended(life: Life, trial: int, cut: bool = False) -> None:
    segment = life.sweep_state.record(trial).segment
    assert segment is not None
    assert segment.end is not None
    life.take(life.end(segment, segment.start, segment.start + 1 if cut else segment.end, cut))


def begun(sweep: Sweep, count: int) -> Life:
    life = Life(sweep, 0, 99, 0.0)
    for _ in range(count):
        event = life.sweep_state.next()
        assert isinstance(event, Started)
        life.take(event)
    return life


def prune(life: Life, *trials: int) -> None:
    for event in follows(asked("prune", trials=trials), life.sweep_state, "DIR"):
        life.take(event)


def test_a_trial_that_waits_for_its_rung_is_not_promoted_though_it_was_the_best():
    life = begun(sweep_of(early_terminate=SuccessiveHalving(3, trials=3)), 3)
    life.metrics = lambda: {"loss": 1.0}  # type: ignore[method-assign]
    ended(life, 0)
    life.metrics = lambda: {"loss": 2.0}  # type: ignore[method-assign]
    ended(life, 1)
    prune(life, 0)
    assert life.sweep_state.record(0).state is TrialState.STOPPED
    assert life.sweep_state.record(0).valid_score == 1.0  # what it reported counts
    ended(life, 2)
    event = life.sweep_state.next()
    assert isinstance(event, Started)
    assert event.segment.trial == 1


def test_a_promoted_trial_that_is_pruned_leaves_its_place_empty_and_the_bracket_ends():
    life = begun(sweep_of(early_terminate=SuccessiveHalving(3, trials=3)), 3)
    for trial in range(3):
        ended(life, trial)
    (promoted,) = [row.number for row in life.sweep_state.rows() if row.state is TrialState.WAITING]
    prune(life, promoted)
    life.run()
    assert life.finished
    assert [view.size for view in life.sweep_state.rungs()] == [3]
    assert life.sweep_state.total() == (3, 3)


def test_where_the_only_one_that_might_go_on_is_pruned_the_others_are_stopped_at_last():
    life = begun(sweep_of(early_terminate=ASHA(3, eta=3), run_cap=3), 3)
    for trial in range(3):
        ended(life, trial)
    event = life.sweep_state.next()
    assert isinstance(event, Started)
    prune(life, event.segment.trial)
    assert {row.state for row in life.sweep_state.rows()} == {TrialState.STOPPED}
    assert isinstance(life.sweep_state.next(), Done)


def test_a_running_trial_goes_on_to_its_next_report_whatever_ends_it():
    life = begun(sweep_of(early_terminate=None, max_iter=9, run_cap=4), 4)
    prune(life, 0, 1, 2)
    assert life.sweep_state.record(0).state is TrialState.RUNNING
    ended(life, 0, cut=True)
    ended(life, 1)  # it came to its end before it was cut
    assert [row.state for row in life.sweep_state.rows()[:2]] == [TrialState.STOPPED] * 2
    assert life.sweep_state.record(0).result.iterations == 1
    life.take(Opened("inline", 1, "me@here:1", "resume"))  # its process was killed
    assert life.sweep_state.record(2).state is TrialState.STOPPED
    assert life.sweep_state.record(3).state is TrialState.WAITING


def test_nobody_ran_what_was_open_when_a_study_is_steered_that_no_process_runs():
    life = begun(sweep_of(early_terminate=None, max_iter=9, run_cap=2), 2)
    life.take(Steered("prune", "ada@there:7", None, {"trials": [1]}))
    prune(life, 1)
    assert [row.state for row in life.sweep_state.rows()] == [TrialState.WAITING, TrialState.STOPPED]


@pytest.mark.parametrize(
    ("trials", "why"),
    [
        ([0], r"trial 0 is over already, it is complete: ran all 4 iterations"),
        ([1], r"trial 1 was pruned by ada@there already, and ends at its next report"),
        ([2, 7], r"only a trial that there is can be pruned, got trial 7; there are trials 0 to 2"),
    ],
)
def test_what_cant_be_pruned_is_told_and_nothing_is(trials, why):
    life = begun(sweep_of(early_terminate=None, max_iter=4, run_cap=3), 3)
    ended(life, 0)
    prune(life, 1)
    with pytest.raises(SweepError, match=why):
        follows(asked("prune", trials=trials), life.sweep_state, "DIR")


def add(life: Life, *points: dict[str, object]) -> None:
    for event in follows(asked("add", points=points), life.sweep_state, "DIR"):
        life.take(event)


def test_added_points_are_tried_next_and_move_no_other_one():
    sweep = sweep_of(early_terminate=None, max_iter=1, run_cap=6)
    calm = Life(sweep, 0, 1, 0.0).run()
    life = begun(sweep, 2)
    add(life, {"x": 0.5}, {"x": 0.25})
    life.run()
    rows = life.sweep_state.rows()
    assert [row.params["x"] for row in rows[2:4]] == [0.5, 0.25]
    assert [row.origin for row in rows] == ["random", "random", "added", "added", "random", "random"]
    others = [row.params for row in rows if row.origin != "added"]
    assert others == [row.params for row in calm.sweep_state.rows()[:4]]


def test_a_whole_grid_that_is_finished_takes_points_and_one_with_a_cap_says_what_makes_room():
    space = Space.from_parameters({"x": Categorical((1, 2))})
    life = Life(sweep_of(early_terminate=None, max_iter=1, method="grid", parameters=space), 0, 1, 0.0).run()
    assert isinstance(life.events[-1], Exhausted | Finished)
    with pytest.raises(SweepError, match="trial 1 has it"):
        add(life, {"x": 2})
    wide = sweep_of(early_terminate=None, max_iter=1, run_cap=2)
    full = Life(wide, 0, 1, 0.0).run()
    with pytest.raises(SweepError, match=r"creates no more; make room with: hpsearch extend DIR --run-cap 3"):
        add(full, {"x": 0.5})


def test_points_are_tried_that_are_added_after_the_searcher_has_no_more():
    space = Space.from_parameters({"x": Categorical((1, 2)), "y": Uniform(0.0, 1.0, points=2)})
    life = Life(sweep_of(early_terminate=None, max_iter=1, method="grid", parameters=space, run_cap=9), 0, 1, 0.0).run()
    assert len(life.sweep_state.rows()) == 4
    add(life, {"x": 2, "y": 0.3})
    life.run()
    assert [row.params for row in life.sweep_state.rows()[4:]] == [{"x": 2, "y": 0.3}]
    assert any(isinstance(event, Added) for event in life.events)
    replayed = SweepState(life.sweep)
    list(replayed.replay(life.events))
    assert repr(replayed.rows()) == repr(life.sweep_state.rows())


@pytest.mark.parametrize(
    ("point", "why"),
    [
        ({"x": 7.0}, r"params.x: must "),
        ({"y": 0.5}, r"params.y: isn't a parameter"),
    ],
)
def test_a_point_that_isnt_one_of_the_space_is_refused_as_in_a_sweep_file(point, why):
    with pytest.raises(SweepError, match=why):
        add(begun(sweep_of(early_terminate=None, max_iter=1, run_cap=9), 1), point)


def test_partial_points_are_completed_and_equal_ones_are_refused():
    sweep = sweep_of(
        early_terminate=None,
        max_iter=1,
        run_cap=9,
        parameters=Space.from_parameters({"x": Uniform(0.0, 1.0), "y": Uniform(0.0, 1.0)}),
    )
    life = begun(sweep, 1)
    add(life, {"x": 0.5}, {"x": 0.5, "y": 0.25})
    with pytest.raises(SweepError, match="it waits already"):
        add(life, {"y": 0.25, "x": 0.5})
    life.run()
    assert life.sweep_state.rows()[1].params["x"] == 0.5
    assert life.sweep_state.rows()[2].params == {"x": 0.5, "y": 0.25}


def test_extensions_are_checked_as_those_of_resume():
    sweep = sweep_of(early_terminate=Hyperband(9))
    state = SweepState(sweep)
    (event,) = follows(asked("extend", brackets=4), state, "DIR")
    state.apply(event)
    with pytest.raises(SweepError, match=r"--max-iter 81: this study has begun, .* --run-cap or --brackets"):
        follows(asked("extend", max_iter=81), state, "DIR")
    with pytest.raises(SweepError, match=r"run_cap"):
        follows(asked("extend", run_cap=2), state, "DIR")
    flat = replace(sweep, early_terminate=None, max_iter=3, run_cap=5)
    with pytest.raises(SweepError, match=r"as much to do already"):
        follows(asked("extend", run_cap=5), SweepState(flat), "DIR")
