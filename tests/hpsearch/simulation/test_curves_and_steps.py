from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pytest

from hpsearch.backends import find_simulation
from hpsearch.errors import SweepError, TrainableError
from hpsearch.simulation import Curve, Curves, Simulation, Step, Steps
from hpsearch.simulation.simulation import RecordedFailure
from hpsearch.space import Space, Uniform
from hpsearch.trial import Segment, Trial

SPACE = Space.from_parameters({"x": Uniform(0.0, 1.0), "group": {"y": 5}})
TRIAL = Trial(0, {"x": 0.5, "group.y": 5}, 11, "random")


@dataclass
class Fixed(Curves):
    given: Any

    def curve(self, params: dict[str, Any], seed: int) -> Curve:
        assert (params, seed) == ({"x": 0.5, "group": {"y": 5}}, 11)
        return self.given  # type: ignore[no-any-return]


class Walk(Steps):
    """Its state is a list that each step changes in place."""

    def step(
        self, state: Any, params: dict[str, Any], rng: np.random.Generator
    ) -> tuple[Any, dict[str, float], float] | None:
        path = [] if state is None else state
        if len(path) == 6:
            return None
        path.append(params["x"] * rng.normal())
        return path, {"loss": sum(path)}, 2.0


def steps(simulation: Simulation, start: int = 0, end: int | None = None, state: bytes | None = None) -> list[Step]:
    simulation.open(SPACE, "loss")
    found = []
    for step in simulation.steps(TRIAL, Segment(0, start, end, None, 1), state):
        found.append(step)
        if end is not None and len(found) == end - start:
            break
    return found


def test_a_curve_is_given_iteration_by_iteration():
    curve = Fixed(Curve({"loss": np.array([3.0, 2.0, 1.0]), "more": [1, 2, 3]}, (1.0, 2.0, 3.0)))
    assert [(step.metrics, step.seconds) for step in steps(curve)] == [
        ({"loss": 3.0, "more": 1.0}, 1.0),
        ({"loss": 2.0, "more": 2.0}, 2.0),
        ({"loss": 1.0, "more": 3.0}, 3.0),
    ]
    assert [step.metrics["loss"] for step in steps(curve, 2)] == [1.0]
    assert steps(curve, 3) == steps(curve, 7) == []
    assert [step.seconds for step in steps(Fixed(Curve({"loss": [1.0, 2.0]}, np.array([0.5, 0.25]))))] == [0.5, 0.25]


def test_a_curve_may_end_in_a_failure():
    failing = Fixed(Curve({"loss": [3.0, 2.0]}, 1.0, "out of memory"))
    assert len(steps(failing, 0, 2)) == 2
    with pytest.raises(RecordedFailure, match="out of memory"):
        steps(failing)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([1.0, 2.0], r"curve must give an hpsearch.Curve, got a list"),
        (Curve({}), r"as many values of each metric, and seconds, got no metric"),
        (Curve({"loss": [1.0], "b": []}), r"got 1 of loss, 0 of b"),
        (Curve({"loss": [1.0]}, [1.0, 2.0]), r"got 1 of loss, 2 of seconds"),
        (Curve({"los": [1.0]}), r"must have the sweep's metric 'loss'.*did you mean 'los'"),
        (Curve(cast(Any, {"loss": ["low"]})), r"the metric 'loss' must be a number"),
        (Curve({"loss": [1.0]}, -1.0), r"seconds of an iteration must be a number, at least 0, got -1.0"),
        (Curve({"loss": [1.0]}, [float("nan")]), r"seconds of an iteration .* got nan"),
        (Curve({"loss": [1.0]}, float("inf")), r"seconds of an iteration .* got inf"),
    ],
)
def test_a_wrong_curve_is_the_contracts_breach(given, expected):
    with pytest.raises(TrainableError, match=expected):
        steps(Fixed(given))


def test_steps_are_the_same_however_they_are_cut_into_segments():
    whole = steps(Walk())
    assert len(whole) == 6
    pieces, state = [], None
    for start in range(0, 6, 2):
        pieces += steps(Walk(), start, start + 2, state)
        state = pieces[-1].state
    assert pieces == whole
    assert steps(Walk(), 6, None, state) == []


def test_a_state_stays_what_it_was_whatever_later_steps_make_of_it():
    whole = steps(Walk())
    assert steps(Walk(), 2, None, whole[1].state) == whole[2:]
    assert steps(Walk(), 2, None, whole[1].state) == whole[2:]


def test_a_fork_draws_what_its_own_seed_says():
    other = Trial(1, {"x": 0.5, "group.y": 5}, 12, "random")
    walk = Walk()
    first = steps(walk)
    forked = next(walk.steps(other, Segment(1, 2, None, None, 1), first[1].state))
    assert forked.metrics != first[2].metrics


@pytest.mark.parametrize("given", [(1, {"loss": 1.0}), {"loss": 1.0}])
def test_a_step_of_another_shape_is_the_contracts_breach(given):
    class Wrong(Steps):
        def step(self, state: Any, params: dict[str, Any], rng: np.random.Generator) -> Any:
            return given

    with pytest.raises(TrainableError, match=r"step must give \(state, metrics, seconds\), or None.*got a"):
        steps(Wrong())


def test_speed_follows_the_efficiency_of_each_doubling():
    walk = Walk()
    assert walk.speed(1) == 1.0
    assert walk.speed(4) == pytest.approx(4 * 0.81)
    walk.efficiency = 0.5
    assert walk.speed(8) == pytest.approx(1.0)


def test_what_stands_in_for_a_trainable():
    here = f"{__name__}:Walk"
    assert isinstance(find_simulation(here, ()), Walk)
    assert isinstance(find_simulation(Walk, ()), Walk)
    walk = Walk()
    assert find_simulation(walk, ()) is walk


@pytest.mark.parametrize(
    ("trainable", "expected"),
    [
        (
            f"{__name__}:steps",
            r"got .*test_curves_and_steps:steps. What a sweep would run, `hpsearch plan`",
        ),
        (None, r"trains nothing: it takes a table .* or a class derived from hpsearch.Curves .* got a script"),
        (f"{__name__}:Wlk", r"names 'Wlk', which isn't in .*did you mean 'Walk'\?"),
        ("nowhere.at.all:Walk", r"names the module 'nowhere', which isn't there"),
    ],
)
def test_what_can_not_stand_in_for_a_trainable(trainable, expected):
    with pytest.raises(SweepError, match=expected):
        find_simulation(trainable, ())
