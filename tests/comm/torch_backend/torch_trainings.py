"""Trainings by torch's own means, on any backend: each gives its losses, to be compared between backends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from tests.comm.torch_backend.torch_scripts import drawn

STEPS = 5


class Branches(nn.Module):
    """Uses one of two layers by turns, so that parameters are unused."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 4), nn.Linear(8, 4)])
        self.head = nn.Linear(4, 1)
        self.turn = 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.turn += 1
        layer = self.layers[(self.turn + dist.get_rank()) % 2 if self.turn % 3 else 0]
        output: torch.Tensor = self.head(layer(inputs))
        return output


def mlp(width: int = 32) -> nn.Module:
    return nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))


class Convnet(nn.Module):
    """Has buffers, which DDP broadcasts."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(16, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        images = torch.cat([inputs, inputs], 1).view(-1, 1, 4, 4)
        output: torch.Tensor = self.head(self.norm(self.convolution(images)).flatten(1).relu())
        return output


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The batches of this rank."""
    generator = torch.Generator().manual_seed(dist.get_rank())
    found = []
    for _ in range(STEPS):
        inputs = drawn(lambda: torch.randn(16, 8, generator=generator))
        found.append((inputs, inputs.square().sum(1, keepdim=True).tanh()))
    return found


def train(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> list[float]:
    """Train, and return the losses and a sum over the weights."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for inputs, targets in batches():
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    return losses


def with_ddp(what: str) -> list[float]:
    """Train with DistributedDataParallel and one of its options."""
    model: nn.Module = drawn({"convnet": Convnet, "branches": Branches}.get(what, mlp))
    every: dict[str, dict[str, Any]] = {
        "views": {"gradient_as_bucket_view": True},
        "small buckets": {"bucket_cap_mb": 0.001},
        "branches": {"find_unused_parameters": True},
        "static": {"static_graph": True},
    }
    wrapped = DistributedDataParallel(model, **every.get(what, {}))
    if what == "fp16":
        wrapped.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif what == "hook":
        wrapped.register_comm_hook(None, default_hooks.allreduce_hook)
    elif what == "power":
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
        wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    if what == "no_sync":
        inputs, targets = batches()[0]
        with wrapped.no_sync():
            torch.autograd.backward(nn.functional.mse_loss(wrapped(inputs), targets))
        torch.autograd.backward(nn.functional.mse_loss(wrapped(inputs), targets))
        return [parameter.grad.sum().item() for parameter in model.parameters() if parameter.grad is not None]
    if what == "join":
        optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
        with wrapped.join():
            for inputs, targets in batches()[: 2 + dist.get_rank()]:
                optimizer.zero_grad()
                torch.autograd.backward(nn.functional.mse_loss(wrapped(inputs), targets))
                optimizer.step()
        return [parameter.sum().item() for parameter in model.parameters()]
    return [*train(wrapped), *(buffer.double().sum().item() for buffer in model.buffers())]


def with_sparse_gradients() -> list[float]:
    """Train an embedding whose gradients are sparse."""
    model = DistributedDataParallel(drawn(lambda: nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Linear(4, 1))))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(STEPS):
        rows = torch.tensor([step, dist.get_rank(), 3, 3])
        optimizer.zero_grad()
        loss = model(rows).square().sum()
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    return losses


def with_fsdp() -> list[float]:
    """Train with FSDP2, each layer sharded by itself."""
    mesh = init_device_mesh(torch.get_default_device().type, (dist.get_world_size(),))
    model = drawn(lambda: mlp(33))  # which doesn't divide evenly
    for layer in model.children():
        if list(layer.parameters()):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    losses = train(model)
    full = [parameter.full_tensor().sum().item() for parameter in model.parameters() if isinstance(parameter, DTensor)]
    assert full
    return losses + full


def with_checkpoints(folder: str) -> list[float]:
    """Load rank 0's weights into a sharded model, save it in both ways, and return both as they are read."""
    mesh = init_device_mesh(torch.get_default_device().type, (dist.get_world_size(),))
    model = drawn(mlp)
    weights = {name: value + 1 for name, value in model.state_dict().items()} if dist.get_rank() == 0 else {}
    fully_shard(model, mesh=mesh)
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, weights, options=options)
    checkpoint: Any = torch.distributed.checkpoint  # whose stubs name nothing of it
    checkpoint.save(get_model_state_dict(model), checkpoint_id=f"{folder}/at once")
    saved = checkpoint.async_save(get_model_state_dict(model), checkpoint_id=f"{folder}/later")
    saved.result()
    sums: list[float] = []
    for name in ("at once", "later"):
        own: dict[str, Any] = dict(get_model_state_dict(model))
        state: dict[str, Any] = {key: torch.zeros_like(value) for key, value in own.items()}
        checkpoint.load(state, checkpoint_id=f"{folder}/{name}")
        sums += [value.full_tensor().sum().item() for value in state.values()]
    return sums


