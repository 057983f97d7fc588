"""A changed space: which trial is from which space, what each searcher is told, and what may change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from hpsearch.decision import Followed
from hpsearch.errors import SweepError
from hpsearch.events import Added, Asked, Changed, Entry, Event, Started
from hpsearch.schedulers.halving import Hyperband
from hpsearch.searchers import Past, Search, Searcher
from hpsearch.searchers.calls import DirectCalls
from hpsearch.space import Categorical, Constant, IntUniform, LogIntUniform, Repeat, Space, Uniform
from hpsearch.study.change import change
from hpsearch.study.journaled_state import JournaledState
from hpsearch.study.state import SweepState
from hpsearch.sweep.sweep import Sweep
from hpsearch.trial import Params
from tests.hpsearch.support.scripted import sweep_of
from tests.hpsearch.support.steady import OPENED, SPACE, SteadyLife, Table, table
from tests.rarely import rarely

WIDER = Space.from_parameters(
    {"x": Uniform(0, 2), "n": LogIntUniform(1, 100), "c": Constant("a"), "d": Uniform(0, 1, default=0.5)}
)
FROM = 9


def searching(method: str, **changes: Any) -> Sweep:
    learned = {} if method in ("random", "grid", "qmc") else {"search": Search(lag=3, startup=4)}
    given = {"parameters": SPACE, "early_terminate": None, "max_iter": 2, **learned, **changes}
    return sweep_of(method=method, **given)


def changed_life(sweep: Sweep, workers: int, seed: int, after: int, event: Changed) -> SteadyLife:
    """Live until so many trials have begun, and in another process on, with the change in between."""
    life = SteadyLife(sweep, workers, seed)
    while len(life.state.records) < after:
        assert life.step()
    events: list[Event] = [*life.events, event, OPENED]
    life.state, life.events, life.at = SweepState(sweep), [], {}
    for applied, _ in life.state.replay(events):
        life.events.append(applied)
    life.state.prepare()
    return life.run()


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("random", {"run_cap": 16}),
        ("random", {"early_terminate": Hyperband(9), "max_iter": None}),
        ("tpe", {"run_cap": 16}),
        *rarely(
            ("tpe", {"early_terminate": Hyperband(9), "max_iter": None}),
            ("evolution", {"run_cap": 16, "search": Search(lag=3, options={"population": 4, "sample": 2})}),
            ("nsga2", {"run_cap": 16}),
        ),
    ],
)
def test_the_table_is_the_same_whenever_and_on_however_many_workers(method, changes):
    sweep, event = searching(method, **changes), Changed(WIDER.to_json(), FROM)
    tables: list[Table] = []
    for workers, after in [(1, FROM), (1, 2), (2, 5), (3, 7)]:
        life = changed_life(sweep, workers, workers + after, after, event)
        tables.append(table(life.state))
        replayed = SweepState(sweep)
        assert len(list(replayed.replay(life.events))) == len(life.events)
        assert table(replayed) == tables[-1]
    assert all(other == tables[0] for other in tables)
    params = [row[1] for row in tables[0]]
    assert all(point["d"] == 0.5 and point["x"] < 1 for point in params[:FROM])
    assert {point["c"] for point in params[FROM:]} == {"a"}
    assert any(point["d"] != 0.5 for point in params[FROM:])
    before = table(SteadyLife(sweep, 1, 0).run().state)
    assert [row[0] for row in before] == [row[0] for row in tables[0]]
    assert [row[1] | {"d": 0.5} for row in before[:FROM]] == params[:FROM]


def test_a_resumed_search_goes_on_as_the_undisturbed_one_from_anywhere():
    sweep, event = searching("tpe", run_cap=14), Changed(WIDER.to_json(), FROM)
    life = changed_life(sweep, 2, 0, 6, event)
    begun = life.events.index(event)
    for cut in range(begun, len(life.events), 3):
        resumed = SteadyLife(sweep, 2, cut)
        resumed.state, resumed.events = SweepState(sweep), []
        events: list[Event] = [*life.events[:cut], *([] if cut > begun else [event]), OPENED]
        for applied, _ in resumed.state.replay(events):
            resumed.events.append(applied)
        resumed.state.prepare()
        assert table(resumed.run().state) == table(life.state)


class Told(DirectCalls):
    """Keeps what a searcher is told of trials."""

    def __init__(self, searcher: Searcher) -> None:
        super().__init__(searcher)
        self.space = searcher.problem.space
        self.params: dict[int, Params] = {}

    def tell(self, method: str, *arguments: Any) -> None:
        if method == "started":
            self.params[arguments[0].number] = dict(arguments[0].params)
        else:
            trial = getattr(arguments[0], "trial", arguments[0])
            assert self.params[trial.number] == trial.params
        super().tell(method, *arguments)


def told_after(space: Space, past: Sequence[Past] = (), *events: Event) -> tuple[Told, SweepState, list[Past]]:
    """Return what the searcher of a space is told, of a sweep that changes to it from its sixth trial on."""
    sweep = searching("tpe", run_cap=8)
    life = SteadyLife(sweep, 1, 0, trouble=0.0)
    life.state = SweepState(sweep, past=past)
    life.state.apply(OPENED)
    while len(life.state.records) < 5:
        assert life.step()
    made: list[Told] = []
    known: list[Past] = []

    def calls_of(_: Sweep, searcher: Searcher, past: Sequence[Past]) -> Told:
        made.append(Told(searcher))
        known[:] = past
        return made[-1]

    life.state = SweepState(sweep, calls_of, past)
    list(life.state.replay([*life.events, *events, Changed(space.to_json(), 5), OPENED]))
    life.state.prepare()
    life.run()
    return made[-1], life.state, known


def test_the_new_searcher_is_told_the_trials_that_fit_as_its_space_has_them():
    told, state, _ = told_after(WIDER)
    rows = [row.params for row in state.rows()]
    assert told.params == {number: {**rows[number], "c": "a", "d": rows[number]["d"]} for number in told.params}
    assert len(told.params) >= 7
    narrow = Space.from_parameters({"x": Uniform(0.5, 1), "n": LogIntUniform(1, 100), "c": ["a", "b"]})
    told, state, _ = told_after(narrow)
    fitting = [row.number for row in state.rows() if row.params["x"] >= 0.5]
    assert [*told.params] == [number for number in fitting if number in told.params]
    assert set(range(5)) - set(fitting)


def test_the_change_that_added_a_parameter_says_what_earlier_trials_had_not_a_later_one():
    later = Space.from_parameters({**dict_of(WIDER), "d": Uniform(0, 1, default=0.9)})
    told, state, _ = told_after(later, (), Changed(WIDER.to_json(), 5))
    assert [row.params["d"] for row in state.rows()][:5] == [0.5] * 5
    assert [told.params[number]["d"] for number in range(5) if number in told.params] == [0.5] * 5
    without = Space.from_parameters({**dict_of(WIDER), "d": Uniform(0.6, 1, default=0.9)})
    told, _, _ = told_after(without, (), Changed(WIDER.to_json(), 5))
    assert not set(range(5)) & set(told.params)


def test_results_of_other_searches_are_told_as_far_as_they_fit():
    past = [Past({"x": x, "n": 3, "c": "b"}, {2: 1.0}, 2) for x in (0.25, 0.75)]
    _, _, known = told_after(Space.from_parameters({**dict_of(SPACE), "x": Uniform(0.5, 1)}), past)
    assert [trial.params["x"] for trial in known] == [0.75]
    _, _, known = told_after(WIDER, past)
    assert [trial.params for trial in known] == [{"x": x, "n": 3, "c": "a", "d": 0.5} for x in (0.25, 0.75)]


def dict_of(space: Space) -> dict[str, Any]:
    return {item.path[0]: item.holds for item in space.declared}


def test_a_suggestion_that_nobody_took_is_dropped():
    sweep = searching("tpe", run_cap=8, search=Search(ahead=True, startup=2))
    life = SteadyLife(sweep, 1, 0, trouble=0.0)
    while not any(isinstance(event, Asked) and event.number == 4 for event in life.events):
        request = life.state.request()
        if request is not None:
            life.take(request)
        else:
            assert life.step()
    count = len(life.state.records)
    assert count == 4
    far = Space.from_parameters({**dict_of(SPACE), "x": Uniform(5, 6)})
    life.state = SweepState(sweep)
    list(life.state.replay([*life.events, Changed(far.to_json(), count), OPENED]))
    life.run()
    assert [row.params["x"] >= 5 for row in life.state.rows()] == [False] * 4 + [True] * 4


def test_an_added_configuration_waits_through_the_change_and_gets_the_new_parameters():
    sweep = searching("random", run_cap=4)
    state = SweepState(sweep)
    list(state.replay([OPENED, Added({"x": 0.25}), Changed(WIDER.to_json(), 2), OPENED]))
    started = state.next()
    assert isinstance(started, Started)
    assert started.new is not None
    assert started.new.params["x"] == 0.25
    assert {"d", "c"} <= set(started.new.params)


def test_points_to_try_that_wait_must_be_in_the_new_space():
    points = tuple({"x": x, "n": 1, "c": "a"} for x in (0.1, 0.9))
    sweep = searching("random", run_cap=4, points_to_try=points)
    narrow = Space.from_parameters({**dict_of(SPACE), "x": Uniform(0.5, 1)})
    with pytest.raises(
        SweepError, match=r"points_to_try\.0 waits for a trial, .* must be between 0.5 and 1.0, got 0.1"
    ):
        change(sweep, narrow, 0, 0)
    event = change(sweep, narrow, 1, 1)
    state = changed_life(sweep, 1, 0, 1, event).state
    assert [row.params["x"] for row in state.rows()][:2] == [0.1, 0.9]
    assert all(row.params["x"] >= 0.5 for row in state.rows()[1:])


def test_a_journal_shows_the_default_of_each_trial_that_lacks_a_parameter():
    sweep = searching("random", run_cap=12)
    life = changed_life(sweep, 2, 0, 3, Changed(WIDER.to_json(), 6))
    journaled = JournaledState(sweep)
    entries = [Entry(0.0, event, followed) for event, followed in SweepState(sweep).replay(life.events)]
    for _ in journaled.read(entries):
        pass
    assert [row.params for row in journaled.rows()] == [row.params for row in life.state.rows()]
    assert [row.params["d"] for row in journaled.rows()][:6] == [0.5] * 6
    assert Followed() in [entry.followed for entry in entries if isinstance(entry.event, Changed)]


def test_a_space_may_change_several_times_and_the_last_change_of_a_trial_counts():
    sweep = searching("random", run_cap=8)
    again = Space.from_parameters({**dict_of(WIDER), "x": Uniform(3, 4), "e": IntUniform(7, 9, default=8)})
    later = Space.from_parameters({**dict_of(again), "x": Uniform(5, 6)})
    state = SweepState(sweep)
    events: list[Event] = [
        OPENED,
        Changed(WIDER.to_json(), 2),
        Changed(later.to_json(), 6),
        Changed(again.to_json(), 4),
    ]
    list(state.replay([*events, OPENED]))
    life = SteadyLife(sweep, 1, 0)
    life.state = state
    life.run()
    xs = [row.params["x"] for row in state.rows()]
    assert all(x <= 2 for x in xs[:4])
    assert all(3 <= x <= 4 for x in xs[4:])
    assert [row.params["e"] for row in state.rows()][:4] == [8] * 4


@pytest.mark.parametrize(
    ("changes", "parameters", "problem"),
    [
        ({"method": "grid", "parameters": Space.from_parameters({"c": ["a", "b"]})}, {"c": ["a"]}, "method grid can't"),
        ({"method": "qmc"}, {"x": Uniform(0, 2)}, "method qmc can't change its space, as its suggestions follow"),
        ({}, {}, "the study has this space already"),
        ({}, {"x": None}, r"parameters\.x: must stay, as trials have it: \{value: ...\} says"),
        ({}, {"d": Uniform(0, 1)}, r"parameters\.d\.default: is required where a parameter is added"),
        ({}, {"d": Categorical(["a"])}, r"parameters\.d\.default: is required"),
        (
            {},
            {"d": Repeat(["a"], 1, 2)},
            r"parameters\.d: only a number, a choice of values or a constant can be added",
        ),
        ({}, {"c": Repeat(["a"], 1, 2)}, r"parameters\.c: a choice, repeat, chain or cell can't change"),
    ],
)
def test_what_cant_change_says_why(changes, parameters, problem):
    sweep = searching(**{"method": "tpe", "run_cap": 8, **changes})
    declared = {**dict_of(sweep.parameters), **parameters}
    space = Space.from_parameters({name: value for name, value in declared.items() if value is not None})
    with pytest.raises(SweepError, match=problem):
        change(sweep, space, 0, 0)
