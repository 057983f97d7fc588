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
import secrets
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hpsearch_comm.cuda.nccl import nccl_problem, nccl_version, version_text

_SHARING_VARIABLE = "NCCL_MULTI_RANK_GPU_ENABLE"
_SHARING_VERSION = 23000
_SHARED_CTAS = 16
_PROGRAM = secrets.token_hex(8)
"""With the process ID it identifies a process, also among processes of other containers and machines."""


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """Facts about one rank's GPU and NCCL, sent to the other ranks as the dict that `asdict` returns."""

    gpu: str
    """The GPU's UUID, which the driver gives it: the same in every process and container."""
    process: str
    """Identifier of the process."""
    nccl: int
    """NCCL's version, such as 23203; 0 if torch has no NCCL."""
    problem: str | None = None
    """Why this rank can't use NCCL, independent of the other ranks; None if it can."""
    shares: bool = False
    """Whether NCCL_MULTI_RANK_GPU_ENABLE allows ranks to share a GPU."""
    sharp: bool = False
    """Whether NCCL_NVLS_ENABLE requires NVLink SHARP, which ranks that share a GPU can't use."""


def local_facts(device: torch.device) -> DeviceFacts:
    """Gather the facts about this rank, which computes on this device. `problem` describes errors."""
    return DeviceFacts(
        str(torch.cuda.get_device_properties(device).uuid) if torch.cuda.is_available() else "",
        f"{_PROGRAM}/{os.getpid()}",
        nccl_version(),
        nccl_problem(),
        os.environ.get(_SHARING_VARIABLE, "").strip() not in ("", "0"),
        os.environ.get("NCCL_NVLS_ENABLE", "").strip() == "1",
    )


def can_use_nccl(facts: Sequence[DeviceFacts]) -> str | None:
    """Return why these ranks can't use NCCL together; None if they can.

    Args:
        facts: The facts of every rank, by rank.
    """
    version = facts[0].nccl
    for rank, fact in enumerate(facts):
        if fact.problem is not None:
            return f"rank {rank}: {fact.problem}"
        if fact.nccl != version:
            return (
                f"every rank must load the same NCCL, but rank 0 has {version_text(version)} "
                f"and rank {rank} has {version_text(fact.nccl)}"
            )
    for ranks in _ranks_by_gpu(facts):
        if len(ranks) > 1 and (reason := _why_not_shared(facts, ranks)) is not None:
            return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]} share a GPU, {reason}"
    return None


def most_ctas(facts: Sequence[DeviceFacts]) -> int | None:
    """Return the maximum number of thread blocks of an NCCL kernel; None for NCCL's own choice.

    If ranks share a GPU, their kernels wait for each other, so all must fit on it at the same time. 16 blocks for all
    ranks of a GPU together fit even on a small GPU.
    """
    most = max(map(len, _ranks_by_gpu(facts)))
    return None if most == 1 else max(1, _SHARED_CTAS // most)


def _ranks_by_gpu(facts: Sequence[DeviceFacts]) -> list[list[int]]:
    ranks: defaultdict[str, list[int]] = defaultdict(list)
    for rank, fact in enumerate(facts):
        ranks[fact.gpu].append(rank)
    return list(ranks.values())


def _why_not_shared(facts: Sequence[DeviceFacts], ranks: Sequence[int]) -> str | None:
    if len({facts[rank].process for rank in ranks}) < len(ranks):
        return "and some of them are threads of one process: NCCL needs a process for each"
    version = facts[0].nccl
    if version < _SHARING_VERSION:
        return f"which needs NCCL {version_text(_SHARING_VERSION)} or newer; {version_text(version)} is loaded"
    for rank in ranks:
        if not facts[rank].shares:
            return f"which needs {_SHARING_VARIABLE}=1 in the environment; rank {rank} doesn't have it"
        if facts[rank].sharp:
            return f"which NCCL_NVLS_ENABLE=1 of rank {rank} forbids: unset it"
    return None