def with_hybrid_fsdp() -> list[float]:
    """Train with FSDP2 on a mesh of two dimensions: sharded in one, replicated in the other."""
    mesh = init_device_mesh(
        torch.get_default_device().type, (2, dist.get_world_size() // 2), mesh_dim_names=("replicate", "shard")
    )
    model = drawn(mlp)
    fully_shard(model, mesh=mesh)
    return train(model)


def with_dtensors() -> list[Any]:
    """Redistribute tensors every way, and compute with them."""
    size = dist.get_world_size()
    mesh = init_device_mesh(torch.get_default_device().type, (size,))
    whole = torch.arange(7.0 * 6).view(7, 6)
    results: list[Any] = []
    for placement in (Shard(0), Shard(1), Replicate()):
        spread = distribute_tensor(whole, mesh, [placement])
        for other in (Shard(0), Shard(1), Replicate()):
            moved = spread.redistribute(mesh, [other])
            results.append(moved.to_local().tolist())
            assert torch.equal(moved.full_tensor(), whole)
    partial = DTensor.from_local(whole + dist.get_rank(), mesh, [Partial()])
    for other in (Shard(0), Shard(1), Replicate()):
        results.append(partial.redistribute(mesh, [other]).to_local().tolist())
    left, right = (
        distribute_tensor(whole, mesh, [Shard(1)]),
        distribute_tensor(whole.t().contiguous(), mesh, [Shard(0)]),
    )
    product: Any = left @ right
    results.append(product.full_tensor().tolist())
    return results


def with_tensor_parallel() -> list[float]:
    """Train a model whose layers are split over the ranks; all get the same batches."""
    mesh = init_device_mesh(torch.get_default_device().type, (dist.get_world_size(),))
    model = drawn(lambda: nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 1)))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(STEPS):
        inputs = drawn(lambda: torch.randn(16, 8, generator=torch.Generator().manual_seed(step)))  # noqa: B023
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True))
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    return losses


def with_pipeline(kind: str) -> list[float]:
    """Train a pipeline with a stage on each rank; return the losses of the last one."""
    rank, size = dist.get_rank(), dist.get_world_size()
    layers: Callable[[], nn.Module] = lambda: nn.Sequential(nn.Linear(8, 8), nn.Tanh())  # noqa: E731
    torch.manual_seed(11)
    module = drawn(lambda: [layers() for _ in range(size)][rank])
    stage = PipelineStage(module, rank, size, torch.get_default_device())
    schedule_class = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}[kind]
    schedule = schedule_class(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    found = []
    for step in range(STEPS):
        inputs = drawn(lambda: torch.randn(16, 8, generator=torch.Generator().manual_seed(step)))  # noqa: B023
        optimizer.zero_grad()
        losses: list[torch.Tensor] = []
        if rank == 0:
            schedule.step(inputs)
        elif rank == size - 1:
            schedule.step(target=inputs.flip(1), losses=losses)
        else:
            schedule.step()
        optimizer.step()
        found += [loss.item() for loss in losses]
    return [*found, *(parameter.sum().item() for parameter in module.parameters())]
