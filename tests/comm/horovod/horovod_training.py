"""What ranks of hpsearch_comm.horovod train; each function runs on all ranks at once."""

from __future__ import annotations

import contextlib
import copy
import gc
import pickle
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import hpsearch_comm.horovod as hvd

_COMBINED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "Average": lambda rows: rows.mean(0),
    "Sum": lambda rows: rows.sum(0),
    "Min": lambda rows: rows.amin(0),
    "Max": lambda rows: rows.amax(0),
}
"""What a gradient becomes, of those of the ranks."""


def network() -> Any:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))


def loss_of(model: nn.Module, rank: int, number: int) -> Any:
    generator = torch.Generator().manual_seed(1000 * rank + number)
    inputs, targets = torch.randn(5, 6, generator=generator), torch.randn(5, 3, generator=generator)
    return functional.mse_loss(model(inputs), targets)


def averages(kind: str = "SGD", passes: int = 1, groups: Any = None, op: str = "Average", **options: Any) -> float:
    """Train as all ranks and, beside it, on the gradients of all ranks alone; return the largest difference."""
    model, alone = network(), network()
    settings = {"lr": 0.05, "momentum": 0.9} if kind == "SGD" else {"lr": 0.05}
    if groups == "lists":
        layers = [model[0], model[4]]
        groups = [list(layer.parameters()) for layer in layers]
    if "compression" in options:
        options["compression"] = getattr(hvd.Compression, options["compression"])
    optimizer = hvd.DistributedOptimizer(
        getattr(torch.optim, kind)(model.parameters(), **settings),
        model.named_parameters(),
        op=getattr(hvd, op),
        backward_passes_per_step=passes,
        groups=groups,
        **options,
    )
    assert type(optimizer).__name__ == kind
    assert isinstance(optimizer, getattr(torch.optim, kind))
    plain = getattr(torch.optim, kind)(alone.parameters(), **settings)
    for step in range(4):
        optimizer.zero_grad()
        for number in range(passes):
            loss_of(model, hvd.rank(), passes * step + number).backward()
        optimizer.step()
        reduce_alone(alone, [range(passes * step, passes * (step + 1))] * hvd.size(), op)
        plain.step()
    return difference(model, alone)


def reduce_alone(model: nn.Module, numbers: list[range], op: str = "Average") -> None:
    """Set a model's gradients to the combined gradients of all ranks, each of its own batches."""
    rows = []
    for rank, batches in enumerate(numbers):
        model.zero_grad()
        for number in batches:
            loss_of(model, rank, number).backward()
        rows.append([torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()])
    for parameter, *gradients in zip(model.parameters(), *rows, strict=True):
        parameter.grad = _COMBINED[op](torch.stack(gradients))


def difference(model: nn.Module, other: nn.Module) -> float:
    pairs = zip(model.parameters(), other.parameters(), strict=True)
    return max(float((one - two).detach().abs().max()) for one, two in pairs)


def clips() -> float:
    model, alone = network(), network()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.5), model.named_parameters())
    plain = torch.optim.SGD(alone.parameters(), lr=0.5)
    for step in range(3):
        optimizer.zero_grad()
        loss_of(model, hvd.rank(), step).backward()
        optimizer.synchronize()
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        with optimizer.skip_synchronize():
            optimizer.step()
        reduce_alone(alone, [range(step, step + 1)] * hvd.size())
        nn.utils.clip_grad_norm_(alone.parameters(), 0.01)
        plain.step()
    optimizer.zero_grad()
    loss_of(model, hvd.rank(), 3).backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # none, as it reduces once
        optimizer.step()
    reduce_alone(alone, [range(3, 4)] * hvd.size())
    plain.step()
    return difference(model, alone)


