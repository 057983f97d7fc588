"""What is measured on a GPU: `python -m tests.gpu.benchmarks [DEVICE]`. Each figure is printed as it is there."""

from __future__ import annotations

import dataclasses
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from hpsearch import search
from hpsearch_trainers.digits import CNN, MLP
from hpsearch_trainers.host_memory import to_host
from tests.benchmarks.plain_loop import PlainLoop
from tests.benchmarks.plain_trial import PlainTrial
from tests.gpu.parts import FIGURE, Figure


def measure(device: torch.device, *, rounds: int = 5, trials: int = 16, epochs: int = 5) -> Iterator[Figure]:
    """Measure one after the other.

    Args:
        device: Where.
        rounds: How often each is measured, for the median.
        trials: Of the sweeps.
        epochs: Of each of their trials.
    """
    for kind in (MLP, CNN):
        yield from _epochs(kind, device, rounds)
    yield from _copies(device, rounds)
    yield from _sweeps(device, trials, epochs)


def _epochs(kind: type[MLP | CNN], device: torch.device, rounds: int) -> Iterator[Figure]:
    """Measure an epoch of a Trainer, and of a loop written by hand for the same model."""
    params = {"batch_size": 128}
    name = f"an epoch of the digits {kind.__name__}"
    yield Figure(f"{name}, Trainer", 1e3 * _median(kind(PlainTrial(params)).step, device, rounds), "ms")
    parts = kind(PlainTrial(params)).parts
    assert parts.validation is not None
    moved: dict[str, Any] = {
        of: tuple(tensor.to(device) for tensor in getattr(parts, of)) for of in ("train", "validation")
    }
    with device:  # the loop makes its sums and its order of rows there
        plain = PlainLoop(dataclasses.replace(parts, **moved)).epoch
        yield Figure(f"{name}, plain loop", 1e3 * _median(plain, device, rounds), "ms")


def _copies(device: torch.device, rounds: int) -> Iterator[Figure]:
    """Measure copies to the host, as messages and checkpoints take them."""
    tensor = torch.ones(1 << 24, device=device)
    for name, copy in (("pinned", lambda: to_host([tensor])), ("pageable", lambda: tensor.to("cpu", copy=True))):
        yield Figure(f"to {name} host memory", tensor.nbytes / _median(copy, device, rounds) / 1e9, "GB/s")


def _sweeps(device: torch.device, trials: int, epochs: int) -> Iterator[Figure]:
    """Measure a sweep whose trials run one at a time, and as lanes."""
    gpus = 1 if device.type == "cuda" else 0
    ways: tuple[tuple[str, dict[str, Any]], ...] = (
        ("one at a time", {}),
        ("as lanes", {"trials_per_worker": trials, "fuse": "rounding"}),
    )
    for name, way in ways:
        with tempfile.TemporaryDirectory(prefix="hpsearch-gpu-sweep-") as folder:
            began = time.perf_counter()
            search(
                MLP,
                parameters={"lr": {"min": 0.01, "max": 0.2}},
                metric={"name": "accuracy", "goal": "maximize"},
                max_iter=epochs,
                run_cap=trials,
                resources={"gpus_per_worker": gpus, **way},
                backend="inline",
                directory=Path(folder) / "study",
            )
            yield Figure(f"{trials} digits trials of {epochs} epochs, {name}", time.perf_counter() - began, "s")


def _median(work: Callable[[], object], device: torch.device, rounds: int) -> float:
    times = []
    for _ in range(rounds + 1):
        began = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:])  # the first one loads what it needs


if __name__ == "__main__":
    for figure in measure(torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")):
        print(f"{FIGURE}{figure.name}\t{figure.value}\t{figure.unit}", flush=True)
