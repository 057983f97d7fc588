"""What `make gpu` runs, and the table of what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.run_parts import Counts

FIGURE = "figure\t"
"""Begins a line of the benchmarks' output with a name, a number and a unit, divided by tabs."""


@dataclass(frozen=True, slots=True)
class Part:
    """A process of Python.

    Args:
        name: Of its row.
        words: What Python is called with.
        seconds: It may take, and what the parts before it have left of theirs.
        needs: Modules without which it isn't run.
        tests: Whether it is pytest.
    """

    name: str
    words: tuple[str, ...]
    seconds: int
    needs: tuple[str, ...] = ()
    tests: bool = True


def _tests(name: str, seconds: int, needs: tuple[str, ...], *places: str) -> Part:
    return Part(name, ("-m", "pytest", "-m", "gpu", *places), seconds, ("pytest", *needs))


_ALL = ("pytest_timeout", "hypothesis", "psutil", "numpy", "sklearn")

PARTS: tuple[Part, ...] = (
    _tests("comm", 150, (), "tests/comm"),
    _tests("trainers", 90, _ALL, "tests/trainers/test_device_placement.py"),
    _tests("lanes", 90, _ALL, "tests/trainers/lanes"),
    _tests(
        "sweeps",
        180,
        (*_ALL, "ray", "optuna", "tensorboard"),
        "tests/hpsearch/test_on_gpus.py",
        "tests/hpsearch/run/test_rounded_sweeps.py",
    ),
    Part("benchmarks", ("-m", "tests.gpu.benchmarks"), 80, ("sklearn", "optuna"), tests=False),
)
"""In this order, which together take less than ten minutes."""

STAND_IN_PARTS: tuple[Part, ...] = (
    Part(
        "comm, Gloo for NCCL",
        (
            *("-m", "pytest", "-m", "not gpu", "tests/comm/cuda"),
            *("tests/comm/torch_backend/test_torch_devices.py", "tests/comm/horovod/test_horovod_cuda.py"),
        ),
        400,
        ("pytest", *_ALL),
    ),
    Part(
        "trainers, stand-in device",
        (
            *("-m", "pytest", "-m", "not gpu", "tests/trainers/test_device_placement.py"),
            "tests/trainers/strategies/test_strategies_on_a_device.py",
        ),
        180,
        ("pytest", *_ALL),
    ),
)
"""What is run of it on a machine without a GPU: the same code on tensors that are on the CPU."""


@dataclass(frozen=True, slots=True)
class Figure:
    """What a benchmark has measured."""

    name: str
    value: float
    unit: str


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a part."""

    part: Part
    ended: str
    """`ok`, or what went wrong."""
    counts: Counts | None = None
    """Of its tests."""
    figures: Sequence[Figure] = ()
    seconds: float = 0.0


def without_gpu(python: str, torch: str, cuda: str | None, gpus: int) -> str | None:
    """Return why only stand-ins can be run, in one sentence; None where a GPU is there.

    Args:
        python: The interpreter.
        torch: Version of its torch.
        cuda: Version of CUDA that it is built for; None where it is built for CPUs.
        gpus: How many it sees.
    """
    if cuda is None:
        why = f"has torch {torch}, which is built for CPUs"
    elif gpus == 0:
        why = f"sees no GPU with torch {torch}: look at nvidia-smi and CUDA_VISIBLE_DEVICES"
    else:
        return None
    return (
        f"STAND-IN, no GPU: {python} {why}. With a GPU, and a Python whose torch is built for CUDA (PYTHON=...), this "
        "runs what is marked gpu, and the benchmarks"
    )


def deadlines(parts: Sequence[Part]) -> list[float]:
    """Return when each part must have ended, in seconds after the first began: what one leaves the next ones have."""
    ends, total = [], 0.0
    for part in parts:
        total += part.seconds
        ends.append(total)
    return ends


def figures_in(output: str) -> list[Figure]:
    """Return the figures in the output of benchmarks."""
    lines = [line.removeprefix(FIGURE).split("\t") for line in output.splitlines() if line.startswith(FIGURE)]
    return [Figure(name, float(value), unit) for name, value, unit in lines]


def went_well(results: Sequence[Result]) -> bool:
    """Return whether all parts ran, nothing failed in any, and in each that has tests some ran."""
    return all(
        result.ended == "ok" and (result.counts is None or (result.counts.passed > 0 and not result.counts.failed))
        for result in results
    )


def table(results: Sequence[Result], machine: str) -> str:
    """Return what ran and what came of it, a row for each part and for each figure, and the tests that failed.

    Args:
        results: Of the parts.
        machine: What it ran on.
    """
    rows: list[Sequence[str]] = [("what", "passed", "failed", "skipped", "seconds", "ended")]
    for result in results:
        of_tests = ["", "", ""]
        if result.counts is not None:
            of_tests = [str(one) for one in (result.counts.passed, len(result.counts.failed), result.counts.skipped)]
        rows.append([result.part.name, *of_tests, f"{result.seconds:.0f}", result.ended])
    for result in results:
        rows += [[f"  {figure.name}", "", "", "", f"{figure.value:.4g}", figure.unit] for figure in result.figures]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            [
                row[0].ljust(widths[0]),
                *(one.rjust(width) for one, width in zip(row[1:5], widths[1:5], strict=True)),
                row[5],
            ]
        )
        for row in rows
    ]
    failed: Mapping[str, str] = {
        test: how for result in results if result.counts is not None for test, how in result.counts.failed.items()
    }
    return "\n".join(
        [machine, *(line.rstrip() for line in lines), *(f"FAILED {test} - {how}" for test, how in failed.items())]
    )
