"""With `search.lag`, what a suggestion knows follows from its number, and so does the table."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import hpsearch
from hpsearch.errors import SweepError
from hpsearch.events import Failed, Finished, Retried, Started
from hpsearch.schedulers.asha import ASHA
from hpsearch.schedulers.halving import Hyperband, SuccessiveHalving
from hpsearch.schedulers.median import MedianStopping
from hpsearch.schedulers.pasha import PASHA
from hpsearch.searchers import Search, Searcher
from hpsearch.searchers.calls import DirectCalls
from hpsearch.study.state import SweepState
from hpsearch.sweep.parts import Resources
from hpsearch.sweep.sweep import Sweep
from hpsearch.trial import Failure, Report
from tests.hpsearch.support.climbing import Climbing
from tests.hpsearch.support.family import Family
from tests.hpsearch.support.merged import merged
from tests.hpsearch.support.population import Population
from tests.hpsearch.support.steady import SteadyLife, sweep_over, table
from tests.hpsearch.support.structured import structured
from tests.rarely import rarely

THIRDS = "hyperband, thirds"
SWEEPS: dict[str, dict[str, Any]] = {
    "full length": {"early_terminate": None, "max_iter": 3, "run_cap": 22},
    "hyperband": {"early_terminate": Hyperband(4, eta=2, brackets=7)},
    THIRDS: {"early_terminate": Hyperband(9, brackets=5)},
    "halving": {"early_terminate": SuccessiveHalving(9, trials=9), "run_cap": 30},
}
METHODS = [Climbing.kind, "tpe", "cmaes", "evolution", "spectral", "optuna.samplers:NSGAIISampler"]


def lagging(method: str, sweep: str, lag: int) -> Sweep:
    options = {"samples": 4} if method == "spectral" else {"population_size": 6} if "NSGA" in method else None
    search = Search(lag=lag, startup=None if method == Climbing.kind else 3, options=options)
    return sweep_over(method, search=search, **SWEEPS[sweep])


def skip_without_rungs(method: str, sweep: str) -> None:
    if method == "bohb" and SWEEPS[sweep]["early_terminate"] is None:
        pytest.skip("it takes asha, which refuses a lag")


OFTEN = [(Climbing.kind, "halving"), ("tpe", "full length"), ("evolution", "hyperband"), ("spectral", "halving")]
METHODS_AND_SWEEPS = [(method, sweep) for method in METHODS for sweep in SWEEPS]


@pytest.mark.some_cases(2)
@pytest.mark.parametrize(
    ("method", "sweep"),
    [*OFTEN, *rarely(*(case for case in METHODS_AND_SWEEPS if case not in OFTEN))],
)
def test_with_a_lag_the_table_is_the_same_on_any_number_of_workers_and_in_any_order(method, sweep):
    skip_without_rungs(method, sweep)
    for lag in (1, 4):
        one = SteadyLife(lagging(method, sweep, lag), 1, 0, trouble=0.0).run()
        assert method in {row.origin for row in one.state.rows()} or method == Climbing.kind
        for workers, seed in [(lag, 2), (max(lag - 1, 1), 4), (lag + 3, 5)]:
            other = SteadyLife(lagging(method, sweep, lag), workers, seed).run()
            assert table(other.state) == table(one.state)


@pytest.mark.parametrize("method", ["cmaes", "evolution", *rarely("tpe")])
def test_over_structures_and_constraints_it_is_so_too(method):
    sweep = replace(lagging(method, "full length", 3), parameters=structured(method), run_cap=12)
    one = table(SteadyLife(sweep, 1, 0, trouble=0.0).run().state)
    for workers, seed in [(3, 2), (5, 3)]:
        assert table(SteadyLife(sweep, workers, seed).run().state) == one


@pytest.mark.exhaustive
@pytest.mark.parametrize("sweep", SWEEPS)
@pytest.mark.parametrize("method", [*METHODS, "bohb", "optuna.samplers:QMCSampler"])
def test_with_any_lag_the_table_is_the_same_in_many_orders(method, sweep):
    skip_without_rungs(method, sweep)
    for lag in (2, 5, 8):  # 1 and 4 are those of all methods above
        one = table(SteadyLife(lagging(method, sweep, lag), 1, 0).run().state)
        for seed in range(1, 4):
            assert table(SteadyLife(lagging(method, sweep, lag), 1 + seed % lag, seed).run().state) == one


class Listening(DirectCalls):
    """Writes down what the searcher had been told when it was asked."""

    def __init__(self, searcher: Searcher) -> None:
        super().__init__(searcher)
        self.started: list[int] = []
        self.observed: list[tuple[int, int]] = []
        self.known: dict[int, tuple[list[int], list[tuple[int, int]]]] = {}

    def tell(self, method: str, *arguments: Any) -> None:
        if method == "started":
            self.started.append(arguments[0].number)
        else:
            assert method == "observe"
            assert arguments[0].ended
            self.observed.append((arguments[0].trial.number, arguments[0].iteration))
        super().tell(method, *arguments)

    def ask(self, method: str, *arguments: Any) -> None:
        self.known[arguments[0]] = list(self.started), sorted(self.observed)
        super().ask(method, *arguments)


@pytest.mark.parametrize("sweep", SWEEPS)
@pytest.mark.parametrize("lag", [1, 3])
def test_a_suggestion_knows_just_what_its_number_says(sweep, lag):
    """All trials before it, first results up to n - lag, and all results of brackets two or more before its own."""
    made: list[Listening] = []

    def calls_of(_: Sweep, searcher: Searcher) -> Listening:
        made.append(Listening(searcher))
        return made[-1]

    for seed in range(4):
        life = SteadyLife(lagging(Climbing.kind, sweep, lag), lag, seed, calls_of=calls_of).run()
        ends: dict[int, list[int]] = {}
        for event in life.events:
            if isinstance(event, Finished):
                ends.setdefault(event.trial, []).append(event.iteration)
            elif isinstance(event, Failed) and not event.retry:
                ends.setdefault(event.trial, []).append(event.reports[-1].iteration)
        of = {e.new.number: e.bracket for e in life.events if isinstance(e, Started) and e.new is not None}
        for number, (started, observed) in made[-1].known.items():
            bracket = of.get(number)
            if bracket is None:  # it was asked for, and there was no trial left
                continue
            former = [trial for trial in range(number) if of[trial] <= bracket - 2]
            first = [trial for trial in range(number - lag + 1) if trial not in former]
            expected = [(t, end) for t in former for end in ends[t]] + [(t, ends[t][0]) for t in first]
            assert started == list(range(number))
            assert observed == sorted(expected)


class Uneven(hpsearch.Curves):
    """Some trials take a hundred times as long as others, and some fail."""

    def curve(self, params: dict[str, Any], seed: int) -> hpsearch.Curve:
        rng = np.random.default_rng(seed)
        found = [abs(params["x"] - 0.3) + 1.0 / (i + 1) + 0.1 * rng.random() for i in range(9)]
        seconds = float(rng.choice([0.01, 0.1, 1.0]))
        if rng.random() < 0.1:
            return hpsearch.Curve({"loss": found[:2]}, seconds, "ValueError: no luck")
        return hpsearch.Curve({"loss": found}, seconds)


SIMULATED: dict[str, dict[str, Any]] = {
    "full length": {"max_iter": 9, "run_cap": 16},
    "hyperband": {"early_terminate": Hyperband(9), "run_cap": 24},
    "halving": {"early_terminate": SuccessiveHalving(9, trials=9), "run_cap": 20, "limits": {"max_retries": 1}},
}


@pytest.mark.parametrize("name", ["hyperband", *rarely("full length", "halving")])
def test_a_simulated_sweep_with_a_lag_gives_the_same_table_on_any_number_of_workers(name):
    fixed: dict[str, Any] = {
        "parameters": {"x": hpsearch.Uniform(0.0, 1.0), "c": ["a", "b"]},
        "metric": "loss",
        "method": "tpe",
        "search": {"lag": 4, "startup": 4},
        "backend": "simulated",
        "directory": ":memory:",
        "limits": {"max_failures": "none"},
        "observers": [],
        "progress": False,
    }

    def found(workers: int) -> list[Any]:
        study = hpsearch.search(Uneven, **merged(fixed, {"resources": {"workers": workers}}, SIMULATED[name]))
        assert study.state == "finished"
        return [(row.number, row.params, row.origin, repr(row.value), row.state) for row in study.trials]

    one = found(1)
    assert {origin for _, _, origin, _, _ in one} == {"random", "tpe"}
    assert all(found(workers) == one for workers in (2, 4))


def test_a_lag_is_refused_where_it_could_not_be_kept():
    x = {"parameters": sweep_over("tpe").parameters, "search": Search(lag=2), "run_cap": 9}
    for early, told in (
        (ASHA(9), r"search\.lag: must not be given with early_terminate of type asha, which decides in completion"),
        (PASHA(9), r"search\.lag: must not be given with early_terminate of type pasha"),
        (MedianStopping(9), r"search\.lag: must not be given with early_terminate of type median"),
    ):
        with pytest.raises(SweepError, match=told):
            sweep_over("tpe", early_terminate=early, **x)
    with pytest.raises(SweepError, match=r"search\.lag: must not be given where trials may be widened"):
        sweep_over("tpe", resources=Resources(max_workers_per_trial=4), **x)
    for method, population in ((Family.kind, None), (Family.kind, Population(9, members=3, interval=3))):
        with pytest.raises(SweepError, match=r"search\.lag: must not"):
            sweep_over(method, early_terminate=population, max_iter=None if population else 3, **x)
    with pytest.raises(SweepError, match=r"search: must not be given with method random, which doesn't learn"):
        sweep_over("random", **x)
    with pytest.raises(SweepError, match=r"search\.lag: must not be given .* asha"):
        sweep_over("bohb", early_terminate=None, max_iter=9, **x)


@pytest.mark.parametrize("lag", [None, 1])
def test_a_failed_trial_that_runs_again_is_not_taken_for_a_failed_one(lag):
    told: list[tuple[str, Any]] = []

    class Hearing(DirectCalls):
        def tell(self, method: str, *arguments: Any) -> None:
            told.append((method, arguments[0].failure if method == "observe" else None))
            super().tell(method, *arguments)

    search = Search(lag=lag, startup=0)
    sweep = sweep_over("tpe", early_terminate=SuccessiveHalving(4, eta=2, trials=4), run_cap=8, search=search)
    life = SteadyLife(sweep, 1, 0, calls_of=lambda _, searcher: Hearing(searcher))
    while not life.state.running():
        life.step()
    (segment,) = life.state.running()
    life.take(Failed(0, segment.attempt, Failure("raised", "no", ""), False, ()))
    assert life.state.may_run_again(0)
    life.take(Retried(0))
    again = life.state.next()
    assert isinstance(again, Started)
    life.take(again)
    reports = (Report(0, 1, {"loss": 0.5}, 0.1),)
    life.take(Finished(0, again.segment.attempt, 1, "c", reports, False, 1.0))
    while len(life.asked) < 2:
        life.take(life.state.next())  # type: ignore[arg-type]
    expected = [("started", None), ("observe", None)]
    if lag is None:  # it is told of all, in its order
        assert [method for method, _ in told] == ["started", "observe", "reverted", "observe"]
        assert told[-1] == ("observe", None)
    else:
        assert told == expected
    list(SweepState(sweep).replay(life.events))


def test_a_state_with_a_lag_is_resumed_from_any_event():
    sweep = lagging("tpe", "hyperband", 3)
    life = SteadyLife(sweep, 3, 1).run()
    for cut in range(1, len(life.events), 9):
        resumed = SweepState(sweep)
        list(resumed.replay(life.events[:cut]))
        resumed.prepare()
        for event in life.events[cut:]:
            if isinstance(event, Started):
                assert resumed.next() == event
            resumed.apply(event)
        assert table(resumed) == table(life.state)


@pytest.mark.parametrize("method", [Climbing.kind, "tpe", *rarely("cmaes")])
def test_a_sweep_that_is_extended_gives_the_table_of_one_that_was_as_long_from_the_start(method, tmp_path):
    def found(name: str, run_cap: int, workers: int) -> list[Any]:
        study = hpsearch.search(
            Uneven,
            parameters={"x": hpsearch.Uniform(0.0, 1.0), "y": hpsearch.Uniform(0.0, 1.0)},
            metric="loss",
            method=method,
            search={"lag": 3},
            max_iter=4,
            run_cap=run_cap,
            backend="simulated",
            directory=tmp_path / name,
            resources={"workers": workers},
            limits={"max_failures": "none"},
            observers=[],
            progress=False,
        )
        assert study.state == "finished"
        return [(row.number, row.params, row.origin, repr(row.value), row.state) for row in study.trials]

    whole = found("whole", 24, 2)
    assert whole[:13] == found("grown", 13, 3)
    assert found("grown", 24, 3) == whole
