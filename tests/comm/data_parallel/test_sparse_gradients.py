from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from hpsearch_comm.data_parallel import DataParallel
from tests.comm.thread_ranks import run_ranks

ROWS = 7


class Words(nn.Module):
    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.words = nn.Embedding(ROWS, 3, sparse=True, dtype=dtype)
        self.unused = nn.Embedding(ROWS, 3, sparse=True, dtype=dtype)
        self.head = nn.Linear(3, 1, dtype=dtype)
        with torch.no_grad():
            for number, parameter in enumerate(self.parameters()):
                parameter.copy_(torch.arange(parameter.numel()).view_as(parameter) / 10 + number)

    def forward(self, indices: torch.Tensor) -> Any:
        if not len(indices):
            return self.head(torch.ones(3, dtype=self.head.weight.dtype)).sum() * 0
        return self.head(self.words(indices)).square().sum()


BATCHES = {
    "the same rows": [[1, 2], [1, 2]],
    "other rows, and unequally many": [[0], [6, 2, 1]],
    "rows that occur twice": [[1, 1, 4], [4, 4, 1, 1]],
    "a rank without any": [[5, 3, 5], []],
    "the first rank without any": [[], [3]],
    "three ranks": [[1], [1, 6], [0, 0]],
}


@pytest.mark.parametrize("name", BATCHES)
def test_sparse_gradients_are_averaged_as_sparse_ones(name):
    batches = [torch.tensor(rows, dtype=torch.int64) for rows in BATCHES[name]]

    def work(group):
        model: Any = Words()
        wrapped: Any = DataParallel(model, group)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
        for _ in range(5):
            optimizer.zero_grad()
            wrapped(batches[group.rank]).backward()
            optimizer.step()
        gradient = model.words.weight.grad
        assert gradient is not None
        assert gradient.is_sparse
        assert gradient.is_coalesced()
        assert len(gradient.values()) == len({row for rows in BATCHES[name] for row in rows})
        assert model.unused.weight.grad is None
        return [gradient.to_dense(), *(parameter.detach() for parameter in model.parameters())]

    model: Any = Words()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for _ in range(5):
        optimizer.zero_grad()
        torch.autograd.backward(torch.stack([model(batch) for batch in batches]).mean())
        optimizer.step()
    assert model.words.weight.grad is not None
    expected = [model.words.weight.grad.to_dense(), *(parameter.detach() for parameter in model.parameters())]
    results = run_ranks(len(batches), work)
    for seen in results:
        for mine, same, theirs in zip(seen, results[0], expected, strict=True):
            assert torch.equal(mine, same)
            torch.testing.assert_close(mine, theirs)


def test_sparse_gradients_accumulate():
    def work(group):
        model: Any = nn.Embedding(ROWS, 1, sparse=True)
        wrapped: Any = DataParallel(model, group)
        with wrapped.no_sync():
            wrapped(torch.tensor([group.rank, 5])).sum().backward()
        for _ in range(2):
            wrapped(torch.tensor([group.rank])).sum().backward()
        assert model.weight.grad is not None
        return model.weight.grad.to_dense().flatten()

    for seen in run_ranks(2, work):
        # Rank r has had (1 + 1) at r and 1 at 5; after their mean, 1 more at r.
        torch.testing.assert_close(seen, torch.tensor([1.5, 1.5, 0, 0, 0, 1, 0]))


def test_a_gradient_that_is_dense_on_one_rank_and_sparse_on_another_is_averaged():
    def work(group):
        model: Any = nn.Embedding(ROWS, 2, sparse=True)
        wrapped: Any = DataParallel(model, group)
        for _ in range(2):
            wrapped.zero_grad()
            if group.rank:
                wrapped(torch.tensor([3])).sum().backward()
            else:
                model.weight[2].sum().backward()
        assert model.weight.grad is not None
        return model.weight.grad.to_dense()[:, 0]

    for seen in run_ranks(2, work):
        torch.testing.assert_close(seen, torch.tensor([0, 0, 0.5, 0.5, 0, 0, 0]))


def test_a_gradient_that_is_sparse_only_later_is_averaged_in_its_bucket():
    def work(group):
        model: Any = nn.Embedding(ROWS, 2, sparse=True)
        wrapped: Any = DataParallel(model, group)
        model.weight.sum().backward()
        wrapped.zero_grad()
        wrapped(torch.tensor([group.rank])).sum().backward()
        assert model.weight.grad is not None
        return model.weight.grad[:, 0]

    for seen in run_ranks(2, work):
        torch.testing.assert_close(seen, torch.tensor([0.5, 0.5, 0, 0, 0, 0, 0]))


def test_short_sparse_gradients_are_added_up_in_float32():
    def work(group):
        model: Any = nn.Embedding(ROWS, 1, sparse=True, dtype=torch.bfloat16)
        wrapped: Any = DataParallel(model, group)
        (wrapped(torch.tensor([2])).sum() * (256.0 if group.rank == 0 else 1.0)).backward()
        assert model.weight.grad is not None
        assert model.weight.grad.dtype is torch.bfloat16
        return model.weight.grad.to_dense()[2]

    # In bfloat16, 256 + 1 + 1 is 256.
    for seen in run_ranks(3, work):
        assert seen.item() == torch.tensor(258 / 3).bfloat16().item()


def test_weights_count_for_sparse_gradients_too():
    def work(group):
        model: Any = nn.Embedding(ROWS, 1, sparse=True)
        wrapped: Any = DataParallel(model, group, weighted=True)
        for weights in ((3, 1), (0, 2), (3, 1)):
            wrapped.zero_grad()
            wrapped.set_weight(weights[group.rank])
            (wrapped(torch.tensor([group.rank])).sum() * (float("nan") if weights[group.rank] == 0 else 1)).backward()
            assert model.weight.grad is not None
            assert model.weight.grad.to_dense()[1] == weights[1] / sum(weights)
        return model.weight.grad.to_dense().flatten()

    for seen in run_ranks(2, work):
        torch.testing.assert_close(seen, torch.tensor([0.75, 0.25, 0, 0, 0, 0, 0]))
