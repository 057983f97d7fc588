"""What is to be started, and how: all that the command line says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hpsearch_comm.launch.hosts import HostRanks


@dataclass(frozen=True, slots=True)
class LaunchJob:
    """One start of some ranks."""

    host_ranks: tuple[HostRanks, ...]
    """Which ranks run on which host, in the order of the ranks."""
    command: tuple[str, ...]
    """The program and its arguments."""
    python: str
    """The interpreter that runs the agents."""
    directory: str
    """In which the ranks start, on every host."""
    secret: str = field(repr=False)
    """The group's, in hexadecimal digits."""
    environment: Mapping[str, str] = field(repr=False)
    """The launcher's own."""
    exports: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Variables that count before all others but those that say which rank a process is."""
    interface: str | None = None
    """By which rank 0's host is reached."""
    ssh: tuple[str, ...] = ()
    """Options of ssh's, which the user wishes on top of their own configuration of it."""
    start_timeout: float = 60.0
    """Seconds in which all hosts must have answered."""
    silence: float = 60.0
    """Seconds without a word between two hosts after which each counts the other as gone."""
    prefix: bool = True
    """Whether each line begins with its rank."""
    output: Path | None = None
    """Directory of a file for each rank's output."""
    least: int | None = None
    """How many ranks suffice for the others to go on without those that have died; None where all must be there."""
    elastic_timeout: float = 600.0
    """Seconds for which ranks that meet anew wait for one that doesn't come."""
    verbose: bool = False
    """Whether to say what is done."""

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.host_ranks[-1].ranks.stop
