"""A suggestion hangs on its request's place in the journal: not on when, where, or how often it is worked out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hpsearch.events import Asked, Event, Exhausted, Started
from hpsearch.run.searcher_process import ProcessCalls
from hpsearch.schedulers.asha import ASHA
from hpsearch.schedulers.base import Wait
from hpsearch.schedulers.halving import Hyperband, SuccessiveHalving
from hpsearch.schedulers.median import MedianStopping
from hpsearch.searchers import Search, Searcher
from hpsearch.searchers.calls import Calls, DirectCalls
from hpsearch.space import Space
from hpsearch.study.state import SweepState
from hpsearch.sweep.sweep import Sweep
from tests.hpsearch.support.climbing import Climbing
from tests.hpsearch.support.lives import Life
from tests.hpsearch.support.steady import OPENED, SteadyLife, answered, sweep_over, table
from tests.hpsearch.support.structured import structured
from tests.rarely import rarely

EARLY: dict[str, dict[str, Any]] = {
    "none": {"early_terminate": None, "max_iter": 3},
    "asha": {"early_terminate": ASHA(9)},
    "hyperband": {"early_terminate": Hyperband(9)},
    "median": {"early_terminate": MedianStopping(6, min_trials=2)},
    "halving": {"early_terminate": SuccessiveHalving(9, trials=9)},
}
METHODS = ["tpe", "bohb", "cmaes", "evolution", "spectral", "optuna.samplers:NSGAIISampler", Climbing.kind]


def sweep_of_kind(method: str, early: str, run_cap: int = 16) -> Sweep:
    changes = EARLY["asha"] if method == "bohb" and early == "none" else EARLY[early]
    options = {"samples": 4} if method == "spectral" else {"population_size": 5} if "NSGA" in method else None
    search = Search(startup=None if method == Climbing.kind else 3, options=options)
    return sweep_over(method, run_cap=run_cap, search=search, **changes)


def process_calls(sweep: Sweep, _: Searcher) -> Calls:
    return ProcessCalls(sweep)


def go_on(sweep_state: SweepState, events: list[Event]) -> None:
    """Take the rest of a life, each start of which is what comes next."""
    sweep_state.prepare()
    for event in events:
        if isinstance(event, Started) and event.segment.width == 1:
            assert answered(sweep_state) == event
        sweep_state.apply(event)


@pytest.mark.parametrize(
    ("method", "early"),
    [
        # Each method with one of them, and each of them with some method.
        pytest.param(method, early, marks=() if (place - number) % len(EARLY) == 0 else pytest.mark.exhaustive)
        for number, method in enumerate(METHODS)
        for place, early in enumerate(EARLY)
    ],
)
def test_cut_at_any_event_a_search_goes_on_as_the_undisturbed_one(method, early):
    sweep = sweep_of_kind(method, early)
    whole = SteadyLife(sweep, 3, 5).run()
    for cut in range(1, len(whole.events), 19):
        resumed = SweepState(sweep)
        list(resumed.replay(whole.events[:cut]))
        go_on(resumed, whole.events[cut:])
        assert table(resumed) == table(whole.state)


@pytest.mark.parametrize("method", ["cmaes", "evolution", *rarely("tpe", "bohb", "optuna.samplers:NSGAIISampler")])
def test_over_structures_and_constraints_it_does_so_too(method):
    sweep = replace(sweep_of_kind(method, "asha"), parameters=structured(method))
    whole = SteadyLife(sweep, 3, 5).run()
    for cut in range(1, len(whole.events), 29):
        resumed = SweepState(sweep)
        list(resumed.replay(whole.events[:cut]))
        go_on(resumed, whole.events[cut:])
        assert table(resumed) == table(whole.state)


@pytest.mark.exhaustive
@pytest.mark.parametrize("early", EARLY)
@pytest.mark.parametrize("method", METHODS)
def test_cut_at_every_event_a_search_goes_on_as_the_undisturbed_one(method, early):
    for seed in range(3):  # each cuts its life at every third event, and all together at every one
        sweep = sweep_of_kind(method, early, 12)
        whole = SteadyLife(sweep, 1 + seed, seed).run()
        for cut in range(1 + seed, len(whole.events), 3):
            resumed = SweepState(sweep)
            list(resumed.replay(whole.events[:cut]))
            go_on(resumed, whole.events[cut:])
            assert table(resumed) == table(whole.state)


@pytest.mark.parametrize(
    ("method", "early"),
    [
        ("evolution", "hyperband"),
        *rarely(("tpe", "asha"), ("cmaes", "halving"), ("gp", "none")),
    ],
)
def test_in_a_process_of_its_own_a_search_goes_on_from_any_event_too(method, early):
    sweep = sweep_of_kind(method, early, 7 if method == "gp" else 12)
    # There sums are made by one thread, and here by several, which gp's last digits show: it is compared with itself.
    whole = SteadyLife(sweep, 2, 5, calls_of=process_calls if method == "gp" else SteadyLife.calls_of).run()
    whole.state.close()
    for cut in (1, len(whole.events) // 2):
        resumed = SweepState(sweep, process_calls)
        list(resumed.replay(whole.events[:cut]))
        go_on(resumed, whole.events[cut:])
        assert table(resumed) == table(whole.state)
        resumed.close()


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("method", ["tpe", "evolution", *rarely("cmaes", METHODS[-2], "bohb")])
def test_lives_with_losses_reverts_and_drops_replay_and_go_on(method):
    """Whatever happens to attempts, what is resumed gives the same next suggestions."""
    for seed, early in enumerate(["none", "asha", "hyperband", "median", "halving"]):
        sweep = sweep_of_kind(method, early)
        life = Life(sweep, seed, 3, 0.5).run()
        for cut in range(3, len(life.events), max(len(life.events) // 4, 1)):
            resumed = SweepState(sweep)
            list(resumed.replay(life.events[:cut]))
            resumed.prepare()
            for event in life.events[cut:]:
                resumed.apply(event)
            assert repr(resumed.rows()) == repr(life.sweep_state.rows())


class Slow(DirectCalls):
    """Has no answer until it is told to have."""

    works = False

    def ready(self) -> bool:
        return not self.works


@pytest.mark.parametrize("method", [Climbing.kind, "tpe", "evolution", "optuna.samplers:RandomSampler"])
def test_where_stand_ins_take_every_point_that_was_left_the_journal_still_replays(method):
    """A suggestion is being worked out while other trials take all that is left, itself included."""
    made: list[Slow] = []

    def calls_of(_: Sweep, searcher: Searcher) -> Slow:
        made.append(Slow(searcher))
        return made[-1]

    search = Search(startup=None if method == Climbing.kind else 1)
    space = Space.from_parameters({"x": [0.0, 0.25, 0.5, 1.0], "y": [1, 2]})
    sweep = sweep_over(method, parameters=space, early_terminate=None, max_iter=1, run_cap=12, search=search)
    sweep_state = SweepState(sweep, calls_of)
    events: list[Event] = []

    def take(event: Any) -> None:
        sweep_state.apply(event)
        events.append(event)

    take(OPENED)
    while not made or sum(isinstance(event, Asked) for event in events) < 2:
        take(sweep_state.next())
    made[0].works = True  # on the second suggestion
    while len(sweep_state.rows()) < 12:
        answer = next(sweep_state.upcoming(stand_in=True))
        if isinstance(answer, Wait):
            made[0].works = False
        else:
            take(answer)
        if isinstance(answer, Exhausted):
            break
    assert any(isinstance(event, Started) and event.new and event.new.origin == "stand_in" for event in events)
    for cut in range(1, len(events) + 1):
        list(SweepState(sweep).replay(events[:cut]))
