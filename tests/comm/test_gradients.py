"""What `backward()` leaves in `parameter.grad`, for models and backward passes out of the ordinary."""

from __future__ import annotations

import gc
import itertools
import threading
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from hpsearch_comm import CommError, Group, UsageError
from hpsearch_comm.gradients import DataParallel, DistributedOptimizer
from hpsearch_comm.gradients.overlap import pays_to_overlap
from hpsearch_comm.gradients.reducer import GradientReducer
from tests.comm.thread_ranks import run_ranks

Gradients = list[torch.Tensor | None]


_seeding = threading.Lock()


def seeded(build: Callable[[], Any]) -> Any:
    """Build a module with the same weights each time; ranks are threads, which share torch's generator."""
    with _seeding, torch.random.fork_rng():
        torch.manual_seed(0)
        return build()


def gradients(module: nn.Module) -> Gradients:
    return [None if p.grad is None else p.grad.detach().clone() for p in module.parameters()]


def assert_close(ours: Gradients, theirs: Gradients, **tolerance: Any) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        if mine is None or other is None:
            assert mine is other
        else:
            torch.testing.assert_close(mine, other, **tolerance)


def compare(make: Callable[[], nn.Module], loss: Callable[..., Any], size: int = 2, **tolerance: Any) -> None:
    """Check three steps' gradients, averaged in each way, against the mean of the ranks' losses on one rank."""
    alone = seeded(make)
    torch.autograd.backward(sum(loss(alone, rank) / size for rank in range(size)))
    expected = gradients(alone)
    for overlap, large in ((False, None), (True, None), (True, 1)):

        def work(group: Group, overlap: bool = overlap) -> list[Gradients]:
            model = seeded(make)
            wrapped = DataParallel(model, group, overlap=overlap)
            seen = []
            for _ in range(3):
                wrapped.zero_grad()
                loss(wrapped, group.rank).backward()
                seen.append(gradients(model))
            return seen

        with pytest.MonkeyPatch.context() as patch:
            if large is not None:
                patch.setattr("hpsearch_comm.gradients.reducer.LARGE", large)
            for seen in run_ranks(size, work):
                for step in seen:
                    assert_close(step, expected, **tolerance)


def inputs_of(rank: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(rank)).to(dtype)


def test_dtypes_are_reduced_in_buckets_of_their_own():
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(
                nn.Linear(4, 4, dtype=dtype)
                for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.float32)
            )

        def forward(self, values):
            for layer in self.layers:
                values = torch.tanh(layer(values.to(layer.weight.dtype)))
            return values

    compare(Mixed, lambda model, rank: model(inputs_of(rank, 3, 4)).sum(), rtol=2e-2, atol=2e-2)


def test_complex_parameters_are_averaged():
    class Complex(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3, dtype=torch.complex64))

        def forward(self, values):
            return (self.weight * values).abs().square().sum()

    compare(Complex, lambda model, rank: model(inputs_of(rank, 3) + 1j))


def test_a_parameter_without_elements_does_no_harm():
    compare(Empty, lambda model, _rank: model(torch.ones(2)).sum())


class Empty(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.nothing = nn.Parameter(torch.empty(0, 3))
        self.scale = nn.Parameter(torch.ones(2))

    def forward(self, values):
        return values * self.scale + self.nothing.sum()


def test_gradients_keep_the_strides_of_channels_last():
    def make():
        layer: Any = nn.Conv2d(3, 4, 3)
        return layer.to(memory_format=torch.channels_last)

    def work(group):
        model = seeded(make)
        wrapped = DataParallel(model, group)
        for _ in range(2):
            wrapped.zero_grad(set_to_none=False)
            wrapped(inputs_of(group.rank, 2, 3, 5, 5)).square().sum().backward()
        assert model.weight.grad is not None
        return gradients(model), model.weight.grad.stride() == model.weight.stride()

    alone = seeded(make)
    sum(alone(inputs_of(rank, 2, 3, 5, 5)).square().sum() / 2 for rank in range(2)).backward()
    for seen, same_strides in run_ranks(2, work):
        assert same_strides
        assert_close(seen, gradients(alone))


def test_a_parameter_shared_between_layers_is_averaged_once():
    def make():
        first, second = nn.Linear(4, 4), nn.Linear(4, 4)
        second.weight = first.weight
        return nn.Sequential(first, second)

    compare(make, lambda model, rank: model(inputs_of(rank, 3, 4)).square().sum())


def layers() -> Any:
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))