def scales_the_loss() -> float:
    """With a GradScaler, and rank 1 overflowing once: all ranks leave that step out."""
    model, alone = network(), network()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.5), model.named_parameters())
    plain = torch.optim.SGD(alone.parameters(), lr=0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(3):
        optimizer.zero_grad()
        loss = loss_of(model, hvd.rank(), step)
        scaler.scale(loss * float("inf") if (step, hvd.rank()) == (1, 1) else loss).backward()
        optimizer.synchronize()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with optimizer.skip_synchronize():
            scaler.step(optimizer)
        scaler.update()
        if step != 1:
            reduce_alone(alone, [range(step, step + 1)] * hvd.size())
            nn.utils.clip_grad_norm_(alone.parameters(), 1.0)
            plain.step()
    return difference(model, alone) + abs(scaler.get_scale() - 512.0)


def steps_with_a_closure() -> float:
    model, alone = network(), network()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.5), model.named_parameters())
    plain = torch.optim.SGD(alone.parameters(), lr=0.5)
    for step in range(3):

        def evaluate(step: int = step) -> Any:
            optimizer.zero_grad()
            loss = loss_of(model, hvd.rank(), step)
            loss.backward()
            return loss

        assert torch.equal(optimizer.step(evaluate), loss_of(copy.deepcopy(alone), hvd.rank(), step))
        reduce_alone(alone, [range(step, step + 1)] * hvd.size())
        plain.step()
    return difference(model, alone)


def schedules() -> list[list[float]]:
    """Rates and parameters under a scheduler, that is made of the optimizer itself or of the wrapped one."""
    results = []
    for early in (False, True):
        model = network()
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.5)
        if early:
            torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        for step in range(3):
            optimizer.zero_grad()
            loss_of(model, hvd.rank(), step).backward()
            optimizer.step()
            scheduler.step()
        results.append([optimizer.param_groups[0]["lr"], *model[0].bias.tolist()])
    return results


