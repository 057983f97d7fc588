"""What ranks of hpsearch_comm.horovod send each other so that they begin alike."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import nn

import hpsearch_comm.horovod as hvd
from tests.comm.horovod.horovod_training import loss_of, network


def parameters_of(how: str) -> list[bool]:
    model = network()
    model.append(nn.BatchNorm1d(3))
    for number, tensor in enumerate(model.state_dict().values()):
        tensor.fill_(10 * number + hvd.rank())
    expected = [torch.full_like(tensor, 10 * n + 1) for n, tensor in enumerate(model.state_dict().values())]
    given = {
        "state": model.state_dict(),
        "named": model.named_parameters(),
        "unnamed": list(model.parameters()),
    }[how]
    hvd.broadcast_parameters(given, root_rank=1)
    if how != "state":
        hvd.broadcast_parameters(dict(model.named_buffers()), root_rank=1)
    return [torch.equal(one, two) for one, two in zip(model.state_dict().values(), expected, strict=True)]


def refused_parameters(what: str) -> list[str]:
    try:
        if what == "number":
            hvd.broadcast_parameters({"weight": torch.ones(1), "step": 3}, 0)  # type: ignore[arg-type]
        elif what == "numbers":
            hvd.broadcast_parameters([1, 2], 0)  # type: ignore[arg-type]
        elif what == "tensor":
            hvd.broadcast_parameters(torch.ones(2), 0)
        elif what == "shapes":
            tensors = {"a": torch.ones(2), "b": torch.ones(2 + hvd.rank()), "c": torch.ones(3)}
            hvd.broadcast_parameters(tensors, 0)
    except (ValueError, hvd.HorovodInternalError) as error:
        hvd.broadcast_parameters({"a": torch.ones(1), "b": torch.ones(1), "c": torch.ones(1)}, 0)
        return [type(error).__name__, str(error)]
    raise AssertionError("no error")


def objects() -> list[Any]:
    rank = hvd.rank()
    first = hvd.broadcast_object({0: [1, 2], "of": rank} if rank == 1 else None, root_rank=1)
    named = hvd.broadcast_object((rank, "x"), name="named")
    mine = {"rank": rank, "more": "x" * 1000 * rank}
    everybodys = hvd.allgather_object(mine, name="all")
    tensors = hvd.allgather_object({"tensor": torch.full((rank,), float(rank))})
    return [
        sorted(map(str, first)),
        first["of"],
        list(named),
        [[item["rank"], len(item["more"])] for item in everybodys],
        [item["tensor"].tolist() for item in tensors],
    ]


def unpicklable(what: str) -> str:
    mine: Any = threading.Lock() if hvd.rank() == 1 else "fine"
    try:
        if what == "broadcast":
            hvd.broadcast_object(mine, root_rank=1)
        elif what == "allgather":
            hvd.allgather_object(mine)
        else:
            model = network()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            if hvd.rank() == 1:
                optimizer.param_groups[0]["lock"] = threading.Lock()
            hvd.broadcast_optimizer_state(optimizer, root_rank=1)
    except ValueError as error:
        assert hvd.broadcast_object(7) == 7
        return f"{type(error).__name__}: {error}"
    raise AssertionError("no error")


def optimizer_state(kind: str, steps: list[int], wrapped: bool = True) -> bool:
    """Step so often on each rank, with other options; then see whether all have rank 0's."""
    model = network()
    options: dict[str, Any] = {"lr": 0.1 * (hvd.rank() + 1), "weight_decay": 0.01 * hvd.rank()}
    if kind == "SGD":
        options |= {"momentum": 0.9 - 0.1 * hvd.rank(), "nesterov": hvd.rank() == 0}
    optimizer: Any = getattr(torch.optim, kind)(
        [{"params": model[0].parameters()}, {"params": model[4].parameters(), "lr": 0.3}], **options
    )
    for number in range(steps[hvd.rank()]):
        optimizer.zero_grad()
        loss_of(model, hvd.rank(), number).backward()
        optimizer.step()
    if wrapped:
        optimizer = hvd.DistributedOptimizer(optimizer)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    weights = [parameter.detach().clone() for parameter in model.parameters()]
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert all(torch.equal(one, two) for one, two in zip(weights, model.parameters(), strict=True))
    states = hvd.allgather_object(optimizer.state_dict())
    same = all(_alike(states[0], state) for state in states)
    optimizer.zero_grad()
    (model(torch.ones(2, 6)).square().sum() * (hvd.rank() if wrapped else 1.0)).backward()
    optimizer.step()
    everybodys = hvd.allgather_object([parameter.detach() for parameter in model[0].parameters()])
    return (
        same and len(states[0]["state"]) == (4 if steps[0] else 0) and all(_alike(everybodys[0], x) for x in everybodys)
    )


def _alike(one: Any, two: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, two)
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(_alike(one[key], two[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(map(_alike, one, two))
    return type(one) is type(two) and one == two


def refused_optimizers(what: str) -> str:
    model = network()
    try:
        if what == "LBFGS":
            hvd.broadcast_optimizer_state(torch.optim.LBFGS(model.parameters()), 0)
        else:
            parameters = list(model.parameters())[: 2 + hvd.rank()]
            hvd.broadcast_optimizer_state(torch.optim.SGD(parameters, lr=0.1), 0)
    except ValueError as error:
        return str(error)
    raise AssertionError("no error")


def gradients_behind_it() -> list[Any]:
    model = nn.Sequential(nn.Embedding(4, 2, sparse=True), nn.Linear(2, 1))
    model[1].bias.requires_grad_(False)
    hvd.broadcast_optimizer_state(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), 0, model)
    sparse, dense, frozen = (parameter.grad for parameter in model.parameters())
    assert sparse is not None
    assert dense is not None
    return [sparse.is_sparse, sparse.to_dense().abs().max().item(), dense.abs().max().item(), frozen]