def make_layers() -> Any:
    return seeded(layers)


def test_two_forward_passes_before_one_backward_pass():
    def loss(model, rank):
        return (model(inputs_of(rank, 3, 4)) * model(inputs_of(rank + 10, 3, 4))).sum()

    compare(layers, loss)


def test_a_second_backward_pass_over_a_graph_adds_its_mean():
    def work(group):
        model = make_layers()
        wrapped = DataParallel(model, group)
        loss = wrapped(inputs_of(group.rank, 3, 4)).square().sum()
        loss.backward(retain_graph=True)
        loss.backward()
        return gradients(model)

    alone = make_layers()
    sum(alone(inputs_of(rank, 3, 4)).square().sum() for rank in range(2)).backward()
    for seen in run_ranks(2, work):
        assert_close(seen, gradients(alone))


def test_two_losses_with_a_backward_pass_each():
    def work(group):
        model = make_layers()
        wrapped = DataParallel(model, group)
        for _ in range(2):
            wrapped.zero_grad()
            model[0](inputs_of(group.rank, 3, 4)).square().sum().backward()
            model[2](inputs_of(group.rank, 3, 4)).square().sum().backward()
        return gradients(model)

    alone = make_layers()
    for layer in (0, 2):
        sum(alone[layer](inputs_of(rank, 3, 4)).square().sum() / 2 for rank in range(2)).backward()
    for seen in run_ranks(2, work):
        assert_close(seen, gradients(alone))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_gives_the_same_gradients(reentrant):
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers: Any = layers()

        def forward(self, values):
            for _ in range(2):  # each parameter's gradient arrives twice where checkpoint is reentrant
                values = checkpoint(self.layers, values, use_reentrant=reentrant)
            return values

    compare(Checkpointed, lambda model, rank: model(inputs_of(rank, 3, 4).requires_grad_()).square().sum())


