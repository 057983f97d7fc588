"""Decide whether a group's CUDA tensors can use NCCL, or why they use pinned host memory instead.

Every rank gathers facts about itself. All ranks evaluate the facts of all ranks, so all reach the same decision.

Before 2.30, NCCL refused ranks that share one GPU. Since then it supports them experimentally with
`NCCL_MULTI_RANK_GPU_ENABLE=1` in the environment. NVLink SHARP must not be required then, and each rank should use few
thread blocks, because the kernels of all ranks must fit on the GPU at the same time. Ranks that are threads of one
process and share a GPU use host memory: otherwise one rank's kernel would wait for a peer whose thread waits until the
GPU is idle.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hpsearch_comm.cuda.nccl import nccl_problem, nccl_version, version_text

_SHARING_VARIABLE = "NCCL_MULTI_RANK_GPU_ENABLE"
_SHARING_VERSION = 23000
_SHARED_CTAS = 16


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """Facts about one rank's GPU and NCCL, sent to the other ranks as the dict that `asdict` returns."""

    gpu: str
    """Identifier of the GPU, the same in every process: its UUID, or the machine and its bus ID."""
    bus: str
    """The machine and the GPU's bus ID: NCCL treats the parts of a partitioned GPU (MIG) as one GPU."""
    process: str
    """The machine and the process."""
    nccl: int
    """NCCL's version, such as 23203; 0 if torch has no NCCL."""
    problem: str | None = None
    """Why this rank can't use NCCL, independent of the other ranks; None if it can."""
    shares: bool = False
    """Whether NCCL_MULTI_RANK_GPU_ENABLE allows ranks to share a GPU."""
    sharp: bool = False
    """Whether NCCL_NVLS_ENABLE requires NVLink SHARP, which ranks that share a GPU can't use."""


def local_facts(device: torch.device, environ: Mapping[str, str] | None = None) -> DeviceFacts:
    """Gather the facts about this rank. It never raises: `problem` describes errors.

    Args:
        device: The CUDA device that the rank computes on, with an index.
        environ: Replaces the process's environment variables.
    """
    environ = os.environ if environ is None else environ
    machine = _machine()
    process = f"{machine}/{_link('/proc/self/ns/pid')}/{os.getpid()}"
    problem = nccl_problem()
    if not torch.cuda.is_available():
        return DeviceFacts("", "", process, 0, problem)
    properties: Any = torch.cuda.get_device_properties(device)
    bus = f"{machine}/{_bus_id(properties, device.index, environ)}"
    # The driver's UUID is the same in every container; torch provides it since 2.5.
    gpu = str(getattr(properties, "uuid", "") or bus)
    return DeviceFacts(
        gpu,
        bus,
        process,
        nccl_version(),
        problem,
        environ.get(_SHARING_VARIABLE, "").strip() not in ("", "0"),
        environ.get("NCCL_NVLS_ENABLE", "").strip() == "1",
    )


def can_use_nccl(facts: Sequence[DeviceFacts]) -> str | None:
    """Return why these ranks can't use NCCL together; None if they can.

    Args:
        facts: The facts of every rank, by rank.
    """
    for rank, fact in enumerate(facts):
        if fact.problem is not None:
            return f"rank {rank}: {fact.problem}"
    for rank, fact in enumerate(facts):
        if fact.nccl != facts[0].nccl:
            return (
                f"every rank must load the same NCCL, but rank 0 has {version_text(facts[0].nccl)} "
                f"and rank {rank} has {version_text(fact.nccl)}"
            )
    for ranks in _sharers(facts):
        reason = _why_not_shared(facts, ranks)
        if reason is not None:
            return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]} share a GPU, {reason}"
    return None


def most_ctas(facts: Sequence[DeviceFacts]) -> int | None:
    """Return the maximum number of thread blocks of an NCCL kernel; None for NCCL's own choice.

    If ranks share a GPU, their kernels wait for each other, so all must fit on it at the same time. 16 blocks for all
    ranks of a GPU together fit even on a small GPU.
    """
    most = max((len(ranks) for ranks in _sharers(facts)), default=1)
    return None if most == 1 else max(1, _SHARED_CTAS // most)


def _sharers(facts: Sequence[DeviceFacts]) -> list[list[int]]:
    """Return, for each GPU with several ranks, its ranks."""
    ranks_by_gpu: defaultdict[str, list[int]] = defaultdict(list)
    for rank, fact in enumerate(facts):
        ranks_by_gpu[fact.bus].append(rank)
        if fact.gpu != fact.bus:
            ranks_by_gpu[fact.gpu].append(rank)
    shared = {tuple(ranks) for ranks in ranks_by_gpu.values() if len(ranks) > 1}
    return [list(ranks) for ranks in sorted(shared)]


def _why_not_shared(facts: Sequence[DeviceFacts], ranks: Sequence[int]) -> str | None:
    if len({facts[rank].process for rank in ranks}) < len(ranks):
        return "and some of them are threads of one process: NCCL needs a process for each"
    version = facts[ranks[0]].nccl
    if version < _SHARING_VERSION:
        return f"which needs NCCL {version_text(_SHARING_VERSION)} or newer; {version_text(version)} is loaded"
    for rank in ranks:
        if not facts[rank].shares:
            return f"which needs {_SHARING_VARIABLE}=1 in the environment; rank {rank} doesn't have it"
        if facts[rank].sharp:
            return f"which NCCL_NVLS_ENABLE=1 of rank {rank} forbids: unset it"
    return None


def _machine() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return os.uname().nodename


def _link(path: str) -> str:
    try:
        return str(Path(path).readlink())
    except OSError:
        return ""


def _bus_id(properties: Any, index: int, environ: Mapping[str, str]) -> str:
    parts = [getattr(properties, f"pci_{name}_id", None) for name in ("domain", "bus", "device")]
    if all(isinstance(part, int) for part in parts):
        return ":".join(f"{part:x}" for part in parts)
    # Older versions of torch don't provide the bus ID: use the device's index in the driver.
    visible = [entry.strip() for entry in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if entry.strip()]
    return visible[index] if index < len(visible) else str(index)