class Branches(nn.Module):
    """Two layers, of which a batch needs one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.even, self.odd = nn.Linear(6, 3), nn.Linear(6, 3)
        self.chosen = 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        chosen: torch.Tensor = (self.odd if self.chosen else self.even)(inputs)
        return chosen


def gradients_that_some_ranks_lack(groups: Any) -> list[float]:
    model, alone = Branches(), Branches()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), groups=groups
    )
    plain = torch.optim.SGD(alone.parameters(), lr=0.1)
    model.chosen = hvd.rank() % 2
    for step in range(3):
        optimizer.zero_grad()
        loss_of(model, hvd.rank(), step).backward()
        optimizer.step()
        sums = [torch.zeros_like(parameter) for parameter in alone.parameters()]
        for rank in range(hvd.size()):
            alone.chosen = rank % 2
            alone.zero_grad()
            loss_of(alone, rank, step).backward()
            for total, parameter in zip(sums, alone.parameters(), strict=True):
                total += 0 if parameter.grad is None else parameter.grad
        for total, parameter in zip(sums, alone.parameters(), strict=True):
            parameter.grad = total / hvd.size()
        plain.step()
    return [difference(model, alone)]


def frozen_parameters_stay(groups: int | None) -> bool:
    model = network()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.5), model.named_parameters(), groups=groups
    )
    model[0].requires_grad_(False)
    before = model[0].weight.clone()
    for _ in range(2):
        loss_of(model, hvd.rank(), 0).backward()
        optimizer.step()
        optimizer.zero_grad()
    return torch.equal(before, model[0].weight) and model[0].weight.grad is None


def parameters_that_are_thawed_later(groups: int | None) -> float:
    model, alone = network(), network()
    model[0].requires_grad_(False)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), groups=groups
    )
    plain = torch.optim.SGD(alone.parameters(), lr=0.1)
    for step in range(4):
        if step == 2:
            model[0].requires_grad_(True)
        optimizer.zero_grad()
        loss_of(model, hvd.rank(), step).backward()
        optimizer.step()
        reduce_alone(alone, [range(step, step + 1)] * hvd.size())
        if step < 2:
            for parameter in alone[0].parameters():
                parameter.grad = None
        plain.step()
    return difference(model, alone)


def unlike_memory_formats() -> float:
    """Each rank keeps its images, weights and gradients in another order."""

    def convolution() -> nn.Module:
        torch.manual_seed(8)
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 9, 2))

    def loss(model: nn.Module, rank: int, order: torch.memory_format) -> Any:
        images = torch.randn(2, 3, 5, 5, generator=torch.Generator().manual_seed(rank))
        return model(images.contiguous(memory_format=order)).square().sum()

    order = torch.channels_last if hvd.rank() % 2 else torch.contiguous_format
    model: Any = convolution().to(memory_format=order)  # type: ignore[call-overload]
    alone = convolution()
    hvd.broadcast_parameters(model.state_dict(), root_rank=1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters())
    plain = torch.optim.SGD(alone.parameters(), lr=0.01)
    for _ in range(2):
        optimizer.zero_grad()
        loss(model, hvd.rank(), order).backward()
        optimizer.step()
        plain.zero_grad()
        for rank in range(hvd.size()):
            (loss(alone, rank, torch.contiguous_format) / hvd.size()).backward()
        plain.step()
    return difference(model, alone)


def sparse_gradients(sparse_as_dense: bool, kind: str = "SGD") -> float:
    def table() -> nn.Embedding:
        torch.manual_seed(2)
        return nn.Embedding(12, 4, sparse=True)

    table_of_all, alone = table(), table()
    optimizer = hvd.DistributedOptimizer(
        getattr(torch.optim, kind)(list(table_of_all.parameters()), lr=0.3),
        table_of_all.named_parameters(),
        sparse_as_dense=sparse_as_dense,
    )
    plain = getattr(torch.optim, kind)(list(alone.parameters()), lr=0.3)
    rows = [[[0, 1, 1], [3], [5, 0]], [[7], [2, 2], [11]], [[1, 5], [9], [3]]]
    for step in range(3):
        if step < 2 or hvd.rank() == 0:  # in the last step, the others have no gradient
            optimizer.zero_grad()
            table_of_all(torch.tensor(rows[hvd.rank()][step])).square().sum().backward()
        else:
            optimizer.zero_grad()
        optimizer.step()
        assert table_of_all.weight.grad is not None
        assert table_of_all.weight.grad.is_sparse
        alone.zero_grad()
        for rank in range(hvd.size() if step < 2 else 1):
            (alone(torch.tensor(rows[rank][step])).square().sum() / hvd.size()).backward()
        plain.step()
    return difference(table_of_all, alone)


def keeps_state() -> list[Any]:
    model = network()
    plain = torch.optim.Adam(model.parameters(), lr=0.01, amsgrad=True)
    loss_of(model, 0, 0).backward()
    plain.step()
    expected = copy.deepcopy(plain.state_dict())
    optimizer = hvd.DistributedOptimizer(plain, model.named_parameters())
    state = optimizer.state_dict()
    same = state.keys() == expected.keys() and state["param_groups"] == expected["param_groups"]
    for number, entry in expected["state"].items():
        same &= all(torch.equal(value, state["state"][number][name]) for name, value in entry.items())
    fresh = torch.optim.Adam(network().parameters())
    fresh.load_state_dict(state)
    optimizer.load_state_dict(state)
    steps: list[int] = []
    optimizer.register_step_post_hook(lambda *_: steps.append(1))
    optimizer.zero_grad()
    loss_of(model, hvd.rank(), 1).backward()
    optimizer.step()
    return [same, len(steps)]


def misuse(what: str) -> list[str]:
    model = network()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    named = list(model.named_parameters())
    try:
        if what == "a model":
            hvd.DistributedOptimizer(model, named)
        elif what == "a model's names":
            hvd.DistributedOptimizer(sgd, nn.ReLU())  # type: ignore[arg-type]
        elif what == "no compression":
            hvd.DistributedOptimizer(sgd, named, compression="fp16")  # type: ignore[arg-type]
        elif what == "no such op":
            hvd.DistributedOptimizer(sgd, named, op="mean")  # type: ignore[arg-type]
        elif what == "not pairs":
            hvd.DistributedOptimizer(sgd, list(model.parameters()))
        elif what == "a name twice":
            hvd.DistributedOptimizer(sgd, [*named, ("0.weight", named[1][1])])
        elif what == "a name missing":
            hvd.DistributedOptimizer(sgd, named[1:])
        elif what == "no passes":
            hvd.DistributedOptimizer(sgd, named, backward_passes_per_step=0)
        elif what == "predivide and sum":
            hvd.DistributedOptimizer(sgd, named, gradient_predivide_factor=2.0, op=hvd.Sum)
        elif what == "no groups":
            hvd.DistributedOptimizer(sgd, named, groups=0)
        elif what == "groups of names":
            hvd.DistributedOptimizer(sgd, named, groups=[["0.weight"]])  # type: ignore[list-item]
        elif what == "in two groups":
            hvd.DistributedOptimizer(sgd, named, groups=[[named[0][1]], [named[0][1]]])
        elif what == "wrapped twice":
            hvd.DistributedOptimizer(hvd.DistributedOptimizer(sgd, named), named)
        elif what == "copied":
            copy.deepcopy(hvd.DistributedOptimizer(sgd, named))
        elif what == "a group of parameters":
            hvd.DistributedOptimizer(sgd, named).add_param_group({"params": [nn.Parameter(torch.ones(1))]})
        else:
            optimizer = hvd.DistributedOptimizer(sgd, named)
            loss_of(model, hvd.rank(), 0).backward()
            try:
                if what == "zero_grad in between":
                    optimizer.zero_grad()
                elif what == "a pass too many":
                    loss_of(model, hvd.rank(), 1).backward()
                elif what == "other passes in between":
                    optimizer.set_backward_passes_per_step(2)
                elif what == "clipped before":
                    nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
                    optimizer.step()
                elif what == "unscaled before":
                    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
                    scaler.scale(torch.ones(1))
                    scaler.step(optimizer)
                elif what == "replaced before":
                    model[0].weight.grad = torch.ones_like(model[0].weight)
                    optimizer.step()
            finally:
                with contextlib.suppress(AssertionError):
                    optimizer.synchronize()
                optimizer.zero_grad()
    except (ValueError, AssertionError) as error:
        return [type(error).__name__, str(error)]
    raise AssertionError("no error")


def warns_behind_synchronize() -> list[str]:
    model = network()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    loss_of(model, hvd.rank(), 0).backward()
    optimizer.synchronize()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        optimizer.step()
    return [str(warning.message) for warning in told]


def wraps_a_model_again() -> float:
    """An optimizer that is gone leaves the model's gradients alone, and doesn't keep the model."""
    model = network()
    for _ in range(2):
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
        loss_of(model, hvd.rank(), 0).backward()
        optimizer.step()
        optimizer.zero_grad()
        del optimizer
        gc.collect()
        assert not any(parameter._post_accumulate_grad_hooks for parameter in model.parameters())
    loss_of(model, hvd.rank(), 0).backward()
    alone = copy.deepcopy(model)
    alone.zero_grad()
    loss_of(alone, hvd.rank(), 0).backward()
    mine, own = model[0].weight.grad, alone[0].weight.grad
    assert mine is not None
    assert own is not None
    weight = weakref.ref(model[0].weight)
    del model
    gc.collect()
    assert weight() is None
    return float((mine - own).abs().max())


def changes_passes() -> float:
    model, alone = network(), network()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    plain = torch.optim.SGD(alone.parameters(), lr=0.1)
    for first, passes in ((0, 1), (1, 3), (4, 2)):
        optimizer.set_backward_passes_per_step(passes)
        optimizer.zero_grad()
        for number in range(first, first + passes):
            loss_of(model, hvd.rank(), number).backward()
        optimizer.step()
        reduce_alone(alone, [range(first, first + passes)] * hvd.size())
        plain.step()
    # A step before its passes are complete takes what there is.
    optimizer.set_backward_passes_per_step(5)
    optimizer.zero_grad()
    loss_of(model, hvd.rank(), 6).backward()
    optimizer.step()
    reduce_alone(alone, [range(6, 7)] * hvd.size())
    plain.step()
    return difference(model, alone)


def averages_with(options: dict[str, Any]) -> float:
    return averages(**options)


def normalizes(rows: list[int], momentum: float | None) -> list[float]:
    """Differences to torch's layer, that has the rows of all ranks: outputs, gradients, statistics."""
    torch.manual_seed(11)
    inputs = torch.randn(2, sum(rows), 3, 4)
    first = sum(rows[: hvd.rank()])
    mine = slice(first, first + rows[hvd.rank()])
    layer = pickle.loads(pickle.dumps(copy.deepcopy(hvd.SyncBatchNorm(3, momentum=momentum))))
    whole = nn.BatchNorm1d(3, momentum=momentum)
    differences = []
    for batch in inputs:
        part, everything = batch[mine].clone().requires_grad_(), batch.clone().requires_grad_()
        out, expected = layer(part), whole(everything)
        (out**3).sum().backward()
        (expected**3).sum().backward()
        assert part.grad is not None
        assert everything.grad is not None
        pairs = [(out, expected[mine]), (part.grad, everything.grad[mine])]
        pairs += [(layer.running_mean, whole.running_mean), (layer.running_var, whole.running_var)]
        pairs += [(hvd.allreduce(layer.weight.grad, op=hvd.Sum), whole.weight.grad)]
        differences.append(max(float((a - b).detach().abs().max()) if a.numel() else 0.0 for a, b in pairs))
    layer.eval()
    assert torch.allclose(layer(inputs[0]), whole.eval()(inputs[0]), atol=1e-5)
    return differences