def test_nested_reentrant_checkpointing_ends_with_the_outer_backward_pass():
    class Nested(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers: Any = layers()

        def inner(self, values):
            return checkpoint(self.layers[0], values, use_reentrant=True)

        def forward(self, values):
            return self.layers[2](checkpoint(self.inner, values, use_reentrant=True))

    compare(Nested, lambda model, rank: model(inputs_of(rank, 3, 4).requires_grad_()).square().sum())


def test_a_gradient_that_arrives_again_after_it_was_averaged_is_an_error():
    class Sometimes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers: Any = layers()
            self.again = False

        def forward(self, values):
            values = self.layers[0](values)
            for _ in range(1 + self.again):
                values = checkpoint(self.layers[2], values, use_reentrant=True)
            return values

    def work(group):
        model = Sometimes()
        wrapped = DataParallel(model, group, bucket_mb=1e-5, overlap=True)
        wrapped(inputs_of(group.rank, 3, 4)).sum().backward()
        model.again = True
        with pytest.raises(UsageError) as caught:
            wrapped(inputs_of(group.rank, 3, 4)).sum().backward()
        return str(caught.value)

    for text in run_ranks(2, work):
        assert "layers.2." in text
        assert "use_reentrant=False" in text


def test_a_parameter_that_some_ranks_use_gets_the_mean_and_one_that_none_uses_nothing():
    def work(group):
        model = nn.ModuleList(nn.Linear(2, 1, bias=False) for _ in range(3))
        wrapped = DataParallel(model, group, bucket_mb=1.0)
        for step in range(4):
            wrapped.zero_grad()
            loss = model[0](torch.ones(2)).sum()
            if group.rank == 1 and step != 1:
                loss = loss + model[1](torch.full((2,), 6.0)).sum()
            loss.backward()
            if step == 1:
                assert model[1].weight.grad is None
        return gradients(model)

    for seen in run_ranks(3, work):
        assert_close(seen, [torch.ones(1, 2), torch.full((1, 2), 2.0), None])


def test_a_parameter_that_is_frozen_later_is_left_alone():
    def work(group):
        model = make_layers()
        wrapped = DataParallel(model, group)
        wrapped(inputs_of(group.rank, 3, 4)).sum().backward()
        model[0].requires_grad_(False)
        wrapped.zero_grad()
        wrapped(inputs_of(group.rank, 3, 4)).sum().backward()
        return gradients(model)

    for seen in run_ranks(2, work):
        assert seen[:2] == [None, None]
        assert all(gradient is not None for gradient in seen[2:])


def test_a_parameter_that_is_unfrozen_later_is_an_error():
    def work(group):
        model = make_layers()
        model[0].requires_grad_(False)
        wrapped = DataParallel(model, group)
        wrapped(inputs_of(group.rank, 3, 4)).sum().backward()
        model[0].requires_grad_(True)
        with pytest.raises(UsageError, match=r"0\.weight needed no gradient when the model was wrapped"):
            wrapped(inputs_of(group.rank, 3, 4)).sum().backward()

    run_ranks(2, work)


def test_a_parameter_that_is_added_later_is_an_error():
    def work(group):
        model = make_layers()
        wrapped = DataParallel(model, group)
        wrapped(inputs_of(group.rank, 3, 4)).sum().backward()
        model.append(nn.Linear(4, 4))
        wrapped.train()
        with pytest.raises(UsageError, match=r"3\.weight was added"):
            wrapped(inputs_of(group.rank, 3, 4))

    run_ranks(2, work)


def test_a_model_may_change_its_dtype_after_it_was_wrapped():
    def work(group):
        model = make_layers()
        wrapped = DataParallel(model, group)
        wrapped(inputs_of(group.rank, 3, 4)).square().sum().backward()
        wrapped.double()
        for _ in range(2):
            wrapped.zero_grad()
            wrapped(inputs_of(group.rank, 3, 4, dtype=torch.float64)).square().sum().backward()
        return gradients(model)

    alone = make_layers().double()
    sum(alone(inputs_of(rank, 3, 4, dtype=torch.float64)).square().sum() / 2 for rank in range(2)).backward()
    for seen in run_ranks(2, work):
        assert_close(seen, gradients(alone))


def test_gradients_accumulate_without_being_averaged_within_no_sync():
    def work(group):
        model = nn.Linear(1, 1, bias=False)
        wrapped = DataParallel(model, group)
        with wrapped.no_sync():
            for _ in range(2):
                wrapped(torch.full((1, 1), group.rank + 1.0)).sum().backward()
            local = gradients(model)
        wrapped(torch.full((1, 1), group.rank + 1.0)).sum().backward()
        return local, gradients(model)

    for rank, (local, mean) in enumerate(run_ranks(2, work)):
        assert_close(local, [torch.full((1, 1), 2.0 * (rank + 1))])
        assert_close(mean, [torch.full((1, 1), 4.5)])


def test_gradients_lie_in_shared_buckets_and_are_not_copied_when_they_are_zeroed_in_place():
    def work(group):
        model = make_layers()
        wrapped = DataParallel(model, group)
        wrapped(inputs_of(group.rank, 3, 4)).sum().backward()
        before = [parameter.grad for parameter in model.parameters()]
        wrapped.zero_grad(set_to_none=False)
        wrapped(inputs_of(group.rank, 3, 4)).sum().backward()
        after = [parameter.grad for parameter in model.parameters()]
        storages = {gradient.untyped_storage().data_ptr() for gradient in after if gradient is not None}
        return all(mine is other for mine, other in zip(before, after, strict=True)) and len(storages) == 1

    assert run_ranks(2, work) == [True, True]


def test_a_large_gradient_is_averaged_where_autograd_has_put_it():
    def work(group):
        model: Any = nn.Linear(512, 512, bias=False)
        wrapped = DataParallel(model, group)
        places = []
        model.weight.register_post_accumulate_grad_hook(lambda weight: places.append(weight.grad.data_ptr()))
        for step in range(3):
            wrapped.zero_grad()
            if step == 1 and group.rank == 0:
                (model.weight[:0].sum() * 0).backward()  # a gradient of zeros
            else:
                wrapped(torch.ones(1, 512) * group.rank).sum().backward()
            assert model.weight.grad.data_ptr() == places[-1]
            assert torch.equal(model.weight.grad, torch.full((512, 512), 0.5))

    run_ranks(2, work)


def test_a_large_gradient_that_is_kept_moves_to_shared_memory():
    def work(group):
        model: Any = nn.Linear(512, 512, bias=False)
        wrapped = DataParallel(model, group)
        seen = []
        for _ in range(4):
            wrapped.zero_grad(set_to_none=False)
            wrapped(torch.ones(1, 512) * group.rank).sum().backward()
            assert torch.equal(model.weight.grad, torch.full((512, 512), 0.5))
            seen.append(model.weight.grad)
        return [later is earlier for earlier, later in itertools.pairwise(seen)]

    assert run_ranks(2, work) == [[False, True, True]] * 2


@pytest.mark.filterwarnings("ignore:grad and param do not obey the gradient layout contract")
def test_a_large_gradient_of_other_strides_or_layout_is_averaged_too():
    def work(group):
        model: Any = nn.Embedding(512, 512)
        wrapped = DataParallel(model, group)
        seen = []
        for step in range(3):
            wrapped.zero_grad()
            with wrapped.no_sync():
                wrapped(torch.tensor([group.rank])).sum().backward()
            if group.rank == 0 and step == 1:
                model.weight.grad = model.weight.grad.t().contiguous().t()
            if group.rank == 1 and step == 2:
                model.weight.grad = model.weight.grad.to_sparse(1)
                model.sparse = True
            wrapped(torch.tensor([group.rank])).sum().backward()
            seen.append(model.weight.grad[:3, 0].tolist())
        return seen

    assert run_ranks(2, work) == [[[1.0, 1.0, 0.0]] * 3] * 2


@pytest.mark.parametrize("overlap", [False, True])
def test_buckets_are_reduced_while_the_backward_pass_runs_if_that_is_wanted(overlap, monkeypatch):
    def work(group):
        model = make_layers()
        wrapped = DataParallel(model, group, bucket_mb=1e-5, overlap=overlap)
        events = []

        def allreduce_async(tensor, op):
            events.append("sent")
            return Group.allreduce_async(group, tensor, op)

        monkeypatch.setattr(group, "allreduce_async", allreduce_async, raising=False)
        model[0].weight.register_post_accumulate_grad_hook(lambda _: events.append("first layer"))
        for _ in range(2):
            events.clear()
            wrapped(inputs_of(group.rank, 3, 4)).sum().backward()
        return events.index("first layer")

    # Three of four buckets: the last one is complete when the backward pass is over.
    assert run_ranks(2, work) == ([3, 3] if overlap else [0, 0])


def test_overlapping_needs_a_core_for_each_rank_beside_its_own():
    class OneHost:
        hosts = ((0, 1),)

    class TwoHosts:
        hosts = ((0,), (1,))

    def pays(group: Any, *ranks: Any) -> bool:
        facts = [{"cores": cores, "quota": quota, "threads": threads} for cores, quota, threads in ranks]
        return pays_to_overlap(group, facts)

    two, four = [0, 1], [0, 1, 2, 3]
    assert not pays(OneHost, (two, None, 1), (two, None, 1))
    assert pays(OneHost, (four, None, 1), (four, None, 1))
    assert pays(OneHost, ([0, 1], None, 1), ([2, 3], None, 1))
    assert not pays(OneHost, (four, None, 2), (four, None, 1))
    assert not pays(OneHost, (four, 3.5, 1), (four, 3.5, 1))
    assert pays(TwoHosts, (two, None, 2), (two, None, 2))


def test_a_gradient_with_a_history_is_averaged_without_it():
    def work(group):
        model: Any = nn.Linear(2, 1, bias=False)
        nn.init.ones_(model.weight)
        wrapped = DataParallel(model, group)
        for _ in range(2):
            wrapped.zero_grad()
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Using backward.. with create_graph=True")
                wrapped(torch.full((1, 2), group.rank + 1.0)).square().sum().backward(create_graph=True)
        return model.weight.grad.detach()

    for seen in run_ranks(2, work):
        torch.testing.assert_close(seen, torch.full((1, 2), (4.0 + 16.0) / 2))


class Broken(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values):
        return values.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise ValueError("the backward pass is broken")


break_backwards: Any = Broken.apply


def test_training_goes_on_after_a_backward_pass_that_raised_before_anything_was_sent():
    def work(group):
        model = make_layers()
        wrapped = DataParallel(model, group)
        for broken in (True, False, True, False):
            wrapped.zero_grad()
            hidden = model[0](inputs_of(group.rank, 3, 4))
            loss = model[2](torch.tanh(break_backwards(hidden) if broken else hidden)).square().sum()
            if broken:
                with pytest.raises(ValueError, match="the backward pass is broken"):
                    loss.backward()
            else:
                loss.backward()
        return gradients(model)

    alone = make_layers()
    sum(alone(inputs_of(rank, 3, 4)).square().sum() / 2 for rank in range(2)).backward()
    for seen in run_ranks(2, work):
        assert_close(seen, gradients(alone))


def test_a_backward_pass_that_raised_after_sending_gradients_ends_the_training():
    def work(group):
        model = make_layers()
        wrapped = DataParallel(model, group, bucket_mb=1e-5, overlap=True)
        wrapped(inputs_of(group.rank, 3, 4)).sum().backward()
        with pytest.raises(ValueError, match="the backward pass is broken"):
            model[2](break_backwards(model[0](inputs_of(group.rank, 3, 4)))).sum().backward()
        with pytest.raises(CommError, match="out of step: make a new group"):
            wrapped(inputs_of(group.rank, 3, 4)).sum().backward()

    run_ranks(2, work)


def test_wrapping_a_model_and_its_optimizer_is_an_error():
    with Group(0, 1) as group:
        model = make_layers()
        DataParallel(model, group)

    def work(group):
        model = make_layers()
        wrapped = DataParallel(model, group)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with pytest.raises(UsageError, match=r"0\.weight is averaged already"):
            DistributedOptimizer(optimizer, model.named_parameters(), group)
        wrapped(inputs_of(group.rank, 3, 4)).sum().backward()

    run_ranks(2, work)


def test_the_model_is_an_ordinary_one_again_when_the_wrapper_is_gone():
    def work(group):
        model = nn.Linear(1, 1, bias=False)
        wrapped = DataParallel(model, group)
        wrapped(torch.ones(1, 1)).sum().backward()
        gone = weakref.ref(wrapped)
        del wrapped
        gc.collect()
        assert gone() is None
        model.zero_grad()
        model(torch.full((1, 1), float(group.rank))).sum().backward()
        return gradients(model)

    for rank, seen in enumerate(run_ranks(2, work)):
        assert_close(seen, [torch.full((1, 1), float(rank))])


def test_a_forgotten_model_is_freed_with_its_reducer():
    def work(group):
        model = make_layers()
        reducer = GradientReducer(list(model.named_parameters()), group)
        model(inputs_of(group.rank, 3, 4)).sum().backward()
        reducer.close()
        return weakref.ref(model[0].weight)

    freed = run_ranks(2, work)
    gc.collect()
    assert [reference() for reference in freed] == [None, None]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"bucket_mb": 0}, "bucket_mb must be above 0, got 0"),
        ({"bucket_mb": float("nan")}, "bucket_mb must be above 0, got nan"),
        ({"compression": "int8"}, 'compression must be None, "fp16" or "bf16", got \'int8\''),
    ],
)
def test_arguments_that_do_not_fit_are_errors(arguments, message):
    with Group(0, 1) as group, pytest.raises(UsageError) as caught:
        DataParallel(make_layers(), group, **arguments)
    assert str(caught.value) == message


