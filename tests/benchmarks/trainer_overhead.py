"""What the Trainer adds to a training: against a plain PyTorch loop of the same model, data and optimizer."""

from __future__ import annotations

import os
import struct
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import torch

from hpsearch_trainers import digits, fashion_mnist
from hpsearch_trainers.char_lm import CharLM
from hpsearch_trainers.trainer import Trainer
from tests.benchmarks.figures import Figure
from tests.benchmarks.plain_loop import PlainLoop
from tests.benchmarks.plain_trial import PlainTrial

_IMAGES = {"train": 1280, "t10k": 256}
_CHARACTERS = 20_000

_Workload = tuple[str, type[Trainer], Mapping[str, Any], int]
"""Name, trainer, parameters, and the epochs of each side in a round."""


def measure(rounds: int) -> list[Figure]:
    """Train epoch by epoch in turns, in this process and one thread of it, as a worker of one CPU does.

    What is taken is CPU time: nothing here waits, and the time on the wall tells of the neighbours as well.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with made_files() as folder:
            return [_compare(workload, rounds) for workload in _workloads(folder)]
    finally:
        torch.set_num_threads(threads)


def _workloads(folder: Path) -> list[_Workload]:
    text = {"data": folder / "text", "length": 64, "features": 64}
    return [
        ("digits MLP, batch 64", digits.MLP, {"batch_size": 64}, 60),
        ("CNN on 28 x 28, batch 128", fashion_mnist.CNN, {"data": folder}, 8),
        ("character transformer, batch 32", CharLM, text, 8),
    ]


def _compare(workload: _Workload, rounds: int) -> Figure:
    name, trainer, params, epochs = workload
    trial = PlainTrial(params)
    ours = trainer(trial).step
    plain = PlainLoop(trainer(trial).parts).epoch
    ours()  # both load late what torch does
    plain()
    mine: list[float] = []
    other: list[float] = []
    for _ in range(rounds):
        turns = [(_milliseconds(ours), _milliseconds(plain)) for _ in range(epochs)]
        mine.append(median(turn[0] for turn in turns))
        other.append(median(turn[1] for turn in turns))
    return Figure(f"an epoch, {name}", "ms", mine, "ratio at most 1.05", "a plain loop", other)


def _milliseconds(epoch: Callable[[], object]) -> float:
    began = time.process_time()
    epoch()
    return 1e3 * (time.process_time() - began)


@contextmanager
def made_files() -> Iterator[Path]:
    """Write images and a text at random into a folder, which is the cache of data too."""
    before = os.environ.get("XDG_CACHE_HOME")
    generator = torch.Generator().manual_seed(0)
    with tempfile.TemporaryDirectory(prefix="hpsearch-bench-data-") as name:
        folder = Path(name)
        for kind, count in _IMAGES.items():
            for part, shape, most in (("images-idx3", (count, 28, 28), 256), ("labels-idx1", (count,), 10)):
                values = torch.randint(most, shape, generator=generator, dtype=torch.uint8)
                head = struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, len(shape), *shape)
                (folder / f"{kind}-{part}-ubyte").write_bytes(head + values.numpy().tobytes())
        characters = torch.randint(ord("a"), ord("z") + 1, (_CHARACTERS,), generator=generator)
        (folder / "text").write_text("".join(map(chr, characters.tolist())), encoding="utf-8")
        os.environ["XDG_CACHE_HOME"] = name
        try:
            yield folder
        finally:
            del os.environ["XDG_CACHE_HOME"]
            if before is not None:
                os.environ["XDG_CACHE_HOME"] = before
