"""How much faster two workers train than one: a `Trainer` of ours, and a plain loop with DistributedDataParallel.

The ranks are processes of one thread each. All contenders live in both of them and take turns, an epoch each: one
worker alone, both with the batch divided (`global`) or with a batch for each (`per_worker`), the same with torch's
DistributedDataParallel over Gloo, and both side by side without averaging, which is what the machine allows.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from hpsearch_comm import Group, new_secret
from hpsearch_trainers.parts import Parts
from hpsearch_trainers.shards import Shard
from hpsearch_trainers.trainer import Trainer
from tests.benchmarks.collectives.collective import in_turn
from tests.benchmarks.collectives.contenders import Gloo
from tests.benchmarks.collectives.meeting import Blackboard
from tests.benchmarks.figures import Figure

WORKERS = 2
BATCH = 128
STEPS = 10
"""Of one worker's epoch."""
ROWS = BATCH * STEPS

_TURNS = 7
"""Of each contender in a round: what else runs on a machine comes and goes within seconds, so turns are short."""
_ALONE, _OURS, _DDP, _APART = "one worker", "ours", "DDP over Gloo", "no averaging"
_BATCHES = {"global": "one batch divided", "per_worker": "a batch for each"}
_Contender = tuple[str, str]
_CONTENDERS: list[_Contender] = [(_ALONE, "global"), *((who, how) for how in _BATCHES for who in (_OURS, _DDP, _APART))]


def measure(rounds: int) -> list[Figure]:
    """Return how many rows each contender trains on in a second, epoch by epoch."""
    rates: dict[_Contender, list[float]] = {contender: [] for contender in _CONTENDERS}
    with _ranks() as ends:
        for contender in _CONTENDERS:
            _turn(ends, contender)  # torch loads some things late, and buckets are made in the first pass
        for number in range(rounds * _TURNS):
            for contender in in_turn(_CONTENDERS, number):
                rates[contender].append(ROWS / _turn(ends, contender))
    alone = rates[_ALONE, "global"]
    figures = [Figure("a step of one worker", "ms", [1e3 * BATCH / rate for rate in alone], "above 20")]
    for how, what in _BATCHES.items():
        for who, target in ((_OURS, "ratio at least 1.7"), (_DDP, ""), (_APART, "")):
            name = f"{WORKERS} workers, {what}: {who}"
            figures.append(Figure(name, "rows/s", rates[who, how], target, _ALONE, alone))
        name = f"{WORKERS} workers, {what}: {_OURS}"
        figures.append(Figure(name, "rows/s", rates[_OURS, how], "ratio at least 1", _DDP, rates[_DDP, how]))
    return figures


def _turn(ends: Sequence[Connection], contender: _Contender) -> float:
    """Let the ranks train for an epoch; return the seconds until the last is done."""
    began = time.perf_counter()
    for end in ends:
        end.send(contender)
    for end in ends:
        end.recv()
    return time.perf_counter() - began


@contextlib.contextmanager
def _ranks() -> Iterator[list[Connection]]:
    """Start the ranks, and end them."""
    context = multiprocessing.get_context("spawn")
    ends: list[Connection] = []
    with tempfile.TemporaryDirectory(prefix="hpsearch-bench-") as directory:
        processes = []
        secret = new_secret()
        for rank in range(WORKERS):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(rank, there, Path(directory), secret), daemon=True)
            process.start()
            there.close()  # so that a rank that fails is an EOFError here
            ends.append(here)
            processes.append(process)
        try:
            yield ends
        except BaseException:
            for process in processes:
                process.terminate()
            raise
        finally:
            for end in ends:
                end.close()
            for process in processes:
                process.join()


def _serve(rank: int, driver: Connection, directory: Path, secret: bytes) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    rendezvous = Blackboard(directory, "ours")
    with (
        contextlib.closing(Gloo(directory, rank, WORKERS, 0)),
        Group(rank, WORKERS, rendezvous=rendezvous, secret=secret, interface="lo") as group,
    ):
        epochs = _epochs(group)
        with contextlib.suppress(EOFError):  # the driver has seen enough
            while True:
                epochs[driver.recv()]()
                driver.send("done")


def _epochs(group: Group) -> dict[_Contender, Callable[[], object]]:
    """Return the function that runs an epoch on this rank, by contender."""
    alone = _Convolutions(_Trial({"rows": ROWS, "batch_size": BATCH}))
    epochs: dict[_Contender, Callable[[], object]] = {
        (_ALONE, "global"): alone.step if group.rank == 0 else lambda: None
    }
    for how in _BATCHES:
        ours = _Convolutions(_Trial({"rows": ROWS, "batch_size": BATCH}, group, {"batch": how}))
        own = BATCH if how == "per_worker" else BATCH // WORKERS
        epochs[_OURS, how] = ours.step
        epochs[_DDP, how] = _Distributed(own * WORKERS, group.rank).step
        epochs[_APART, how] = _Convolutions(_Trial({"rows": ROWS // WORKERS, "batch_size": own})).step
    return epochs


@dataclass(frozen=True, slots=True)
class _Trial:
    params: Mapping[str, Any]
    group: Group | None = None
    scaling: Mapping[str, Any] = field(default_factory=dict)


class _Convolutions(Trainer):
    """Three convolutions, 53,000 parameters, on images of 28 x 28 pixels."""

    def build(self, params: Mapping[str, Any]) -> Parts:
        model = _network()
        train = _images(params["rows"])
        return Parts(model, _sgd(model), functional.cross_entropy, train, batch_size=params["batch_size"])


class _Distributed:
    """The same training as torch's users write it."""

    def __init__(self, batch: int, rank: int) -> None:
        self._images, self._labels = _images(ROWS)
        self._shard = Shard(ROWS, batch, 0, rank, WORKERS)
        # Its quickest setting: gradients are views into its buckets, as ours are.
        self._model = DistributedDataParallel(_network(), gradient_as_bucket_view=True)
        self._optimizer = _sgd(self._model)

    def step(self) -> None:
        for rows in self._shard.epoch(0):
            self._optimizer.zero_grad()
            loss = functional.cross_entropy(self._model(self._images[rows]), self._labels[rows])
            loss.backward()  # type: ignore[no-untyped-call]
            self._optimizer.step()


def _network() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 24, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(24, 48, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(48, 96, 3, padding=1), nn.ReLU(), nn.MaxPool2d(7)),
        *(nn.Flatten(), nn.Linear(96, 10)),
    )


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)


def _images(rows: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(rows, 1, 28, 28, generator=generator)
    return images, torch.randint(10, (rows,), generator=generator)
