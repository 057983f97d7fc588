"""What a benchmark run is to measure: read from the command line, handed to every rank as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

Kind = Literal["allreduce", "model", "memory"]

PEERS = ("gloo", "mpi")
ALGORITHMS = ("auto", "direct", "ring", "butterfly", "hierarchical", "naive")


@dataclass(frozen=True, slots=True)
class Plan:
    """One run.

    Raises:
        ValueError: The parts don't go together; the message says what to change.
    """

    kind: Kind = "allreduce"
    ranks: int = 2
    sizes: tuple[int, ...] = (1 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20)
    """Bytes."""
    against: tuple[str, ...] = ("gloo",)
    """Of PEERS."""
    algorithm: str = "auto"
    transport: Literal["auto", "tcp"] = "auto"
    rounds: int = 5
    """Turns of each contender at each size; with a model each is split into several short ones."""
    seconds: float = 0.2
    """About how long a turn takes; those of a model are counted in steps instead."""
    namespaces: bool = False
    """Whether the ranks run in two network namespaces, the first half of them in one, the others in the other."""

    def __post_init__(self) -> None:
        unknown = sorted(set(self.against) - set(PEERS))
        if unknown:
            raise ValueError(f"there are the peers {', '.join(PEERS)}, got {', '.join(map(repr, unknown))}")
        if self.algorithm not in ALGORITHMS:
            raise ValueError(f"there are the algorithms {', '.join(ALGORITHMS)}, got {self.algorithm!r}")
        if not 2 <= self.ranks <= 64:
            raise ValueError(f"expected 2 to 64 ranks, got {self.ranks}")
        if self.rounds < 1:
            raise ValueError(f"expected at least one round, got {self.rounds}")
        if not 0 < self.seconds <= 60:
            raise ValueError(f"expected a turn of up to 60 seconds, got {self.seconds:g}")
        if self.namespaces and "mpi" in self.against:
            raise ValueError(
                "mpirun keeps its ranks in one network namespace: between two, compare with gloo (--against gloo)"
            )
        if self.kind == "model" and "mpi" in self.against:
            raise ValueError("--model has no turn for Open MPI: leave mpi out of --against")
        if self.kind == "memory" and self.against:
            raise ValueError("--memory measures no peers: leave out --against")
        if self.kind == "memory" and (self.transport == "tcp" or self.algorithm not in ("auto", "direct")):
            raise ValueError("--memory measures shared memory: leave out --algorithm, --transport tcp and --netns")

    def to_json(self) -> str:
        """Return the plan as JSON, which the ranks read."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Read what `to_json` gave."""
        values: dict[str, Any] = json.loads(text)
        values |= {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
        return cls(**values)
