"""The state of a sweep whose configurations are repeated, through random lives."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpsearch.config.checks import InvalidKey
from hpsearch.events import Asked, Extended, Failed, Finished, Retried, Started
from hpsearch.objective import Metric
from hpsearch.schedulers.base import Done
from hpsearch.searchers import Evolution
from hpsearch.seeds import trial_seed
from hpsearch.study.journaled_state import JournaledState
from hpsearch.study.state import SweepState
from hpsearch.study.stopping import too_many
from hpsearch.study.trial_records import owner_of
from hpsearch.sweep.parts import Limits, Repeats, Search
from hpsearch.sweep.sweep import Sweep
from hpsearch.tables.trials import rows_to_csv
from hpsearch.trial import Failure, Report, TrialRow, TrialState
from tests.hpsearch.support.lives import OPENED, Life, repeated_sweeps
from tests.hpsearch.support.scripted import sweep_of

SEEDS, WORKERS, TROUBLES = st.integers(0, 2**32), st.integers(1, 8), st.sampled_from([0.0, 0.2, 0.7])
LIVES = st.builds(Life, repeated_sweeps(), SEEDS, WORKERS, TROUBLES)


def configurations_of(rows: list[TrialRow]) -> dict[int, list[TrialRow]]:
    out: dict[int, list[TrialRow]] = {}
    for row in rows:
        assert row.repeated is not None
        out.setdefault(row.repeated.configuration, []).append(row)
    return out


def repeated(**changes) -> Sweep:
    return sweep_of(**{"early_terminate": None, "max_iter": 1, "repeats": Repeats(2), "run_cap": 8} | changes)


def run(sweep_state: SweepState, values: dict[int, float | None]) -> None:
    """Run all that may start, each trial to the given loss; None: it fails."""
    if not sweep_state.records:
        sweep_state.apply(OPENED)
    while isinstance(event := sweep_state.next(), Started):
        sweep_state.apply(event)
        trial, attempt = event.segment.trial, event.segment.attempt
        value = values.get(trial, 5.0 + trial)
        if value is None:
            sweep_state.apply(Failed(trial, attempt, Failure("raised", "no", ""), False, ()))
        else:
            sweep_state.apply(Finished(trial, attempt, 1, None, (Report(trial, 1, {"loss": value}, 0.1),), False, 1.0))


@settings(deadline=None, max_examples=60)
@given(LIVES)
def test_repeats_share_their_params_and_the_seed_of_a_repeat_is_that_of_all_configurations(life):
    life.run()
    configurations = configurations_of(life.sweep_state.rows())
    assert list(configurations) == list(range(len(configurations)))
    for rows in configurations.values():
        assert [row.repeated.repeat for row in rows if row.repeated] == list(range(len(rows)))
        assert len({(str(row.params), row.origin) for row in rows}) == 1
        assert len(rows) == life.sweep.repeats.n or life.sweep.repeats.racing
    for event in life.events:
        if isinstance(event, Started) and event.new is not None:
            assert event.new.seed == trial_seed(life.sweep.seed, event.new.repeat)


@settings(deadline=None, max_examples=60)
@given(LIVES)
def test_the_best_is_by_what_all_repeats_of_a_configuration_gave_at_each_moment(life):
    objective, repeats = life.sweep.objective, life.sweep.repeats
    while life.step():
        rows = life.sweep_state.rows()
        scores = {}
        for members in configurations_of(rows).values():
            complete = [row for row in members if row.state is TrialState.COMPLETE and row.score is not None]
            assert {row.repeated.n for row in members if row.repeated} == {len(complete)}
            if len(complete) == repeats.n:
                scored = [life.sweep_state.record(row.number).result.scored for row in complete]
                means = {name: repeats.value([one[name] for one in scored]) for name in objective.names}
                scores[members[-1].number] = objective.reported(means)
            last = members[-1]
            expected = scores.get(last.number)
            is_nan = expected is not None and "nan" in str(expected)
            assert {str(row.standing) for row in members} == {str(None if is_nan else expected)}
        leaders = life.sweep_state.leaders()
        assert [row.number for row in leaders] == objective.front(scores)
        assert [row.score for row in leaders] == [scores[row.number] for row in leaders]
    # What is left on disk is of the best, and of what a retry may go on with.
    kept = {row.number for row in life.sweep_state.leaders()}
    for members in configurations_of(life.sweep_state.rows()).values():
        failed = [row.number for row in members if row.state is TrialState.FAILED]
        kept |= {*failed, members[-1].number} if failed else set()
    assert {owner_of(checkpoint) for checkpoint in life.on_disk} <= kept


def state(sweep_state: SweepState) -> str:
    return repr((sweep_state.rows(), sweep_state.leaders(), sweep_state.running(), sweep_state.total()))


@settings(deadline=None, max_examples=40)
@given(LIVES, st.data())
def test_replaying_any_prefix_gives_what_living_through_it_gave(life, data):
    states = [state(life.sweep_state)]
    while life.step():
        states.append(state(life.sweep_state))
    length = data.draw(st.integers(0, len(life.events)))
    sweep_state = SweepState(life.sweep)
    list(sweep_state.replay(life.events[:length]))
    assert state(sweep_state) == states[length]
    list(sweep_state.replay(life.events[length:]))
    assert state(sweep_state) == states[-1]
    journaled = JournaledState(life.sweep)
    list(journaled.read(life.entries))
    journaled.obsolete()
    assert repr(journaled.rows()) == repr(life.sweep_state.rows())
    assert repr(journaled.leaders()) == repr(life.sweep_state.leaders())


@settings(deadline=None, max_examples=60)
@given(repeated_sweeps(learns=False), SEEDS, WORKERS, st.integers(0, 99))
def test_the_table_is_the_same_on_any_number_of_workers_and_after_any_interruption(sweep, seed, workers, cut_at):
    def live(life: Life) -> Life:
        life.reports = lambda trial, start, end: tuple(  # type: ignore[method-assign]
            replace(report, metrics={name: (trial * 31 % 7) / report.iteration for name in sweep.objective.names})
            for report in Life.reports(life, trial, start, end)
        )
        return life

    calm = live(Life(sweep, seed, 1, 0.0)).run()
    former = live(Life(sweep, seed, workers, 0.0))
    for _ in range(cut_at):
        if not former.step():
            break
    other = live(Life(sweep, seed + 1, 9 - workers, 0.0))
    other.find(former)
    list(other.sweep_state.replay(former.events))
    other.take(OPENED)
    other.run()

    def table(life: Life) -> str:
        return rows_to_csv(life.sweep_state.rows(), ["x"], objective=sweep.objective)

    assert table(other) == table(calm)


class Told(Evolution):
    """A searcher that remembers what it is told."""

    seen: list[tuple[object, ...]]

    def __init__(self, problem):
        super().__init__(problem)
        type(self).seen = []

    def started(self, trial):
        super().started(trial)
        self.seen.append(("started", trial.number))

    def observe(self, observation):
        super().observe(observation)
        losses = [report.metrics["loss"] for report in observation.reports]
        failure = observation.failure and observation.failure.message
        self.seen.append(("observe", observation.trial.number, losses, observation.ended, failure))

    def reverted(self, trial, iteration):
        self.seen.append(("reverted", trial.number, iteration))


def test_a_searcher_is_told_one_value_of_each_configuration(monkeypatch):
    monkeypatch.setattr(Sweep, "searcher", Told)
    sweep_state = SweepState(repeated(method="evolution", search=Search(startup=1)))
    values = {0: 1.0, 1: 2.0, 2: 4.0, 3: None, 4: 3.0, 5: 3.0}
    sweep_state.apply(OPENED)
    while not isinstance(event := sweep_state.next(), Done):
        assert isinstance(event, Started | Asked)
        sweep_state.apply(event)
        if isinstance(event, Asked):
            continue
        trial, attempt = event.segment.trial, event.segment.attempt
        value = values.get(trial, 9.0)
        if value is None:
            sweep_state.apply(Failed(trial, attempt, Failure("raised", "no", ""), False, ()))
            continue
        sweep_state.apply(Finished(trial, attempt, 1, None, (Report(trial, 1, {"loss": value}, 0.1),), False, 1.0))
    sweep_state.apply(Retried(3))
    sweep_state.request()
    assert [entry[1] for entry in Told.seen if entry[0] == "started"] == [0, 1, 2]
    assert ("observe", 0, [1.5], True, None) in Told.seen
    assert ("observe", 1, [], True, "no") in Told.seen
    assert ("observe", 2, [3.0], True, None) in Told.seen
    assert sum(entry[:2] == ("observe", 0) for entry in Told.seen) == 1


def test_a_retried_repeat_gives_its_configuration_its_value():
    sweep_state = SweepState(repeated(run_cap=4))
    run(sweep_state, {0: 1.0, 1: None, 2: 4.0, 3: 6.0})
    assert [(row.number, row.value) for row in sweep_state.leaders()] == [(3, 5.0)]
    sweep_state.apply(Retried(1))
    run(sweep_state, {1: 3.0})
    assert [(row.number, row.value) for row in sweep_state.leaders()] == [(1, 2.0)]


def test_a_target_is_reached_by_a_configuration_and_by_no_lucky_repeat():
    sweep_state = SweepState(repeated(metric=Metric("loss", target=2.0)))
    run(sweep_state, {0: 1.0, 1: 9.0})
    assert sweep_state.stopping.met is None
    sweep_state = SweepState(repeated(metric=Metric("loss", target=2.0)))
    run(sweep_state, {2: 1.0, 3: 2.5})
    assert sweep_state.stopping.reason.startswith("trial 3 reached loss 1.75 at iteration 1")
    live = SweepState(repeated(metric=Metric("loss", target=2.0)))
    live.apply(OPENED)
    start = live.next()
    assert isinstance(start, Started)
    live.apply(start)
    live.watch([Report(0, 1, {"loss": 0.0}, 0.1)])
    assert live.stopping.met is None


def test_patience_goes_by_configurations():
    sweep_state = SweepState(repeated(limits=Limits(patience=4)))
    run(sweep_state, {0: 3.0, 1: 3.0, 2: 1.0, 3: 9.0, 4: 2.0, 5: 4.1, 6: 2.0, 7: 2.0})
    assert sweep_state.stopping.met is None
    sweep_state = SweepState(repeated(limits=Limits(patience=4)))
    run(sweep_state, {0: 3.0, 1: 3.0, 2: 1.0, 3: 9.0, 4: 2.0, 5: 4.1, 6: 4.0, 7: 4.0})
    assert sweep_state.stopping.reason.startswith("6 trials in a row ended without a better loss than 3.0 of trial 1")


def test_more_configurations_are_whole_ones():
    sweep_state = SweepState(repeated(run_cap=2))
    run(sweep_state, {})
    assert isinstance(sweep_state.next(), Done)
    sweep_state.apply(Extended(6))
    assert sweep_state.room() == 2
    run(sweep_state, {})
    assert [row.repeated.configuration for row in sweep_state.rows() if row.repeated] == [0, 0, 1, 1, 2, 2]
    with pytest.raises(InvalidKey, match="run_cap: must be a multiple of repeats \\(2\\), the trials of each"):
        sweep_state.apply(Extended(7))


def test_one_configuration_that_fails_with_all_seeds_ends_no_sweep():
    sweep_state = SweepState(repeated(repeats=Repeats(5), run_cap=10))
    run(sweep_state, dict.fromkeys(range(5)))
    assert sweep_state.tally().failed == 5
    assert not too_many(sweep_state.tally(), "auto")
