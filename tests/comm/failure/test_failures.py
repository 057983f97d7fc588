"""What becomes of a group when a rank dies, leaves, hangs or does something else: on real processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.comm.failure.deadly import OPERATIONS
from tests.comm.leftovers import shared_memory_files
from tests.comm.meeting import given_time
from tests.comm.process_ranks import Outcome, ProcessRanks

pytestmark = pytest.mark.some_cases(4)


@pytest.fixture(scope="module")
def ranks() -> Iterator[ProcessRanks]:
    with ProcessRanks("tests.comm.failure.deadly") as server:
        yield server


WAYS: dict[str, dict[str, Any]] = {
    "direct": {},
    "ring": {"algorithm": "ring"},
    "butterfly": {"algorithm": "butterfly"},
    "naive": {"algorithm": "naive"},
    "tcp-ring": {"transport": "tcp", "algorithm": "ring"},
    "tcp-butterfly": {"transport": "tcp", "algorithm": "butterfly"},
    "tcp-naive": {"transport": "tcp", "algorithm": "naive"},
    "hierarchical": {"algorithm": "hierarchical", "hosts": ["a", "a", "b"]},
}


def assert_lost(outcomes: list[Outcome], victim: int) -> None:
    for rank, outcome in enumerate(outcomes):
        if rank == victim:
            assert outcome.code == -signal.SIGKILL
        else:
            assert (outcome.error, outcome.rank) == ("PeerLost", victim), outcome


USUAL = ("direct", "tcp-ring", "hierarchical")
"""Ways that stand for the others where all pairs are too many."""


@pytest.mark.some_cases(2)
@pytest.mark.parametrize(
    ("way", "victim"),
    [(way, 2) for way in WAYS]
    + [pytest.param(way, 0, marks=[] if way in USUAL else pytest.mark.exhaustive) for way in WAYS],
)
def test_a_rank_killed_in_any_phase_of_an_allreduce_wakes_the_others(ranks, way, victim):
    for phase in range(100):
        outcomes = ranks.call(3, "killed_in", "allreduce", victim, phase, **WAYS[way])
        if outcomes[victim].result:
            break
        assert_lost(outcomes, victim)
    assert 1 <= phase < 99
    assert [outcome.result for outcome in outcomes] == [True] * 3


@pytest.mark.some_cases(3)
@pytest.mark.parametrize("name", [*OPERATIONS[1:], "zero_copy", "allreduce_async"])
@pytest.mark.parametrize("way", ["direct", "tcp-ring"])
def test_a_rank_killed_in_any_phase_of_an_operation_wakes_the_others(ranks, name, way):
    for phase in range(100):
        outcomes = ranks.call(3, "killed_in", name, 1, phase, **WAYS[way])
        if outcomes[1].result:
            break
        assert_lost(outcomes, 1)
    assert 1 <= phase < 99
    assert [outcome.result for outcome in outcomes] == [True] * 3


@pytest.mark.parametrize("way", ["direct", "tcp-ring", "hierarchical"])
def test_a_rank_killed_outside_of_operations_wakes_the_others(ranks, way):
    assert_lost(ranks.call(3, "killed_while_others_wait", 1, **WAYS[way]), 1)


@pytest.mark.parametrize("way", ["direct", "tcp-ring", "hierarchical"])
def test_a_child_that_a_killed_rank_leaves_behind_doesnt_hide_its_death(ranks, way, tmp_path):
    try:
        assert_lost(ranks.call(3, "killed_with_child", 1, str(tmp_path / "child"), timeout=10.0, **WAYS[way]), 1)
    finally:
        os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)


@pytest.mark.parametrize("way", ["direct", "tcp-ring"])
def test_children_that_leave_end_nothing_and_dont_make_their_parent_deaf(ranks, way):
    assert_lost(ranks.call(3, "killed_after_children", 1, **WAYS[way]), 1)


@pytest.mark.parametrize("way", ["direct", "tcp-ring", "hierarchical"])
def test_an_interrupted_operation_ends_the_group_with_the_rank_and_the_reason(ranks, way):
    outcomes = ranks.call(3, "interrupted", 1, **WAYS[way])
    assert (outcomes[1].error, outcomes[1].text) == ("Alarm", "late")
    for outcome in (outcomes[0], outcomes[2]):
        assert (outcome.error, outcome.rank) == ("PeerLost", 1), outcome
        assert "rank 1" in outcome.text
        assert "Alarm: late" in outcome.text


@pytest.mark.parametrize("way", ["direct", "tcp-ring"])
def test_an_interrupted_wait_leaves_the_operation_under_way(ranks, way, tmp_path):
    outcomes = ranks.call(2, "interrupted_wait", 1, str(tmp_path / "go"), **WAYS[way])
    assert [outcome.result for outcome in outcomes] == [[[2.0] * 5] * 2] * 2, outcomes


@pytest.mark.parametrize("way", ["direct", "tcp-ring"])
def test_an_interrupted_close_tells_the_others(ranks, way):
    outcomes = ranks.call(2, "interrupted_close", 1, **WAYS[way])
    assert outcomes[1].error == "Alarm"
    assert (outcomes[0].error, outcomes[0].rank) == ("PeerLost", 1)
    assert "Alarm: late" in outcomes[0].text


def test_a_signal_handler_that_closes_the_group_within_an_operation_is_told(ranks):
    outcomes = ranks.call(2, "closed_by_handler", 1)
    assert outcomes[1].error == "UsageError"
    for outcome in outcomes:
        assert "within one of its own operations" in outcome.text, outcome


def test_a_rank_that_raises_tells_the_others_why(ranks):
    outcomes = ranks.call(3, "raises", 2)
    assert outcomes[2].error == "ValueError"
    for outcome in outcomes[:2]:
        assert (outcome.error, outcome.rank) == ("PeerLost", 2)
        assert "ValueError: the batch is empty" in outcome.text


@pytest.mark.parametrize("way", ["direct", "tcp-ring"])
def test_a_rank_that_closes_the_group_too_early_is_named(ranks, way):
    outcomes = ranks.call(3, "leaves_early", 1, **WAYS[way])
    assert outcomes[1].error == ""
    for outcome in (outcomes[0], outcomes[2]):
        assert (outcome.error, outcome.rank) == ("PeerLost", 1)
        assert "closed the group" in outcome.text


@pytest.mark.parametrize("way", ["direct", "ring", "tcp-ring"])
def test_a_rank_that_hangs_is_named_with_the_operation(ranks, way, tmp_path):
    def meet(soon: float) -> tuple[list[Outcome], str]:
        go = f"go-{soon}"
        return ranks.call(3, "stuck", 1, str(tmp_path / go), timeout=soon, **WAYS[way]), go

    # Ranks that take too long to begin give up in the barrier before it.
    outcomes, go = given_time(meet, lambda found: "allreduce" in found[0][0].text)
    assert {outcome.error for outcome in outcomes} == {"CommTimeoutError"}
    text = outcomes[0].text
    assert "without any progress" in text
    assert "allreduce" in text
    assert "mean of float32 [5], 20 bytes" in text
    assert all((tmp_path / f"{go}-{rank}").exists() for rank in (0, 2))


def test_a_process_that_is_stopped_for_longer_than_a_host_may_be_silent_is_waited_for(ranks):
    # On a busy machine the kernel itself may answer a second late.
    outcomes = ranks.call(3, "stopped", 1, 7.5, heartbeat_timeout=5.0, **WAYS["hierarchical"])
    assert [outcome.result for outcome in outcomes] == [[3.0] * 3] * 3, outcomes


@pytest.mark.parametrize("way", ["direct", "tcp-ring", "hierarchical"])
def test_a_process_that_stays_stopped_is_given_up_after_the_timeout(ranks, way):
    def meet(soon: float) -> list[Outcome]:
        found: list[Outcome] = ranks.call(
            3, "stopped_for_good", 1, timeout=soon, heartbeat_timeout=soon / 2, **WAYS[way]
        )
        return found

    # Ranks that take too long to begin give up before.
    outcomes = given_time(meet, lambda found: "in allreduce" in found[0].text)
    for outcome in (outcomes[0], outcomes[2]):
        assert outcome.error == "CommTimeoutError", outcome
        assert "in allreduce" in outcome.text


@pytest.mark.parametrize(
    ("way", "how"),
    [
        pytest.param(way, how, marks=[] if way == "direct" or how in ("shape", "order") else pytest.mark.exhaustive)
        for way in USUAL
        for how in ("shape", "dtype", "op", "order", "operation", "root", "way")
    ],
)
def test_ranks_that_disagree_each_see_both_sides(ranks, how, way):
    outcomes = ranks.call(3, "disagrees", 1, how, timeout=20.0, **WAYS[way])
    for outcome in outcomes:
        assert outcome.error == "MismatchError", outcome
        assert "the ranks disagree: rank" in outcome.text
        assert outcome.text.count(" calls ") == 2
        assert "rank 1 calls" in outcome.text


def test_nothing_is_left_of_killed_groups(ranks):
    before = shared_memory_files()
    for way in WAYS.values():
        assert_lost(ranks.call(3, "killed_while_others_wait", 0, **way), 0)
    assert shared_memory_files() <= before


@pytest.mark.some_cases(4)
@pytest.mark.parametrize("role", ["sends", "receives", "receives a part", "receives from any"])
@pytest.mark.parametrize("options", [{}, {"transport": "tcp"}, {"hosts": ["a", "b", "a"]}], ids=["shm", "tcp", "hosts"])
def test_a_rank_killed_among_messages_wakes_the_others(ranks, role, options):
    files = shared_memory_files()
    assert_lost(ranks.call(3, "killed_among_messages", role, **options), 2)
    assert shared_memory_files() <= files
