"""What holds for every strategy: each is tried on two ranks, and at what is named in `MORE`."""

from __future__ import annotations

import dataclasses
import math
import signal
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from hpsearch_trainers.strategies import STRATEGIES, Strategy, StrategyCapabilities
from tests.comm.leftovers import shared_memory_files
from tests.comm.process_ranks import Outcome, ProcessRanks
from tests.rarely import rarely
from tests.trainers.strategies.documented import documented_strategy
from tests.trainers.strategies.problems import ODD
from tests.trainers.strategies.ranks import CHANGES, changes, trains, validates

pytestmark = pytest.mark.some_cases(2)

KINDS = {**STRATEGIES, "compressed_allreduce": documented_strategy()}
"""Strategies by name; the last one is that of docs/extending.md."""

MORE: dict[str, tuple[int, Mapping[str, Any]]] = {
    "allreduce of three": (3, {"strategy": "allreduce"}),
    "tensor of four": (4, {"strategy": "tensor"}),
    "pipeline of three, one forward one backward": (3, {"strategy": "pipeline", "schedule": "1f1b"}),
    "two workers and a server": (3, {"strategy": "parameter_server"}),
    "two workers and two servers": (4, {"strategy": "parameter_server", "servers": 2}),
    "downpour of two": (3, {"strategy": "downpour"}),
    "downpour of two, with a delay": (
        4,
        {"strategy": "downpour", "servers": 2, "n_push": 2, "n_fetch": 3, "max_delay": 1, "warm_start": 1},
    ),
    "average_once of three": (3, {"strategy": "average_once"}),
    "compressed_allreduce of three": (3, {"strategy": "compressed_allreduce"}),
    "local_sgd of three": (3, {"strategy": "local_sgd", "period": 3, "momentum": "average"}),
}
"""Strategies at other widths, or with other options, by a name for the test."""

USES: dict[str, tuple[int, Mapping[str, Any]]] = {name: (2, {"strategy": name}) for name in KINDS} | MORE
"""All that is tried."""


@dataclass(frozen=True)
class Use:
    """A strategy on so many ranks."""

    ranks: ProcessRanks
    """What starts them."""
    width: int
    parallel: Mapping[str, Any]
    """The trial's."""

    @property
    def kind(self) -> type[Strategy]:
        return KINDS[self.parallel["strategy"]]

    @property
    def capabilities(self) -> StrategyCapabilities:
        return self.kind.capabilities

    def outcomes(self, function: str, *arguments: Any) -> list[Outcome]:
        """Return how each rank ended."""
        return self.ranks.call(self.width, function, self.parallel, *arguments, timeout=60.0)

    def working(self) -> list[int]:
        """Return the ranks that train."""
        return [rank for rank, outcome in enumerate(self.outcomes("working")) if outcome.result]

    def curve(self, *arguments: Any, of: str = "trains") -> list[dict[str, float]]:
        """Train, and return each epoch's metrics; those of all ranks must be equal."""
        outcomes = self.outcomes(of, *arguments)
        assert not any(outcome.error or outcome.code for outcome in outcomes), outcomes
        assert all(outcome.result == outcomes[0].result for outcome in outcomes)
        return list(outcomes[0].result)


@pytest.fixture(scope="module")
def ranks() -> Iterator[ProcessRanks]:
    with ProcessRanks("tests.trainers.strategies.suite_ranks") as server:
        yield server


@pytest.fixture(params=[*KINDS, *rarely(*MORE)])
def use(request: pytest.FixtureRequest, ranks: ProcessRanks) -> Iterator[Use]:
    before = shared_memory_files()
    yield Use(ranks, *USES[request.param])
    assert shared_memory_files() <= before


def some_of(whats: Iterable[Any]) -> list[Any]:
    """Return all pairs of a use and one of these; most are marked exhaustive."""
    return [
        pytest.param(use, what, marks=() if use not in MORE and (at - number) % 3 == 0 else pytest.mark.exhaustive)
        for number, use in enumerate(USES)
        for at, what in enumerate(whats)
    ]


