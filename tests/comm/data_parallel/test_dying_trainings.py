"""Training on real processes: what becomes of it when a rank is killed."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Iterator

import pytest

from tests.comm.data_parallel.branching_model import Training
from tests.comm.process_ranks import Outcome, ProcessRanks


@pytest.fixture(scope="module")
def ranks() -> Iterator[ProcessRanks]:
    with ProcessRanks("tests.comm.data_parallel.dying_trainings") as server:
        yield server


def assert_lost(outcomes: list[Outcome], victim: int) -> None:
    for rank, outcome in enumerate(outcomes):
        if rank == victim:
            assert outcome.code == -signal.SIGKILL
        else:
            assert (outcome.error, outcome.rank) == ("PeerLost", victim), outcome


def test_processes_train_as_threads_do(ranks):
    first, second = ranks.call(2, "trains")
    assert first.result == second.result
    expected = Training((5, 2), branches=True, parts=2, optimizer="adam", steps=20).on_one_rank()
    for ours, theirs in zip(first.result, expected, strict=True):
        for mine, other in zip(_flat(ours), theirs.flatten().tolist(), strict=True):
            assert mine == pytest.approx(other, rel=1e-9, abs=1e-12)


def _flat(values: list[object]) -> list[object]:
    return [item for value in values for item in (_flat(value) if isinstance(value, list) else [value])]


@pytest.mark.parametrize(
    ("weighted", "overlap", "step"),
    [  # half of all, with every pair of two
        pytest.param(*case, marks=pytest.mark.exhaustive if (sum(case[:2]) + case[2] // 2) % 2 else [])
        for case in itertools.product([False, True], [False, True], [0, 2])
    ],
)
def test_a_rank_killed_in_a_backward_pass_ends_that_of_the_others(ranks, step, overlap, weighted):
    assert_lost(ranks.call(3, "killed_in_backward", 1, step, overlap, weighted), 1)


def test_a_rank_killed_while_others_only_take_part_ends_their_join(ranks):
    assert_lost(ranks.call(3, "killed_within_join", 2), 2)
