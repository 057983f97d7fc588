"""Whether a group's CUDA tensors can go through NCCL, or why they go through pinned host memory instead.

Every rank gathers what it knows of itself; all ranks look at the same facts, so all come to the same answer.

Ranks that share one GPU are what NCCL refused until 2.30. Since then it takes them where `NCCL_MULTI_RANK_GPU_ENABLE=1`
stands in the environment, as an experiment; NVLink SHARP must not be demanded then, and each rank should keep to few
thread blocks, for kernels of all ranks must fit on the GPU at once. Ranks that are threads of one process and share a
GPU are left to host memory: one rank's kernel would wait for a peer whose thread waits for the GPU to be idle.
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
from hpsearch_comm.errors import RefusedError

_SHARING_VARIABLE = "NCCL_MULTI_RANK_GPU_ENABLE"
_SHARING_VERSION = 23000
_SHARED_CTAS = 16


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What the others must know of one rank's GPU and NCCL, gathered as what `asdict` gives."""

    gpu: str
    """The GPU's name, the same from every process: its UUID, or the machine and the place on its bus."""
    bus: str
    """The machine and the place on its bus: NCCL takes the parts of a divided GPU for one."""
    process: str
    """The machine and the process."""
    nccl: int
    """NCCL's version, such as 23203; 0 for a torch without it."""
    problem: str | None = None
    """Why this rank can't use NCCL, whatever the others have."""
    shares: bool = False
    """Whether ranks may share a GPU, by NCCL_MULTI_RANK_GPU_ENABLE."""
    sharp: bool = False
    """Whether NCCL_NVLS_ENABLE demands NVLink SHARP, which ranks that share a GPU can't have."""

    @classmethod
    def from_json(cls, values: object) -> DeviceFacts:
        """Read what another rank has sent.

        Raises:
            RefusedError: It isn't that.
        """
        try:
            facts = cls(**values)  # type: ignore[arg-type]
            is_valid = isinstance(facts.nccl, int) and all(isinstance(text, str) for text in (facts.gpu, facts.bus))
        except TypeError:
            is_valid = False
        if not is_valid:
            raise RefusedError(f"expected what a rank knows of its GPU, got {str(values)[:200]!r}")
        return facts


def local_facts(device: torch.device, environ: Mapping[str, str] | None = None) -> DeviceFacts:
    """Gather what there is to know of this rank. Never raises: what is wrong stands in `problem`.

    Args:
        device: The CUDA device that the rank computes on; with its number.
        environ: In place of the process's environment variables.
    """
    environ = os.environ if environ is None else environ
    machine = _machine()
    process = f"{machine}/{_link('/proc/self/ns/pid')}/{os.getpid()}"
    problem = nccl_problem()
    if not torch.cuda.is_available():
        return DeviceFacts("", "", process, 0, problem)
    properties: Any = torch.cuda.get_device_properties(device)
    bus = f"{machine}/{_bus_id(properties, device.index, environ)}"
    # A driver's UUID is the same from every container; torch gives it since 2.5.
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
    """Return why these ranks can't use NCCL together; None where they can.

    Args:
        facts: Of every rank, in the order of ranks.
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
    """Return the number of thread blocks that a kernel of NCCL may take at most; None for NCCL's own choice.

    Where ranks share a GPU, their kernels wait for each other, so all must have a place on it at once: 16 blocks for
    all ranks of a GPU together leave room even on a small one.
    """
    most = max((len(ranks) for ranks in _sharers(facts)), default=1)
    return None if most == 1 else max(1, _SHARED_CTAS // most)


def _sharers(facts: Sequence[DeviceFacts]) -> list[list[int]]:
    """Return the ranks of each GPU that has several."""
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
    # Older versions of torch don't tell: the number that the driver gives the device.
    visible = [entry.strip() for entry in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if entry.strip()]
    return visible[index] if index < len(visible) else str(index)
