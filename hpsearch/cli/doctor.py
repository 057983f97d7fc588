"""`hpsearch doctor`: check this machine and its installation, with advice."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hpsearch.journal.filesystem import filesystem_of, is_network_kind

Level = Literal["ok", "warning", "error"]

GIB = 1024**3
LEAST_SHARED_MEMORY = 2 * GIB
LEAST_DISK = 5 * GIB
LEAST_MEMORY = 4 * GIB


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    level: Level
    """`warning`: hpsearch works, but something could be better; `error`: something will fail."""
    name: str
    text: str
    """The result and, if there is a problem, advice."""


def doctor_arguments(command: argparse.ArgumentParser) -> None:
    """Add no arguments."""


def doctor(args: argparse.Namespace) -> int:
    """Check this machine; return 1 if there is a problem."""
    findings = diagnose()
    print(format_findings(findings))
    return 1 if any(finding.level == "error" for finding in findings) else 0


def diagnose(directory: Path | None = None, search_path: Sequence[str] | None = None) -> list[Finding]:
    """Run all checks. A check that raises an exception is a result, too.

    Args:
        directory: Folder of studies; None: the current folder.
        search_path: Folders of installed distributions, in place of `sys.path`.
    """
    folder = Path.cwd() if directory is None else directory
    looks = {
        "python": _python(),
        "packages": _packages(search_path),
        "torch": _torch(),
        "nccl": _nccl(search_path),
        "cores": _cores(),
        "memory": _memory(),
        "/dev/shm": _shared_memory(),
        "disk": _disk(folder),
        "file system": _file_system(folder),
        "cluster": _cluster(),
    }
    findings: list[Finding] = []
    for name, look in looks.items():
        try:
            findings.extend(look)
        except Exception as error:
            text = f"could not be looked at: {type(error).__name__}: {error}; look at it by hand"
            findings.append(Finding("warning", name, text))
    return findings


def format_findings(findings: Sequence[Finding]) -> str:
    """Format the results as lines, followed by the number of problems."""
    width = max((len(finding.name) for finding in findings), default=0)
    lines = [f"{finding.level:<7}  {finding.name:<{width}}  {finding.text}" for finding in findings]
    errors = sum(finding.level == "error" for finding in findings)
    warnings = sum(finding.level == "warning" for finding in findings)
    total = f"{errors} errors, {warnings} warnings" if errors or warnings else "all is well"
    return "\n".join([*lines, "", total, ""])


def _python() -> Iterator[Finding]:
    yield Finding("ok", "python", f"{platform.python_version()} in {sys.prefix}")


def _packages(search_path: Sequence[str] | None) -> Iterator[Finding]:
    """Compare installed versions with hpsearch's requirements."""
    from packaging.requirements import Requirement

    itself = _distribution("hpsearch", search_path)
    if itself is None:
        text = "is imported from a folder that was not installed; pip install -e . in its root"
        yield Finding("error", "hpsearch", text)
        return
    yield Finding("ok", "hpsearch", itself.version)
    for requirement in map(Requirement, itself.requires or ()):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        name, needed = requirement.name, requirement.specifier
        distribution = _distribution(name, search_path)
        mend = f"pip install '{name}{needed}'"
        if distribution is None:
            yield Finding("error", name, f"is missing; {mend}")
        elif not needed.contains(distribution.version, prereleases=True):
            yield Finding("error", name, f"{distribution.version}, but hpsearch needs {needed}; {mend}")
        else:
            yield Finding("ok", name, distribution.version)


def _distribution(name: str, search_path: Sequence[str] | None) -> importlib.metadata.Distribution | None:
    folders = sys.path if search_path is None else list(search_path)
    return next(iter(importlib.metadata.distributions(name=name, path=folders)), None)


def _torch() -> Iterator[Finding]:
    import torch

    cuda = torch.version.cuda
    if cuda is None:
        yield Finding("ok", "gpu", "torch is built for CPUs: trials run on CPUs")
        if shutil.which("nvidia-smi"):
            text = "this machine has NVIDIA's driver, but torch is built for CPUs; "
            yield Finding("warning", "gpu", f"{text}install a CUDA build of torch to use the GPUs")
    elif not torch.cuda.is_available():
        text = f"torch is built for CUDA {cuda}, but sees no GPU; look at nvidia-smi and CUDA_VISIBLE_DEVICES, "
        yield Finding("warning", "gpu", f"{text}or go on with CPUs")
    else:
        for index in range(torch.cuda.device_count()):
            gpu = torch.cuda.get_device_properties(index)
            yield Finding("ok", f"gpu {index}", f"{gpu.name}, {gpu.total_memory / GIB:.0f} GiB, CUDA {cuda}")


