"""A rank that is slow, or that isn't there for a while, is waited for, whether it trains or serves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.comm.leftovers import shared_memory_files
from tests.comm.process_ranks import Outcome, ProcessRanks
from tests.trainers.strategies.test_strategy_conformance import USES, Use

pytestmark = pytest.mark.exhaustive

SERVED = ["parameter_server", "downpour"]

HEARTBEAT = 5.0
"""Seconds for which another host may answer nothing. On a busy machine the kernel itself may answer a second late."""


@pytest.fixture(scope="module")
def ranks() -> Iterator[ProcessRanks]:
    with ProcessRanks("tests.trainers.strategies.slow_ranks") as server:
        yield server


@pytest.fixture(params=list(USES))
def use(request: pytest.FixtureRequest, ranks: ProcessRanks) -> Iterator[Use]:
    before = shared_memory_files()
    yield Use(ranks, *USES[request.param])
    assert shared_memory_files() <= before


def serves(use: Use, rank: int) -> bool:
    """Say whether a rank holds weights for the others."""
    return use.kind.name in SERVED and rank >= use.width - use.parallel.get("servers", 1)


def is_reproducible(use: Use) -> bool:
    """Say whether two trainings give the same bits; one worker's do under downpour, too."""
    return use.capabilities.reproducible or (use.kind.name == "downpour" and use.width == 2)


def check(use: Use, outcomes: list[Outcome], hosts: list[str] | None = None) -> None:
    """See that the training is as without what happened among these hosts, which decide in which order ranks add."""
    assert not any(outcome.error or outcome.code for outcome in outcomes), outcomes
    metrics = outcomes[0].result
    assert all(outcome.result == metrics for outcome in outcomes)
    if is_reproducible(use):
        undisturbed = use.ranks.call(use.width, "undisturbed", use.parallel, hosts=hosts, timeout=60.0)
        assert metrics == undisturbed[0].result
    else:
        assert metrics[-1]["loss"] < metrics[0]["loss"]


def test_a_rank_that_gets_a_tenth_of_its_time_changes_nothing(use):
    for victim in range(use.width):
        check(use, use.outcomes("dragged", victim))


@pytest.mark.parametrize("use", ["allreduce", "parameter_server", "tensor of four"], indirect=True)
def test_a_rank_that_is_stopped_for_longer_than_the_heartbeat_changes_nothing(use):
    """Its host answers all the same."""
    hosts = [f"host-{rank}" for rank in range(use.width)]
    for victim in (0, use.width - 1):
        words = ("paused", use.parallel, victim, 0 if serves(use, victim) else victim, 1.5 * HEARTBEAT)
        outcomes = use.ranks.call(use.width, *words, hosts=hosts, heartbeat_timeout=HEARTBEAT, timeout=60.0)
        check(use, outcomes, hosts)


def test_a_rank_that_is_stopped_for_longer_than_the_timeout_ends_all(use):
    for victim in range(use.width):
        words = ("paused", use.parallel, victim, 0 if serves(use, victim) else victim, None)
        outcomes = use.ranks.call(use.width, *words, timeout=2.0)
        others = outcomes[:victim] + outcomes[victim + 1 :]
        assert {outcome.error for outcome in others} == {"CommTimeoutError"}, (victim, outcomes)
        assert outcomes[victim].error, victim
