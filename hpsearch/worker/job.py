"""Plain data between the backends and the worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from hpsearch.events import Saved
from hpsearch.objective import Objective
from hpsearch.space import Space
from hpsearch.sweep.parallel import Strategies
from hpsearch.trainable.macros import DEFAULT_COMMAND
from hpsearch.trial import Report

if TYPE_CHECKING:
    from hpsearch.sweep.sweep import Sweep


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A script in any language as a trainable."""

    program: str | None
    """The sweep's `program`."""
    command: tuple[str, ...]
    """Words with W&B's macros, e.g. `("${env}", "${interpreter}", "${program}", "${args}")`."""
    directory: str
    """Working directory of the script: the folder where `hpsearch` was started."""


@dataclass(frozen=True, slots=True)
class Job:
    """Data that all segments of a study share; it is sent by cloudpickle."""

    study: str
    """Absolute path of the study's directory on the driver's machine."""
    name: str
    """The sweep's name."""
    trainable: str | Callable[..., Any] | CommandLine
    """An import path `package.module:name`, the function or class itself, or a command."""
    search_path: tuple[str, ...]
    """Folders put in front of `sys.path` before the import path is followed."""
    objective: Objective
    """Metrics that every report must have, and the targets at which a segment ends."""
    save_every: int | None
    """Iterations between checkpoints inside a segment; None: only at its end."""
    threads: int
    """torch's intra-op threads: `cpus_per_worker`."""
    parameters: Space | None = None
    """Converts flat parameters to the trainable's form; None: they stay flat."""
    scaling: Mapping[str, Any] = field(default_factory=dict)
    """The sweep's `scaling`: `batch`, `lr`, `warmup_epochs`, `max_global_batch`."""
    strategies: Strategies | None = None
    """How several workers synchronize; None: by allreduce."""
    widest: int = 1
    """Maximum number of workers of a trial."""
    lanes: int = 1
    """Maximum number of lanes of a worker."""
    rounded: bool = False
    """Whether lanes may round differently from a single trial. They then always round as `lanes` trials do."""
    packs: bool = True
    """Whether checkpoints that lanes write at the same time share a file. Most of them are soon deleted."""
    mkl_cbwr: str | None = None
    """MKL_CBWR of processes that train; None: as in their environment."""
    gpus: float = 0
    """Number of GPUs of a worker, or its fraction of one."""
    resource: str | None = None
    """What segments with `costs` end by: `seconds`, or a metric that every report must have and that never falls."""
    live: bool = False
    """Whether the scheduler may stop a segment at any report. If so, a worker waits for its decision after each."""


def job_of(
    sweep: Sweep,
    study: str,
    trainable: str | Callable[..., Any] | CommandLine,
    search_path: Sequence[str],
    mkl_cbwr: str | None,
) -> Job:
    """Return what all segments of a sweep share.

    Args:
        sweep: The sweep.
        study: Path of its study's directory.
        trainable: What it trains.
        search_path: Folders in which that is looked for first.
        mkl_cbwr: MKL_CBWR of the processes that train.
    """
    return Job(
        study=study,
        name=sweep.name,
        trainable=trainable,
        search_path=tuple(search_path),
        objective=sweep.objective,
        save_every=sweep.checkpoints.every,
        threads=sweep.resources.cpus_per_worker,
        gpus=sweep.resources.gpus_per_worker,
        parameters=sweep.parameters,
        scaling=sweep.scaling.for_trainers(),
        strategies=sweep.strategies,
        widest=sweep.resources.widest,
        lanes=sweep.resources.lanes,
        rounded=sweep.resources.fuse == "rounding",
        packs=sweep.checkpoints.keep != "all",
        mkl_cbwr=mkl_cbwr,
        resource=sweep.resource,
        live=sweep.early_terminate is not None and sweep.early_terminate.capabilities.live,
    )


def trainable_of(sweep: Sweep, folder: str) -> str | CommandLine:
    """Return a sweep's trainable, or its script, which runs in a folder."""
    if sweep.trainable is not None:
        return sweep.trainable
    return CommandLine(sweep.program, sweep.command or DEFAULT_COMMAND, folder)


class Channel(Protocol):
    """Receives the messages of a running segment, from its thread."""

    def reported(self, report: Report) -> None:
        """Receive a provisional report."""

    def noted(self, notes: Mapping[str, str]) -> None:
        """Receive notes that are new or have changed, by name."""

    def saved(self, saved: Saved) -> None:
        """Receive a checkpoint inside the segment, with the reports since the last one."""

    def cut_requested(self) -> bool:
        """Return whether the segment should end at this report."""
