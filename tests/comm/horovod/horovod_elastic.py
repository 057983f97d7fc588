"""Trainings of hpsearch_comm.horovod that go on behind failures; each function runs on all ranks at once."""

from __future__ import annotations

import os
import signal
from typing import Any

import torch
from torch import nn

import hpsearch_comm as comm
import hpsearch_comm.horovod as hvd
from tests.comm.horovod.horovod_training import difference, loss_of, network

_STEPS = 8


def _trained(failing: dict[int, str], commit_every: int, forget: str = "before") -> tuple[nn.Module, list[str]]:
    """Train a network; before these steps ranks fail, each once. Gradients are forgotten before or behind each step."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    state = hvd.elastic.TorchState(model, optimizer, step=0, seen=[])
    told: list[str] = []
    state.register_reset_callbacks([lambda: told.append(f"reset at {state.step}")])

    @hvd.elastic.run
    def train(state: Any) -> str:
        while state.step < _STEPS:
            _fail(failing.pop(state.step, ""), model)
            if forget == "before":
                optimizer.zero_grad()
            loss_of(model, hvd.rank(), state.step).backward()
            optimizer.step()
            if forget == "behind":
                optimizer.zero_grad()
            state.seen.append(state.step)
            state.step += 1
            if state.step % commit_every == 0:
                state.commit()
        return "done"

    assert train(state) == "done"
    assert state.seen == list(range(_STEPS))
    return model, told


def _fail(how: str, model: Any) -> None:
    if how == "disagree":
        hvd.allreduce(torch.ones(1 + hvd.rank()), name="unlike")
    elif how == "within backward" and hvd.rank() == 1:
        # Begins the reduction of some gradients, and leaves: with all of them the others might end their step before.
        model[-1](torch.ones(5, 8)).sum().backward()
        hvd.shutdown()
        raise hvd.HorovodInternalError("this rank leaves")
    elif how == "leave" and hvd.rank() == 1:
        hvd.shutdown()
        raise hvd.HorovodInternalError("this rank leaves")


def goes_on(failing: dict[str, str], commit_every: int, forget: str) -> list[Any]:
    undisturbed, _ = _trained({}, 1)
    model, told = _trained({int(step): how for step, how in failing.items()}, commit_every, forget)
    return [difference(model, undisturbed), told]


def gives_up() -> list[Any]:
    calls: list[int] = []
    state = hvd.elastic.ObjectState(step=0)

    @hvd.elastic.run
    def train(state: Any) -> None:
        calls.append(state.step)
        state.step += 1
        if len(calls) == 2:
            state.commit()
        hvd.allreduce(torch.ones(1 + hvd.rank()), name="unlike")

    try:
        train(state)
    except hvd.HorovodInternalError as error:
        return [calls, str(error), hvd.allreduce(torch.ones(1), op=hvd.Sum).item()]
    raise AssertionError("no error")


def passes_other_errors_on() -> list[str]:
    calls: list[str] = []

    @hvd.elastic.run
    def train(state: Any, word: str, *, other: str) -> None:
        calls.append(word)
        if word == "missing":
            hvd.allreduce(torch.ones(1), op=hvd.Adasum, name="of three")
        raise KeyError(word + other)

    kinds = []
    for word in ("a", "missing"):
        try:
            train(hvd.elastic.ObjectState(), word, other="b")
        except Exception as error:
            kinds.append(type(error).__name__)
    return kinds + calls


def begins_alike() -> list[Any]:
    """Each rank has another state, of which rank 0's counts."""
    rank = hvd.rank()
    model = nn.BatchNorm1d(2)
    for number, tensor in enumerate(model.state_dict().values()):
        tensor.fill_(10 * rank + number)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1 + rank)
    if rank:
        model(torch.ones(3, 2)).sum().backward()
        optimizer.step()
    sampler = hvd.elastic.ElasticSampler(range(12), shuffle=False)
    sampler.record_batch(0, rank + 1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 9)
    scheduler.last_epoch = 3 + rank
    state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=rank, history=[rank], scheduler=scheduler)
    state.epoch += 5
    state.sync()
    synced = [
        [tensor.flatten()[0].item() for tensor in model.state_dict().values()],
        optimizer.param_groups[0]["lr"],
        len(optimizer.state),
        sampler.state_dict(),
        state.epoch,
        list(state.history),
        scheduler.last_epoch,
    ]
    state.epoch, model.weight.data[:] = 99, 99.0
    state.history.append(99)
    sampler.set_epoch(3)
    scheduler.last_epoch = 8
    state.restore()
    restored = [state.epoch, state.history, model.weight[0].item(), sampler.epoch, scheduler.last_epoch]
    assert state.scheduler is scheduler
    assert scheduler.optimizer is optimizer
    state.epoch = 50
    state.commit()
    state.epoch = 51
    state.restore()
    return [synced, restored, state.epoch, state.commits]


def loses_a_rank() -> list[str]:
    state = hvd.elastic.ObjectState(step=0)

    @hvd.elastic.run
    def train(state: Any) -> None:
        if hvd.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        hvd.allreduce(torch.ones(1), name="alone")

    try:
        train(state)
    except comm.RendezvousError as error:
        return [str(error)]
    raise AssertionError("no error")


def rows_of(length: int, shuffle: bool, batch: int, done: int) -> list[Any]:
    """Take an epoch's rows, of which some batches are done before it is begun anew."""
    sampler = hvd.elastic.ElasticSampler(range(length), shuffle=shuffle, seed=4)
    rows = list(sampler)
    assert len(rows) == len(sampler)
    first = rows[: batch * done]
    for number in range(done):
        sampler.record_batch(number, batch)
    again = hvd.elastic.ElasticSampler(range(length), shuffle=shuffle, seed=4)
    again.load_state_dict(sampler.state_dict())
    rest = list(again)
    again.set_epoch(1)
    return [first, rest, list(again)]
