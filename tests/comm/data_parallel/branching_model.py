"""A model of which a batch may use parts, and its training on ranks and on one rank: for testing gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from hpsearch_comm import Group
from hpsearch_comm.data_parallel import DataParallel, DistributedOptimizer

FEATURES = 6
STEPS = 50


class BranchingModel(nn.Module):
    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(7)
        self.trunk = nn.Linear(FEATURES, 8, dtype=dtype)
        self.branch = nn.Linear(8, 8, dtype=dtype)
        self.never = nn.Linear(8, 8, dtype=dtype)
        self.frozen = nn.Parameter(torch.ones(8, dtype=dtype), requires_grad=False)
        self.head = nn.Linear(8, 2, dtype=dtype)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=dtype) / 3)

    def forward(self, inputs: torch.Tensor, branch: bool = False) -> torch.Tensor:
        hidden = torch.tanh(self.trunk(inputs)) * self.frozen
        if branch:
            hidden = hidden + torch.tanh(self.branch(hidden))
        outputs: torch.Tensor = self.head(hidden)
        return outputs


@dataclass(frozen=True)
class Training:
    """What is trained, and how; rows of `shards[r]` are rank r's in each batch."""

    shards: tuple[int, ...] = (4, 4)
    branches: bool = False
    """Whether some batches use the branch, on rank 1 only or on all ranks."""
    parts: int = 1
    """Batches of which gradients are accumulated for a step."""
    set_to_none: bool = True
    optimizer: str = "sgd"
    clip: bool = False
    dtype: torch.dtype = torch.float64
    wrapper: str = "model"
    steps: int = STEPS
    arguments: tuple[tuple[str, Any], ...] = ()
    """Of the wrapper."""

    def on_one_rank(self) -> list[torch.Tensor]:
        """Train with whole batches; return the parameters."""
        return self.run(None)

    def run(self, group: Group | None) -> list[torch.Tensor]:
        model = BranchingModel(self.dtype)
        optimizer = self.make_optimizer(model)
        wrapped: nn.Module = model
        if group is not None and self.wrapper == "model":
            wrapped = DataParallel(model, group, weighted=self.unequal, **dict(self.arguments))
        elif group is not None:
            optimizer = DistributedOptimizer(
                optimizer, model.named_parameters(), group, backward_passes_per_step=self.parts, **dict(self.arguments)
            )
        for step in range(self.steps):
            optimizer.zero_grad(self.set_to_none)
            if isinstance(wrapped, DataParallel):
                assert group is not None
                with wrapped.no_sync():
                    for part in range(self.parts - 1):
                        self.backward(wrapped, step, part, [group.rank])
                if self.unequal:
                    wrapped.set_weight(self.shards[group.rank])
                self.backward(wrapped, step, self.parts - 1, [group.rank])
            else:
                for part in range(self.parts):
                    self.backward(model, step, part, range(len(self.shards)) if group is None else [group.rank])
            if self.clip:
                nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            optimizer.step()
        return [parameter.detach().clone() for parameter in model.parameters()]

    @property
    def unequal(self) -> bool:
        return len(set(self.shards)) > 1

    def make_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        # Weight decay tells a gradient of zero from none.
        if self.optimizer == "adam":
            return torch.optim.AdamW(model.parameters(), lr=0.003, weight_decay=0.1)
        return torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=0.1)

    def backward(self, model: nn.Module, step: int, part: int, ranks: Sequence[int]) -> None:
        """Run a backward pass over the rows of some ranks."""
        generator = torch.Generator().manual_seed(1000 * step + part)
        inputs = torch.randn(sum(self.shards), FEATURES, generator=generator).to(self.dtype)
        targets = torch.randn(sum(self.shards), 2, generator=generator).to(self.dtype)
        outputs, wanted = [], []
        for rank in ranks:
            rows = slice(sum(self.shards[:rank]), sum(self.shards[: rank + 1]))
            branch = self.branches and (step % 3 == 2 or (step % 3 == 1 and rank == 1))
            outputs.append(model(inputs[rows], branch))
            wanted.append(targets[rows])
        loss = nn.functional.mse_loss(torch.cat(outputs), torch.cat(wanted)) / self.parts
        torch.autograd.backward(loss)

    def but(self, **changes: Any) -> Training:
        return replace(self, **changes)