def without_times(metrics: list[dict[str, float]]) -> list[dict[str, float]]:
    return [{name: value for name, value in epoch.items() if name != "data_wait"} for epoch in metrics]


def test_it_learns_what_can_be_learned(use):
    metrics = use.curve("plain", 8)
    assert metrics[-1]["accuracy"] > 0.9
    assert metrics[-1]["loss"] < metrics[0]["loss"]


def test_what_was_saved_continues(use, tmp_path):
    whole = use.curve("plain", 4)
    begun = use.curve("plain", 2, None, str(tmp_path / "state"))
    ended = use.curve("plain", 2, str(tmp_path / "state"))
    if use.capabilities.reproducible:
        assert without_times(begun + ended) == without_times(whole)
    else:
        assert ended[0]["loss"] < begun[0]["loss"]


def test_what_was_saved_is_what_was_validated_and_goes_on_alone(use, tmp_path):
    metrics = use.curve("plain", 3, None, str(tmp_path / "state"))
    alone = validates("plain", str(tmp_path / "state"))
    assert alone == pytest.approx({name: metrics[-1][name] for name in alone}, rel=1e-5)
    more = trains(None, {}, load=str(tmp_path / "state"))
    assert more[0]["loss"] < metrics[0]["loss"]
    if use.capabilities.exact:
        whole = trains(None, {}, epochs=5)
        assert [epoch["loss"] for epoch in metrics + more] == pytest.approx(
            [epoch["loss"] for epoch in whole], abs=1e-4
        )


def test_a_state_of_another_width_goes_on_or_is_refused(use, tmp_path):
    begun = use.curve("plain", 2, None, str(tmp_path / "state"))
    wider = dataclasses.replace(use, width=use.width + 1)
    outcomes = wider.outcomes("trains", "plain", 4, str(tmp_path / "state"))  # 2 were few for workers out of step
    if any(outcome.error for outcome in outcomes):
        assert {outcome.error for outcome in outcomes} == {"ConfigurationError"}
    else:
        assert all(outcome.result[-1]["loss"] < begun[0]["loss"] for outcome in outcomes)


def test_a_state_of_one_rank_goes_on(use, tmp_path):
    alone = trains(None, {}, epochs=4, save=str(tmp_path / "state"))
    more = use.curve("plain", 2, str(tmp_path / "state"))
    assert more[0]["loss"] < alone[0]["loss"]
    if use.capabilities.exact:
        ended = trains(None, {}, load=str(tmp_path / "state"))
        assert [epoch["loss"] for epoch in more] == pytest.approx([epoch["loss"] for epoch in ended], abs=1e-4)


@pytest.mark.some_cases(5)
@pytest.mark.parametrize(("use", "name"), some_of(ODD), indirect=["use"])
def test_what_it_may_not_have_thought_of(use, name, tmp_path):
    """It is trained, to the same metrics everywhere, and saved as validated; or all ranks refuse it and say why."""
    odd, saved = ODD[name], str(tmp_path / "state")
    if odd.what in use.capabilities.refuses:
        for outcome in use.outcomes("trains", name):
            assert outcome.error == "ConfigurationError"
            reason = (
                f"parallel.strategy {use.kind.name} can't be used with {odd.what}: {use.capabilities.refuses[odd.what]}"
            )
            assert outcome.text.startswith(reason)
        return
    metrics = use.curve(name, 3, None, saved)
    assert all(math.isfinite(value) for epoch in metrics for value in epoch.values())
    assert metrics[-1]["loss"] < metrics[0]["loss"]
    alone = validates(name, saved)
    assert alone == pytest.approx({name: metrics[-1][name] for name in alone}, rel=1e-4)
    if use.capabilities.exact and odd.alike:
        expected = [epoch["loss"] for epoch in trains(None, {}, name, 3)]
        assert [epoch["loss"] for epoch in metrics] == pytest.approx(expected, abs=odd.rounding)


