"""The description of a job, from the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hpsearch_comm.launch.hosts import HostRanks


@dataclass(frozen=True, slots=True)
class LaunchJob:
    """A job: its ranks, command, environment and options."""

    host_ranks: tuple[HostRanks, ...]
    """The ranks of each host, in the order of the ranks."""
    command: tuple[str, ...]
    """The program and its arguments."""
    python: str
    """The interpreter that runs the agents."""
    directory: str
    """The ranks' working directory, on every host."""
    secret: str = field(repr=False)
    """The group's secret, in hexadecimal digits."""
    environment: Mapping[str, str] = field(repr=False)
    """The launcher's environment."""
    exports: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Variables that override all others, except those that define a process's rank."""
    interface: str | None = None
    """The interface, address or network at which other hosts reach rank 0's host."""
    ssh: tuple[str, ...] = ()
    """Additional ssh options."""
    start_timeout: float = 60.0
    """Seconds within which all hosts must answer."""
    silence: float = 60.0
    """Seconds without a message after which the launcher and an agent count each other as gone."""
    prefix: bool = True
    """Whether each output line starts with its rank."""
    output: Path | None = None
    """Directory for one output file per rank; None for no files."""
    least: int | None = None
    """Minimum number of ranks to continue without dead ranks; None if all ranks are required."""
    elastic_timeout: float = 600.0
    """Seconds for which ranks that meet again wait for a missing rank."""
    verbose: bool = False
    """Whether to log what is started where."""

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.host_ranks[-1].ranks.stop
