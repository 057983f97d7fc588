"""Every row once in an epoch, whatever the width."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hpsearch_comm.errors import ConfigurationError
from hpsearch_trainers.shards import Shard, epoch_order, rows_of_rank


@st.composite
def shapes(draw):
    """Draw a number of rows, a global batch, a width, a seed and an epoch."""
    width = draw(st.integers(1, 9))
    return (
        draw(st.integers(1, 200)),
        draw(st.integers(width, 64)),
        width,
        draw(st.integers(-5, 2**63)),
        draw(st.integers(0, 9)),
    )


def parts(rows: int, batch: int, seed: int, epoch: int, width: int, start: int = 0) -> list[list[torch.Tensor]]:
    """Return the rows of each rank in each step."""
    return [list(Shard(rows, batch, seed, rank, width).epoch(epoch, start)) for rank in range(width)]


@given(shapes())
def test_no_row_comes_twice_and_none_is_left_out(shape):
    rows, batch, width, seed, epoch = shape
    everything = torch.cat([part for rank in parts(rows, batch, seed, epoch, width) for part in rank])
    assert sorted(everything.tolist()) == list(range(rows))


@given(shapes())
def test_a_global_batch_holds_the_same_rows_in_the_same_order_at_any_width(shape):
    rows, batch, width, seed, epoch = shape
    alone = parts(rows, batch, seed, epoch, 1)[0]
    together = [torch.cat(step) for step in zip(*parts(rows, batch, seed, epoch, width), strict=True)]
    assert len(together) == Shard(rows, batch, seed).steps
    assert all(torch.equal(one, other) for one, other in zip(alone, together, strict=True))
    assert [len(step) for step in alone] == [Shard(rows, batch, seed).rows_of(step) for step in range(len(alone))]


@given(shapes())
def test_all_parts_are_those_of_each_rank_in_turn(shape):
    rows, batch, width, seed, epoch = shape
    expected = [
        (step, part.tolist())
        for step, of_ranks in enumerate(zip(*parts(rows, batch, seed, epoch, width), strict=True))
        for part in of_ranks
        if len(part)
    ]
    found = Shard(rows, batch, seed, 0, width).all_parts(epoch)
    assert [(step, part.tolist()) for step, part in found] == expected


@given(shapes())
def test_parts_differ_by_one_row_at_most(shape):
    rows, batch, width, seed, epoch = shape
    for step in zip(*parts(rows, batch, seed, epoch, width), strict=True):
        counts = [len(part) for part in step]
        assert max(counts) - min(counts) <= 1
        assert counts == sorted(counts, reverse=True)


@given(shapes(), st.integers(0, 10), st.integers(1, 9))
def test_an_epoch_is_gone_on_with_at_another_width(shape, start, other):
    rows, batch, width, seed, epoch = shape
    batch = max(batch, other)
    whole = [torch.cat(step) for step in zip(*parts(rows, batch, seed, epoch, width), strict=True)]
    rest = [torch.cat(step) for step in zip(*parts(rows, batch, seed, epoch, other, start), strict=True)]
    assert [step.tolist() for step in rest] == [step.tolist() for step in whole[start:]]


def test_epochs_and_seeds_have_orders_of_their_own():
    orders = {tuple(epoch_order(seed, epoch, 50).tolist()) for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25
    assert torch.equal(epoch_order(3, 7, 50), epoch_order(3, 7, 50))


def test_the_first_rows_of_neighbouring_orders_are_not_alike():
    """Seeds in a row give independent orders: each row comes first about equally often."""
    firsts = torch.tensor([epoch_order(0, epoch, 4)[0] for epoch in range(2000)]).bincount(minlength=4)
    assert firsts.min() > 400


@given(st.integers(0, 300), st.integers(1, 20))
def test_validation_is_divided_without_a_rest(rows, width):
    ranges = [rows_of_rank(rows, width, rank) for rank in range(width)]
    assert [row for part in ranges for row in part] == list(range(rows))
    assert max(map(len, ranges)) - min(map(len, ranges)) <= 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"rows": 0, "batch": 4}, "at least one row, got 0"),
        ({"rows": 9, "batch": 3, "width": 4}, "got batch 3, width 4"),
        ({"rows": 9, "batch": 3, "width": 2, "rank": 2}, "rank 2"),
    ],
)
def test_what_can_not_be_divided(arguments, words):
    with pytest.raises(ConfigurationError, match=words):
        Shard(seed=0, **arguments)
