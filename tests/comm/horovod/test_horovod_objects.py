"""hpsearch_comm.horovod's parameters, optimizers' states and objects, as one rank has them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from hpsearch_comm.horovod import objects
from tests.comm.horovod.horovod_ranks import HorovodRanks


@pytest.fixture(scope="module")
def ranks() -> Iterator[HorovodRanks]:
    with HorovodRanks(3, "tests.comm.horovod.horovod_objects") as ranks:
        yield ranks


@pytest.mark.parametrize("how", ["state", "named", "unnamed"])
def test_parameters_become_the_roots(ranks, how):
    for same in ranks.call("parameters_of", how):
        assert same
        assert all(same)


@pytest.mark.parametrize(
    ("what", "kind", "words"),
    [
        ("number", "UsageError", "params must be tensors, got int under the name step"),
        ("numbers", "UsageError", "params must be tensors, got int: leave it out"),
        ("tensor", "UsageError", "got Tensor: pass model.state_dict()"),
        ("shapes", "HorovodInternalError", "the ranks disagree on broadcast.b: its shape"),
    ],
)
def test_parameters_that_differ_are_told_and_the_job_goes_on(ranks, what, kind, words):
    for name, text in ranks.call("refused_parameters", what):
        assert name == kind
        assert words in text


def test_an_interrupt_ends_the_wait_for_parameters(monkeypatch):
    waits = []

    def interrupted(handle: object) -> None:
        waits.append(handle)
        raise KeyboardInterrupt

    monkeypatch.setattr(objects, "broadcast_async_", lambda tensor, root, name: name)
    monkeypatch.setattr(objects, "synchronize", interrupted)
    with pytest.raises(KeyboardInterrupt):
        objects.broadcast_parameters({"a": torch.ones(1), "b": torch.ones(1)}, 0)
    assert waits == ["a"]


def test_objects_arrive_as_they_were(ranks):
    lengths = [[rank, 1000 * rank] for rank in range(3)]
    tensors = [[], [1.0], [2.0, 2.0]]
    assert ranks.call("objects") == [[["0", "of"], 1, [0, "x"], lengths, tensors]] * 3


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("broadcast", "pickle can write"),
        ("allgather", "pickle can write"),
        ("optimizer", "['param_groups'][0]['lock'] is a lock, which can't be broadcast"),
    ],
)
def test_an_object_that_cannot_travel_is_an_error_on_all_ranks(ranks, what, words):
    for text in ranks.call("unpicklable", what):
        assert text.startswith("UsageError: ")
        assert words in text


@pytest.mark.parametrize("kind", ["SGD", "Adam", "Adagrad"])
@pytest.mark.parametrize("steps", [[2, 2, 2], [2, 0, 1], [2, 0, 0]])
def test_an_optimizers_state_becomes_the_roots_however_far_each_is(ranks, kind, steps):
    assert ranks.call("optimizer_state", kind, steps) == [True] * 3


def test_an_optimizer_may_be_one_that_is_not_distributed(ranks):
    assert ranks.call("optimizer_state", "Adam", [3, 0, 1], False) == [True] * 3


def test_a_root_without_a_state_leaves_none(ranks):
    assert ranks.call("optimizer_state", "SGD", [0, 2, 1]) == [True] * 3


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("LBFGS", "torch.optim.LBFGS can't"),
        ("shapes", "rank 1 has parameter group 0, number 2 float32"),
    ],
)
def test_optimizers_that_cannot_have_one_state_are_refused(ranks, what, words):
    for text in ranks.call("refused_optimizers", what):
        assert words in text


def test_gradients_are_zero_behind_it_where_there_was_no_state(ranks):
    assert ranks.call("gradients_behind_it") == [[True, 0.0, 0.0, None]] * 3
