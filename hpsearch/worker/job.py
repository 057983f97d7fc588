"""What a worker is told and what it says: plain data between the backends and the worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from hpsearch.events import Saved
from hpsearch.objective import Objective
from hpsearch.space import Space
from hpsearch.sweep.parallel import Strategies
from hpsearch.trial import Report

__all__ = ["Channel", "CommandLine", "Job"]


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A script of any kind as a trainable."""

    program: str | None
    """The sweep file's `program`."""
    command: tuple[str, ...]
    """Words with W&B's macros, e.g. `("${env}", "${interpreter}", "${program}", "${args}")`."""
    directory: str
    """Working directory of the script: the folder where `hpsearch` was started."""


@dataclass(frozen=True, slots=True)
class Job:
    """What all segments of a study share; it must survive cloudpickle."""

    study: str
    """Absolute path of the study's directory, as the driver sees it."""
    name: str
    """The sweep's name."""
    trainable: str | Callable[..., Any] | CommandLine
    """An import path `package.module:name`, the function or class itself, or a command."""
    search_path: tuple[str, ...]
    """Folders put in front of `sys.path` before the import path is followed."""
    objective: Objective
    """Says what every report must hold, and where a segment ends because a report has reached the targets."""
    save_every: int | None
    """Iterations between checkpoints inside a segment; None: only at its end."""
    threads: int
    """torch's intra-op threads: `cpus_per_worker`."""
    parameters: Space | None = None
    """Says how trainables see flat parameters; None: as they are."""
    scaling: Mapping[str, Any] = field(default_factory=dict)
    """How batch and rate follow the number of workers: `batch`, `lr`, `warmup_epochs`, `max_global_batch`."""
    strategies: Strategies | None = None
    """Says how several workers train one trial; None: by allreduce."""
    widest: int = 1
    """Workers that a trial may get."""
    lanes: int = 1
    """Trials that a worker may train beside each other."""
    rounded: bool = False
    """They may round otherwise than each alone, as `lanes` trials do, however many there are."""
    packs: bool = True
    """Checkpoints that those write at one time lie in one file: they are soon deleted, but for few."""
    mkl_cbwr: str | None = None
    """MKL_CBWR of processes that train; None: it is what their environment has."""
    gpus: float = 0
    """That a worker has, or its share of one."""


class Channel(Protocol):
    """What a running segment tells the outside as it goes on, from the thread that runs it."""

    def reported(self, report: Report) -> None:
        """Take a provisional report."""

    def saved(self, saved: Saved) -> None:
        """Take note of a checkpoint inside the segment, and of the reports since the last one."""

    def cut_requested(self) -> bool:
        """Say whether the segment should end at this report."""