def test_compression_rounds_on_the_way_and_leaves_short_dtypes_alone():
    def work(group):
        model = nn.ModuleList([nn.Linear(1, 1, bias=False, dtype=torch.bfloat16), nn.Linear(1, 1, bias=False)])
        wrapped = DataParallel(model, group, compression="fp16")
        for _ in range(2):
            wrapped.zero_grad()
            values = torch.full((1, 1), 1 / 3 + group.rank)
            (model[0](values.bfloat16()).sum().float() + model[1](values).sum()).backward()
        return gradients(model)

    third = torch.full((1, 1), 1 / 3)
    half = torch.stack((third.half(), (third + 1).half())).float().mean(0).half().float()
    short = torch.stack((third.bfloat16(), (third + 1).bfloat16())).float().mean(0).bfloat16()
    for seen in run_ranks(2, work):
        assert_close(seen, [short, half], rtol=0, atol=0)


def test_the_timeline_shows_the_backward_pass(tmp_path):
    with Group(0, 1, timeline=tmp_path / "trace.json") as group:
        model = make_layers()
        wrapped = DataParallel(model, group)
        wrapped(inputs_of(0, 3, 4)).sum().backward()
        assert group.timeline.summary().get("backward_seconds") == 0  # one rank averages nothing

    def work(group):
        wrapped = DataParallel(make_layers(), group, overlap=True)
        wrapped(inputs_of(group.rank, 3, 4)).sum().backward()
        return group.timeline.summary()["backward_seconds"] > 0

    assert run_ranks(2, work, timeline=tmp_path / "two.json") == [True, True]