def trains_in_a_process_set() -> list[float]:
    """Ranks 0 and 2 train together, rank 1 alone; each with a batch of its own."""
    together = hvd.add_process_set([0, 2])
    model, alone = network(), network()
    for groups in (None, 2):
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), process_set=together, groups=groups
        )
        plain = torch.optim.SGD(alone.parameters(), lr=0.1)
        for step in range(3):
            optimizer.zero_grad()
            loss_of(model, hvd.rank(), step).backward()
            optimizer.step()
            alone.zero_grad()
            members = [1] if hvd.rank() == 1 else [0, 2]
            for rank in members:
                (loss_of(alone, rank, step) / len(members)).backward()
            plain.step()
    hvd.remove_process_set(together)
    return [difference(model, alone)]


def combines_steps() -> list[Any]:
    """By Adasum, beside the equation on the steps of both ranks."""
    model, start = network(), network()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model.named_parameters(), op=hvd.Adasum
    )
    kinds = []
    alones = [network() for _ in range(2)]
    plains = [torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9) for alone in alones]
    for step in range(3):
        optimizer.zero_grad()
        loss_of(model, hvd.rank(), step).backward()
        optimizer.synchronize()
        optimizer.step()
        for rank, (alone, plain) in enumerate(zip(alones, plains, strict=True)):
            alone.load_state_dict(start.state_dict())
            plain.zero_grad()
            loss_of(alone, rank, step).backward()
            plain.step()
        with torch.no_grad():
            for parameter, one, two in zip(start.parameters(), *(alone.parameters() for alone in alones), strict=True):
                a, b = one - parameter, two - parameter
                product = (a * b).sum()
                parameter += (1 - product / (2 * a.square().sum())) * a + (1 - product / (2 * b.square().sum())) * b
    for misused in (optimizer.skip_synchronize().__enter__, lambda: adasum_in_a_process_set(model)):
        try:
            misused()
        except (AssertionError, NotImplementedError) as error:
            kinds.append(type(error).__name__)
    return [difference(model, start), kinds]


def adasum_in_a_process_set(model: nn.Module) -> None:
    both = hvd.ProcessSet([0])
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    hvd.DistributedOptimizer(sgd, op=hvd.Adasum, process_set=both)
