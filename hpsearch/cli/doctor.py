"""What `hpsearch doctor` finds out about this machine and its installation, and what to do about it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hpsearch.study.filesystem import filesystem_of, is_network_kind

__all__ = ["Finding", "Level", "diagnose", "format_findings"]

Level = Literal["ok", "warning", "error"]

GIB = 1024**3
LEAST_SHARED_MEMORY = 2 * GIB
LEAST_DISK = 5 * GIB
LEAST_MEMORY = 4 * GIB


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    level: Level
    """`warning`: it works, but not as well as it could; `error`: something will fail."""
    name: str
    text: str
    """What was found and, unless all is well, what to do."""


def diagnose(directory: Path | None = None, search_path: Sequence[str] | None = None) -> list[Finding]:
    """Look at everything; a look that fails is a finding, too.

    Args:
        directory: Where sweeps would be written; the current folder if None.
        search_path: Folders of installed distributions, in place of `sys.path`.
    """
    place = Path.cwd() if directory is None else directory
    looks: list[tuple[str, Callable[[], Iterator[Finding]]]] = [
        ("python", _python),
        ("packages", lambda: _packages(search_path)),
        ("torch", _torch),
        ("nccl", lambda: _nccl(search_path)),
        ("cores", _cores),
        ("memory", _memory),
        ("/dev/shm", _shared_memory),
        ("disk", lambda: _disk(place)),
        ("file system", lambda: _file_system(place)),
    ]
    findings: list[Finding] = []
    for name, look in looks:
        try:
            findings.extend(look())
        except Exception as error:
            text = f"could not be looked at: {type(error).__name__}: {error}; look at it by hand"
            findings.append(Finding("warning", name, text))
    return findings


def format_findings(findings: Sequence[Finding]) -> str:
    """Put the findings into lines, and their number below."""
    width = max((len(finding.name) for finding in findings), default=0)
    lines = [f"{finding.level:<7}  {finding.name:<{width}}  {finding.text}" for finding in findings]
    errors = sum(finding.level == "error" for finding in findings)
    warnings = sum(finding.level == "warning" for finding in findings)
    total = f"{errors} errors, {warnings} warnings" if errors or warnings else "all is well"
    return "\n".join([*lines, "", total, ""])


def _python() -> Iterator[Finding]:
    yield Finding("ok", "python", f"{platform.python_version()} in {sys.prefix}")


def _packages(search_path: Sequence[str] | None) -> Iterator[Finding]:
    """Compare what is installed with what hpsearch requires."""
    from packaging.requirements import Requirement

    itself = _distribution("hpsearch", search_path)
    if itself is None:
        text = "is imported from a folder that was not installed; pip install -e . in its root"
        yield Finding("error", "hpsearch", text)
        return
    yield Finding("ok", "hpsearch", itself.version)
    for line in itself.requires or ():
        requirement = Requirement(line)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        wanted = f"{requirement.name}{requirement.specifier}"
        found = _distribution(requirement.name, search_path)
        if found is None:
            yield Finding("error", requirement.name, f"is missing; pip install '{wanted}'")
        elif not requirement.specifier.contains(found.version, prereleases=True):
            text = f"{found.version}, but hpsearch needs {requirement.specifier}; pip install '{wanted}'"
            yield Finding("error", requirement.name, text)
        else:
            yield Finding("ok", requirement.name, found.version)


def _distribution(name: str, search_path: Sequence[str] | None) -> importlib.metadata.Distribution | None:
    if search_path is None:
        return next(iter(importlib.metadata.distributions(name=name)), None)
    return next(iter(importlib.metadata.distributions(name=name, path=list(search_path))), None)


def _torch() -> Iterator[Finding]:
    import torch

    if torch.version.cuda is None:
        yield Finding("ok", "gpu", "torch is built for CPUs: trials run on CPUs")
        if shutil.which("nvidia-smi"):
            yield Finding(
                "warning",
                "gpu",
                "this machine has NVIDIA's driver, but torch is built for CPUs; "
                "install a CUDA build of torch to use the GPUs",
            )
        return
    if not torch.cuda.is_available():
        text = f"torch is built for CUDA {torch.version.cuda}, but sees no GPU; look at nvidia-smi and "
        yield Finding("warning", "gpu", text + "CUDA_VISIBLE_DEVICES, or go on with CPUs")
        return
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        text = f"{properties.name}, {properties.total_memory / GIB:.0f} GiB, CUDA {torch.version.cuda}"
        yield Finding("ok", f"gpu {index}", text)


def _nccl(search_path: Sequence[str] | None) -> Iterator[Finding]:
    from hpsearch_comm.nccl_wheels import installed_nccl_wheels, nccl_required_by_torch, shared_files

    wheels = installed_nccl_wheels(search_path)
    if not wheels:
        yield Finding("ok", "nccl", "no wheel of it is installed: fine without GPUs")
        return
    names = " and ".join(f"{wheel.name} {wheel.version}" for wheel in wheels)
    shared = shared_files(wheels)
    if not shared:
        yield Finding("ok", "nccl", names)
        return
    keep = nccl_required_by_torch(search_path)
    mend = f"pip uninstall -y {' '.join(wheel.name for wheel in wheels)}"
    if keep is None:
        mend += ", and install the one that fits your torch's CUDA again"
    else:
        mend += f" && pip install '{keep}'"
    text = f"{names} both install {', '.join(shared)}: whichever came last is loaded; {mend}"
    yield Finding("error", "nccl", text)


def _cores() -> Iterator[Finding]:
    usable, present = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    text = f"{usable} of {present}" if usable != present else f"{present}"
    if usable == 1:
        yield Finding("warning", "cores", f"{text}; trials run one after the other: set workers to 1")
    else:
        yield Finding("ok", "cores", text)


def _memory() -> Iterator[Finding]:
    import psutil

    memory = psutil.virtual_memory()
    text = f"{memory.available / GIB:.1f} of {memory.total / GIB:.1f} GiB free"
    if memory.available < LEAST_MEMORY:
        text += "; each worker that has loaded torch takes about 0.5 GiB: start fewer workers"
        yield Finding("warning", "memory", text)
    else:
        yield Finding("ok", "memory", text)


def _shared_memory() -> Iterator[Finding]:
    if not Path("/dev/shm").is_dir():
        text = "is missing: Ray keeps its objects on disk instead, which is slow; mount a tmpfs there"
        yield Finding("warning", "/dev/shm", text)
        return
    total = shutil.disk_usage("/dev/shm").total
    text = f"{total / GIB:.1f} GiB"
    if total < LEAST_SHARED_MEMORY:
        text += ": Ray keeps its objects on disk instead, which is slow; start the container with --shm-size=4g"
        yield Finding("warning", "/dev/shm", text)
    else:
        yield Finding("ok", "/dev/shm", text)


def _disk(place: Path) -> Iterator[Finding]:
    free = shutil.disk_usage(place).free
    text = f"{free / GIB:.1f} GiB free at {place}"
    if free < LEAST_DISK:
        text += "; checkpoints need room: free some, or write the sweep elsewhere with --dir"
        yield Finding("warning", "disk", text)
    else:
        yield Finding("ok", "disk", text)


def _file_system(place: Path) -> Iterator[Finding]:
    kind = filesystem_of(place)
    if is_network_kind(kind):
        text = (
            f"{place} is on a network file system ({kind}): the journal goes without write-ahead log, which "
            "is slower; for many short trials, write the sweep to a local disk with --dir"
        )
        yield Finding("warning", "file system", text)
    else:
        yield Finding("ok", "file system", kind or "unknown")
