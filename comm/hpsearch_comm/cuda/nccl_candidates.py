"""Where a libnccl may lie, the best place first.

One process should hold one copy of NCCL: each copy takes memory on the GPU for itself, and their symbols have the same
names. So the copy that torch has loaded already comes before any other; only `HPSEARCH_COMM_NCCL` comes before that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from hpsearch_comm.cuda.nccl_wheels import LIBRARY, NcclWheel, nccl_required_by_torch, shared_files

__all__ = ["VARIABLE", "NcclCandidate", "candidates", "loaded_copies", "wheel_conflict"]

VARIABLE = "HPSEARCH_COMM_NCCL"
"""Names the file of NCCL to use, in place of the search."""


@dataclass(frozen=True, slots=True)
class NcclCandidate:
    """A place where NCCL may be found."""

    path: str
    """Of the file; a bare name is looked up by the dynamic linker."""
    origin: str
    """Who put it there, as errors say it."""


def candidates(
    environ: Mapping[str, str],
    loaded: Sequence[str],
    wheels: Sequence[NcclWheel],
    torch_cuda: str | None,
    torch_folder: Path,
) -> tuple[NcclCandidate, ...]:
    """Give the places to try, in order.

    Args:
        environ: The process's environment variables.
        loaded: Copies that the process has loaded already; see `loaded_copies`.
        wheels: The installed wheels of NCCL.
        torch_cuda: `torch.version.cuda`, such as "12.8"; None for a torch built for CPUs.
        torch_folder: Where the package torch is installed: some builds carry NCCL in its `lib`.
    """
    if chosen := environ.get(VARIABLE):
        return (NcclCandidate(chosen, VARIABLE),)
    found = [NcclCandidate(path, "loaded already, by torch or another package") for path in loaded]
    for wheel in sorted(wheels, key=lambda wheel: _misfit(wheel.cuda, torch_cuda)):
        found += [
            NcclCandidate(str(wheel.folder / file), f"{wheel.name} {wheel.version}")
            for file in wheel.libraries
            if (wheel.folder / file).is_file()
        ]
    found += [NcclCandidate(str(path), "torch's own") for path in sorted((torch_folder / "lib").glob("libnccl.so*"))]
    found.append(NcclCandidate("libnccl.so.2", "the system's"))
    first: dict[str, NcclCandidate] = {}
    for candidate in found:
        first.setdefault(candidate.path, candidate)
    return tuple(first.values())


def loaded_copies(maps: Iterable[str] | None = None) -> tuple[str, ...]:
    """Give the files of NCCL that this process has mapped.

    Args:
        maps: Lines as in `/proc/self/maps`, which is read without it.
    """
    if maps is None:
        try:
            maps = Path("/proc/self/maps").read_text().splitlines()
        except OSError:
            return ()
    # address, permissions, offset, device and inode come before the path, which may hold spaces.
    paths = [fields[5].strip() for fields in (line.split(maxsplit=5) for line in maps) if len(fields) == 6]
    return tuple(dict.fromkeys(path for path in paths if LIBRARY.fullmatch(PurePosixPath(path).name)))


def wheel_conflict(wheels: Sequence[NcclWheel], required: str | None = None) -> str | None:
    """Say which wheels overwrite each other's library, and what to do; None where none do.

    Args:
        wheels: The installed wheels of NCCL.
        required: What torch asks for; see `nccl_required_by_torch`, which is asked without it.
    """
    shared = shared_files(wheels)
    if not shared:
        return None
    names = " and ".join(f"{wheel.name} {wheel.version}" for wheel in wheels)
    keep = required or nccl_required_by_torch() or "the one that fits torch's CUDA"
    return (
        f"{names} both install {', '.join(shared)}, so whichever came last is the one that is loaded: uninstall both, "
        f"and install {keep}"
    )


def _misfit(cuda: int, torch_cuda: str | None) -> tuple[int, int]:
    """Order wheels: torch's own CUDA first, then older ones, which newer drivers run too, then newer ones."""
    if torch_cuda is None:
        return (0, -cuda)
    wanted = int(torch_cuda.partition(".")[0])
    if cuda == wanted:
        return (0, 0)
    return (1, wanted - cuda) if cuda < wanted else (2, cuda - wanted)