def _nccl(search_path: Sequence[str] | None) -> Iterator[Finding]:
    """Find NCCL's wheels: there is one for each CUDA, and all install libnccl.so.2, so that the last one is loaded."""
    from hpsearch_comm.cuda.nccl import nccl_version, version_text

    folders = sys.path if search_path is None else list(search_path)
    wheels: dict[str, str] = {}
    for distribution in importlib.metadata.distributions(path=folders):
        name = re.sub(r"[-_.]+", "-", distribution.metadata["Name"] or "").lower()
        if re.fullmatch(r"nvidia-nccl-cu\d+", name):
            wheels.setdefault(name, distribution.version)  # Python imports the first one on the path
    torch = next(iter(importlib.metadata.distributions(name="torch", path=folders)), None)
    needed = [re.sub(r"[\s()]|;.*", "", line) for line in (torch.requires if torch else None) or ()]
    keep = next((line for line in needed if line.startswith("nvidia-nccl-cu")), None)
    names = " and ".join(f"{name} {wheels[name]}" for name in sorted(wheels))
    mend = f"pip uninstall -y {' '.join(sorted(wheels))}"
    mend += f" && pip install '{keep}'" if keep else ", and install the one that fits your torch's CUDA again"
    if wheels and keep is not None and re.split("[=<>!~]", keep)[0] not in wheels:
        yield Finding("error", "nccl", f"torch needs {keep}, but {names} is installed; {mend}")
    elif len(wheels) > 1:
        yield Finding("error", "nccl", f"{names} both install libnccl.so.2: whichever came last is loaded; {mend}")
    else:
        loaded = nccl_version()
        uses = f"torch uses {version_text(loaded)}" if loaded else ""
        versions = ", ".join(filter(None, (uses, names)))
        yield Finding("ok", "nccl", versions or "no wheel of it is installed: fine without GPUs")


def _cores() -> Iterator[Finding]:
    usable, present = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    text = f"{usable} of {present}" if usable != present else f"{present}"
    yield _judged("cores", text, usable > 1, "; trials run one after the other: set workers to 1")


def _memory() -> Iterator[Finding]:
    import psutil

    memory = psutil.virtual_memory()
    text = f"{memory.available / GIB:.1f} of {memory.total / GIB:.1f} GiB free"
    advice = "; each worker that has loaded torch takes about 0.5 GiB: start fewer workers"
    yield _judged("memory", text, memory.available >= LEAST_MEMORY, advice)


def _shared_memory() -> Iterator[Finding]:
    slow = "Ray keeps its objects on disk instead, which is slow"
    if not Path("/dev/shm").is_dir():
        yield Finding("warning", "/dev/shm", f"is missing: {slow}; mount a tmpfs there")
        return
    total = shutil.disk_usage("/dev/shm").total
    advice = f": {slow}; start the container with --shm-size=4g"
    yield _judged("/dev/shm", f"{total / GIB:.1f} GiB", total >= LEAST_SHARED_MEMORY, advice)


def _disk(folder: Path) -> Iterator[Finding]:
    free = shutil.disk_usage(folder).free
    advice = "; checkpoints need room: free some, or write the sweep elsewhere with --dir"
    yield _judged("disk", f"{free / GIB:.1f} GiB free at {folder}", free >= LEAST_DISK, advice)


def _file_system(folder: Path) -> Iterator[Finding]:
    kind = filesystem_of(folder)
    if is_network_kind(kind):
        text = (
            f"{folder} is on a network file system ({kind}): the journal goes without write-ahead log, which "
            "is slower; for many short trials, write the sweep to a local disk with --dir"
        )
        yield Finding("warning", "file system", text)
    else:
        yield Finding("ok", "file system", kind or "unknown")


def _cluster() -> Iterator[Finding]:
    """Check whether others may run code in this user's Ray. The check runs in its own process, as it imports Ray."""
    from hpsearch.backends.ray.access import OPEN_CLUSTER, is_loopback, is_open, known_cluster, token_file

    token = token_file()
    if token.is_file() and token.stat().st_mode & 0o077:
        text = f"{token} can be read by other users, who may then run code in your Ray; chmod 600 {token}"
        yield Finding("warning", "token", text)
    address = known_cluster()
    if address is None:
        yield Finding("ok", "cluster", "no cluster: RAY_ADDRESS isn't set, and none was started here")
        return
    answer = is_open(address)
    if answer and not is_loopback(address):
        yield Finding("warning", "cluster", f"the cluster at {address} {OPEN_CLUSTER}")
    elif answer is None:
        yield Finding("warning", "cluster", f"the cluster at {address} doesn't answer; look at it with `ray status`")
    else:
        how = "is to be reached from this machine alone" if answer else "asks for a token"
        yield Finding("ok", "cluster", f"the cluster at {address} {how}")


def _judged(name: str, text: str, enough: bool, advice: str) -> Finding:
    """Return a measurement as a finding: a warning with advice if it isn't enough."""
    return Finding("ok", name, text) if enough else Finding("warning", name, text + advice)
