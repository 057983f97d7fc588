"""Batch normalization over the rows of all ranks is that of one rank with all rows."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn

from hpsearch_comm import Group, UsageError
from hpsearch_comm.data_parallel import DataParallel, SyncBatchNorm, convert_sync_batchnorm
from tests.comm.thread_ranks import run_ranks

CHANNELS = 3


def make_layer(kind: Any = nn.BatchNorm1d, **arguments: Any) -> Any:
    layer = kind(CHANNELS, **arguments)
    generator = torch.Generator().manual_seed(3)
    for tensor in (*layer.parameters(), *layer.buffers()):
        if tensor.is_floating_point():
            tensor.detach().copy_(torch.rand(tensor.shape, generator=generator) + 0.5)
    return layer


def shards_of(counts: list[int], shape: tuple[int, ...], dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(sum(counts))
    whole = 100 + torch.randn(sum(counts), CHANNELS, *shape, generator=generator, dtype=torch.float64)
    return list(torch.split(whole.to(dtype), counts))


def passes(layer: nn.Module, shards: list[torch.Tensor]) -> list[torch.Tensor]:
    """Run three forward and backward passes with the rows of `shards`; return all that comes out."""
    out = []
    for number in range(3):
        inputs = [(shard * (number + 1)).requires_grad_() for shard in shards]
        outputs = layer(torch.cat(inputs) if len(inputs) > 1 else inputs[0])
        # Weights for each element, so that the sums over g and over g x̂ aren't zero.
        (outputs * torch.sin(outputs)).sum().backward()
        out += [outputs.detach(), torch.cat([values.grad for values in inputs if values.grad is not None])]
    return out


KINDS: dict[str, tuple[list[int], dict[str, Any]]] = {
    "unequal": ([2, 5], {}),
    "three ranks": ([4, 1, 2], {}),
    "a rank without rows": ([0, 3], {}),
    "the last rank without rows": ([3, 1, 0], {}),
    "without momentum": ([3, 2], {"momentum": None}),
    "not affine": ([3, 2], {"affine": False}),
    "without running statistics": ([3, 2], {"track_running_stats": False}),
    "large epsilon": ([3, 2], {"eps": 0.3}),
    "one rank": ([5], {}),
}


@pytest.mark.some_cases(6)
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(
    ("kind", "shape"),
    [(nn.BatchNorm1d, ()), (nn.BatchNorm1d, (5,)), (nn.BatchNorm2d, (2, 3)), (nn.BatchNorm3d, (1, 2, 3))],
    ids=["rows", "1d", "2d", "3d"],
)
def test_outputs_gradients_and_statistics_are_those_of_the_whole_batch(name, kind, shape):
    counts, arguments = KINDS[name]
    shards = shards_of(counts, shape, torch.float64)
    expected = make_layer(kind, **arguments).double()
    whole = passes(expected, shards)

    def work(group):
        layer: Any = convert_sync_batchnorm(make_layer(kind, **arguments).double(), group)
        assert isinstance(layer, SyncBatchNorm)
        return passes(layer, [shards[group.rank]]), layer

    results = run_ranks(len(counts), work)
    for place, theirs in enumerate(whole):
        torch.testing.assert_close(torch.cat([outputs[place] for outputs, _ in results]), theirs)
    for name, theirs in expected.state_dict().items():
        for _, layer in results:
            torch.testing.assert_close(layer.state_dict()[name], theirs)
    for name, parameter in expected.named_parameters():
        # Each rank has its own rows' part.
        torch.testing.assert_close(sum(layer.get_parameter(name).grad for _, layer in results), parameter.grad)
    assert [key for key, _ in results[0][1].named_buffers()] == [key for key, _ in expected.named_buffers()]


def test_gradients_agree_with_finite_differences():
    def work(group):
        layer: Any = convert_sync_batchnorm(make_layer().double(), group)
        shard = shards_of([3, 3], (2,), torch.float64)[group.rank] - 100

        def loss(values: Any, weight: Any, bias: Any) -> Any:
            named = {"weight": weight, "bias": bias}
            outputs = torch.func.functional_call(layer, named, (values,))
            return (outputs * torch.sin(outputs) * (group.rank + 1)).sum()

        inputs = [shard, layer.weight.detach().clone(), layer.bias.detach().clone()]
        for tensor in inputs:
            tensor.requires_grad_()
        loss(*inputs).backward()
        # An input of one rank moves the loss of all.
        slopes = torch.zeros_like(shard)
        for rank in range(group.size):
            for place in range(shard.numel()):
                change = torch.zeros_like(shard)
                if rank == group.rank:
                    change.view(-1)[place] = 1e-6
                with torch.no_grad():
                    both = torch.stack([loss(shard + sign * change, *inputs[1:]) for sign in (1, -1)])
                group.allreduce(both, op="sum")
                if rank == group.rank:
                    slopes.view(-1)[place] = (both[0] - both[1]) / 2e-6
        assert inputs[0].grad is not None
        return torch.allclose(inputs[0].grad, slopes, rtol=1e-6, atol=1e-6)

    assert run_ranks(2, work) == [True, True]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_short_inputs_are_normalized_as_exactly_as_their_dtype_allows(dtype):
    shards = [shard - 90 for shard in shards_of([3, 2], (4, 4), dtype)]
    exact = make_layer(nn.BatchNorm2d).double()
    whole = passes(exact, [shard.double() for shard in shards])

    def work(group):
        layer: Any = convert_sync_batchnorm(make_layer(nn.BatchNorm2d), group)
        return passes(layer, [shards[group.rank].to(memory_format=torch.channels_last)])

    results = run_ranks(2, work)
    tolerance = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}[dtype]
    for place, theirs in enumerate(whole):
        ours = torch.cat([outputs[place] for outputs in results])
        assert ours.dtype is dtype
        torch.testing.assert_close(ours.double(), theirs, rtol=tolerance, atol=tolerance)


def test_means_far_from_zero_lose_no_digits():
    values = [torch.tensor([[1e4], [1e4 + 1]]), torch.tensor([[1e4 + 2], [1e4 + 3]])]

    def work(group):
        layer = SyncBatchNorm(1, group, eps=0.0, affine=False)
        layer(values[group.rank])
        assert layer.running_var is not None
        return layer.running_var

    for seen in run_ranks(2, work):
        torch.testing.assert_close(seen, torch.tensor([0.9 + 0.1 * 5 / 3]))


def test_in_evaluation_it_is_the_ordinary_one_and_exchanges_nothing():
    def work(group):
        ordinary = make_layer()
        layer: Any = convert_sync_batchnorm(copy.deepcopy(ordinary), group).eval()
        inputs = torch.randn(2 + group.rank, CHANNELS)
        calls_differ = all(torch.equal(layer(inputs), ordinary.eval()(inputs)) for _ in range(group.rank + 1))
        untracked = make_layer(track_running_stats=False)
        other: Any = convert_sync_batchnorm(copy.deepcopy(untracked), group).eval()
        return calls_differ and torch.equal(other(inputs), untracked.eval()(inputs))

    assert run_ranks(2, work) == [True, True]


def test_training_a_model_with_it_matches_one_rank_with_the_global_batch():
    generator = torch.Generator().manual_seed(5)
    rows = torch.randn(7, 4, generator=generator).double()
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 5), nn.BatchNorm1d(5)).double()

    def train(model: nn.Module, wrapped: nn.Module, rows: torch.Tensor) -> list[torch.Tensor]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        for _ in range(20):
            optimizer.zero_grad()
            if isinstance(wrapped, DataParallel):
                wrapped.set_weight(len(rows))
            (wrapped(rows) * torch.arange(5)).sin().sum(1).mean().backward()
            optimizer.step()
        return [tensor.detach().clone() for tensor in model.state_dict().values()]

    def work(group):
        ours = convert_sync_batchnorm(copy.deepcopy(model), group)
        shard = torch.split(rows, [4, 0, 3])[group.rank]
        return train(ours, DataParallel(ours, group, weighted=True), shard)

    expected = train(alone := copy.deepcopy(model), alone, rows)
    results = run_ranks(3, work)
    for seen in results:
        for mine, same, theirs in zip(seen, results[0], expected, strict=True):
            assert torch.equal(mine, same)
            torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)


def test_a_weight_must_be_known_before_statistics_are_exchanged_backwards():
    def work(group):
        model: Any = convert_sync_batchnorm(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), group)
        wrapped = DataParallel(model, group, weighted=True)
        with wrapped.no_sync(), pytest.raises(UsageError, match="must be called before the first of the backward"):
            wrapped(torch.randn(3, 2)).sum().backward()
        wrapped.set_weight(2)
        with wrapped.no_sync():
            wrapped(torch.randn(3, 2)).sum().backward()
        wrapped(torch.randn(3, 2)).sum().backward()

    run_ranks(2, work)


def test_a_model_can_be_copied():
    with Group(0, 1) as group:
        model: Any = convert_sync_batchnorm(nn.Sequential(nn.BatchNorm1d(2)), group)
        twin: Any = copy.deepcopy(model)
        assert twin[0].group is model[0].group
        assert twin[0].weight is not model[0].weight
        model[0].group.close()


def test_conversion_keeps_parameters_modes_and_layers_that_are_used_twice():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first: Any = nn.BatchNorm2d(4, eps=0.5, momentum=None)
            self.second: Any = self.first
            self.inner: Any = nn.Sequential(nn.ReLU(), nn.BatchNorm1d(2, affine=False).eval())
            self.nothing = None

    with Group(0, 1) as group:
        model: Any = Twice()
        weight, inner, keys = model.first.weight, model.inner, list(model.state_dict())
        model.first.weight.requires_grad_(False)
        assert convert_sync_batchnorm(model, group) is model
        assert isinstance(model.first, SyncBatchNorm)
        assert model.first is model.second
        assert model.first.weight is weight
        assert (model.first.eps, model.first.momentum, model.first.training) == (0.5, None, True)
        assert (inner[1].training, inner[1].weight) == (False, None)
        assert model.first.group is inner[1].group
        assert model.first.group is not group
        assert list(model.state_dict()) == keys
        model.first.group.close()


def test_conversion_keeps_hooks():
    with Group(0, 1) as group:
        layer: Any = nn.BatchNorm1d(2)
        called = []
        layer.register_forward_hook(lambda *_: called.append("after"))
        convert_sync_batchnorm(layer, group)
        layer(torch.randn(3, 2))
        assert called == ["after"]
        layer.group.close()


def test_a_batch_normalization_that_does_more_can_not_be_converted():
    class Rectified(nn.BatchNorm1d):
        def forward(self, input):
            return torch.relu(super().forward(input))

    with Group(0, 1) as group, pytest.raises(UsageError, match=r"^1 is a Rectified with a forward\(\) of its own"):
        convert_sync_batchnorm(nn.Sequential(nn.BatchNorm1d(2), Rectified(2)), group)


def test_what_torch_synchronises_can_be_converted_and_converted_again():
    with Group(0, 1) as group:
        model: Any = nn.Sequential(nn.SyncBatchNorm(1))
        groups = []
        for _ in range(2):
            convert_sync_batchnorm(model, group)
            groups.append(model[0].group)
        assert groups[0] is not groups[1]
        torch.testing.assert_close(model(torch.tensor([[1.0], [3.0]])), torch.tensor([[-1.0], [1.0]]))
        for each in groups:
            each.close()


def test_a_compiled_model_exchanges_statistics_as_an_ordinary_one():
    def work(group):
        seen = []
        for compiled in (False, True):
            layer: Any = make_layer()
            model: Any = convert_sync_batchnorm(layer, group)
            if compiled:
                model = torch.compile(model, backend="eager")
            seen.append(passes(model, [shards_of([2, 3], (), torch.float32)[group.rank]]))
        return seen

    for plain, compiled in run_ranks(2, work):
        for theirs, ours in zip(plain, compiled, strict=True):
            torch.testing.assert_close(ours, theirs)


def test_a_model_can_not_be_pickled():
    with Group(0, 1) as group:
        model: Any = convert_sync_batchnorm(nn.Sequential(nn.BatchNorm1d(2)), group)
        with pytest.raises(UsageError, match="a model with a SyncBatchNorm can't be pickled"):
            pickle.dumps(model)
        model[0].group.close()


def test_a_module_without_batch_normalization_stays_as_it_is():
    with Group(0, 1) as group:
        model = nn.Linear(1, 1)
        assert convert_sync_batchnorm(model, group) is model


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
def test_a_lazy_layer_can_not_be_converted():
    with Group(0, 1) as group, pytest.raises(UsageError, match=r"^0 is lazy and has no shape yet"):
        convert_sync_batchnorm(nn.Sequential(nn.LazyBatchNorm1d()), group)


@pytest.mark.parametrize("shape", [(3,), (2, 4), (2, 4, 3)])
def test_inputs_of_other_shapes_are_errors(shape):
    with Group(0, 1) as group, pytest.raises(UsageError, match=r"must have the shape \(rows, 3, ...\), got"):
        SyncBatchNorm(3, group)(torch.ones(shape))


def test_too_few_values_on_all_ranks_together_are_an_error_on_each():
    def work(group):
        layer = SyncBatchNorm(2, group)
        for rows in (group.rank, 0):
            with pytest.raises(
                UsageError, match=f"all ranks together have {1 if rows or not group.rank else 0}|have 0"
            ):
                layer(torch.ones(rows, 2))
        layer(torch.ones(1, 2))

    run_ranks(2, work)