@pytest.mark.parametrize("name", ["average", "batch_norm"])
def test_every_rank_validates_to_the_same(use, name):
    """Servers too."""
    if ODD[name].what in use.capabilities.refuses:
        return
    outcomes = use.outcomes("validates_again", name)
    assert not any(outcome.error or outcome.code for outcome in outcomes), outcomes
    for metrics, again in (outcome.result for outcome in outcomes):
        assert again == pytest.approx({name: metrics[name] for name in again}, rel=1e-5)


@pytest.mark.some_cases(3)
@pytest.mark.parametrize(
    ("use", "change"),
    some_of([*((how, False) for how in CHANGES), ("replaces the model", True), ("draws a layer anew", True)]),
    indirect=["use"],
)
def test_what_is_changed_between_two_epochs_is_trained(use, change):
    """Where each rank draws new weights of its own, rank 0's count."""
    how, drawn = change
    outcomes = use.outcomes("changes", how, drawn)
    assert not any(outcome.error or outcome.code for outcome in outcomes), outcomes
    assert all(outcome.result == outcomes[0].result for outcome in outcomes)
    metrics, _ = outcomes[0].result
    if use.capabilities.exact:
        expected = [epoch["loss"] for epoch in changes(None, {}, how, drawn)[0]]
        assert [epoch["loss"] for epoch in metrics] == pytest.approx(expected, abs=1e-4)
    assert metrics[-1]["loss"] < max(metrics[0]["loss"], metrics[2]["loss"])


IN_EPOCHS = "the optimizer of a Trainer must step in the epochs of Trainer.step alone"
BY_SUPER = "step must train for an epoch with super().step()"
BESIDE = {"a loop": IN_EPOCHS, "another optimizer": BY_SUPER, "mixed in": BY_SUPER, "a step more": IN_EPOCHS}
"""What is said of trainers whose step trains beside the strategy."""


@pytest.mark.parametrize("use", KINDS, indirect=True)
def test_a_step_of_a_users_own_trains_by_the_strategy_or_is_refused(use):
    """Under allreduce each rank may do what it likes, as long as it leaves the trainer's model alone."""
    outcomes = use.outcomes("own_steps", tuple(BESIDE))
    assert not any(outcome.error or outcome.code for outcome in outcomes), outcomes
    set_weight = "every rank must call set_weight"
    under_allreduce = {"a loop": set_weight, "another optimizer": set_weight, "mixed in": "", "a step more": ""}
    for outcome in outcomes:
        for (name, words), said in zip(BESIDE.items(), outcome.result, strict=True):
            assert (under_allreduce[name] if use.capabilities.own_loop else words) in said, name


@pytest.mark.parametrize("use", KINDS, indirect=True)
def test_a_step_of_a_users_own_may_be_around_an_epoch(use):
    outcomes = use.outcomes("around")
    assert not any(outcome.error or outcome.code for outcome in outcomes), outcomes
    metrics = outcomes[0].result
    assert [epoch["epochs"] for epoch in metrics] == [1, 1]
    if use.capabilities.reproducible:
        assert [epoch["loss"] for epoch in metrics] == [epoch["loss"] for epoch in use.curve()]


def test_a_rank_that_is_killed_ends_the_others(use):
    for victim in range(use.width):
        for rank, outcome in enumerate(use.outcomes("disturbed", "killed", victim)):
            if rank == victim:
                assert outcome.code == -signal.SIGKILL
            else:
                assert outcome.error == "PeerLost", (victim, outcome)


def test_what_a_rank_raises_ends_the_others(use):
    for victim in use.working():
        for rank, outcome in enumerate(use.outcomes("disturbed", "raises", victim)):
            assert outcome.error == ("ValueError" if rank == victim else "PeerLost"), (victim, outcome)


def test_a_slow_rank_changes_nothing(use):
    slow = use.curve("slow", use.working()[-1], of="disturbed")
    if use.capabilities.reproducible:
        assert without_times(slow) == without_times(use.curve("plain", 3))
    else:
        assert slow[-1]["loss"] < slow[0]["loss"]
