"""Trainings in which a rank is killed; called on the ranks of process_ranks."""

from __future__ import annotations

import os
import signal
from typing import Any

import torch
import torch._dynamo  # which optimizers import when the first is made: here it is there before ranks are forked
from torch import nn

from hpsearch_comm import Group
from hpsearch_comm.data_parallel import DataParallel, convert_sync_batchnorm
from tests.comm.data_parallel.branching_model import Training


def trains(group: Group) -> list[Any]:
    """Train to the end; return what every rank must have alike."""
    training = Training((5, 2), branches=True, parts=2, optimizer="adam", steps=20)
    return [parameter.tolist() for parameter in training.run(group)]


def killed_in_backward(group: Group, victim: int, step: int, overlap: bool, weighted: bool) -> str:
    """The victim kills itself when the gradient of the middle layer arrives."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 8), nn.Linear(8, 2))
    convert_sync_batchnorm(model, group)
    wrapped = DataParallel(model, group, bucket_mb=1e-5, overlap=overlap, weighted=weighted)
    middle: Any = model[2]
    for number in range(step + 2):
        if number == step and group.rank == victim:
            middle.weight.register_post_accumulate_grad_hook(lambda _: os.kill(os.getpid(), signal.SIGKILL))
        wrapped.zero_grad()
        if weighted:
            wrapped.set_weight(1 + group.rank)
        torch.autograd.backward(wrapped(torch.randn(3, 4)).sum())
    return "nobody died"


def killed_within_join(group: Group, victim: int) -> str:
    """The victim dies when the others have run out of batches and only take part in what it does."""
    wrapped = DataParallel(nn.Linear(4, 2), group)
    with wrapped.join():
        for number in range(4 if group.rank == victim else 1):
            if number == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            torch.autograd.backward(wrapped(torch.randn(3, 4)).sum())
    return "nobody died"
