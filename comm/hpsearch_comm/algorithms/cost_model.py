"""How long an allreduce should take, from what the derivations say it moves; chooses between the algorithms.

Each algorithm's time is a sum of counts, which follow from its derivation, times costs, which belong to the machine
(the model of Thakur, Rabenseifner & Gropp 2005, "Optimization of collective communication operations in MPICH",
section 3: alpha per message, beta per byte moved, gamma per byte reduced; sigma per barrier is ours). An allreduce of n
bytes on p ranks:

    algorithm      alpha, messages      beta, bytes moved              gamma, reduced       sigma, barriers
    ring           2(p-1)               2n(p-1)/p                      n(p-1)/p
    butterfly      log2 q  or           n log2 q  or                   n log2 q  or
                   2 log2 q             2n(q-1)/q                      n(q-1)/q
      and p > q    + 2                  + 2n                           + n
    naive          p-1                  n(p-1)                         n(p-1)
    tree           C+D-1                n(1+(D-1)/C) per child
    pairwise       p-1                  n(p-1)/p
    direct                              n in memory  or                n(p-1)  or           1  or
                                        2n(p-1)/p in memory  or        n(p-1)/p  or         C+1  or
                                        n(C+p-1)/C in memory           n(C+p-1)/C           1
    hierarchical   as of n/S bytes      S times that of n/S bytes,     n(L-1)/S, and as     2C
                   between the hosts    2n in memory                   of n/S bytes

q is the largest power of two in p, C the number of chunks, D the tree's depth, S and L the smallest and the largest
number of ranks on a host. A link between two hosts costs what TCP costs, and a step of ranks on several hosts is as
slow as its slowest link. Ranks of one host that send to others at the same time share its wire. The rows of direct are
those of one shot, two shots and a chain, on a machine with a core for each rank; of a chain, that of a rank that adds.

The time is linear in the costs, so least squares finds them from measured times.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, fields

import torch

from hpsearch_comm.algorithms import butterfly, chain, direct_allreduce, tree
from hpsearch_comm.errors import ConfigurationError, UsageError
from hpsearch_comm.memory.slots import SLOT
from hpsearch_comm.memory.staging import CHUNK, piece_bytes
from hpsearch_comm.topology import Topology

__all__ = ["CostModel", "Measurement", "counts"]


@dataclass(frozen=True, slots=True)
class Measurement:
    """A time that was measured."""

    algorithm: str
    nbytes: int
    topology: Topology
    seconds: float


@dataclass(frozen=True, slots=True)
class CostModel:
    """What moving and reducing costs on a machine and its network. The defaults are a small virtual machine's.

    Raises:
        ConfigurationError: A cost isn't a number of seconds.
    """

    tcp_alpha: float = 40e-6
    """Seconds per message over TCP."""
    tcp_beta: float = 0.4e-9
    """Seconds per byte over TCP."""
    shared_alpha: float = 8e-6
    """Seconds per message over a link through shared memory."""
    shared_beta: float = 0.15e-9
    """Seconds per byte copied into shared memory, or out of it."""
    gamma: float = 0.1e-9
    """Seconds per byte reduced."""
    sigma: float = 4e-6
    """Seconds per barrier in shared memory."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
                raise ConfigurationError(f"a cost model's {field.name} must be a number of seconds, got {value!r}")

    def predict(self, algorithm: str, nbytes: int, topology: Topology) -> float:
        """Give the seconds that an allreduce of a tensor of `nbytes` should take.

        For tree it is a broadcast, for pairwise an alltoall in which a rank has `nbytes` for all together.

        Raises:
            UsageError: There is no formula for that algorithm.
        """
        seconds = 0.0
        for cost, count in counts(algorithm, nbytes, topology).items():
            seconds += getattr(self, cost) * count
        return seconds

    def choose(self, nbytes: int, topology: Topology, available: Collection[str]) -> str:
        """Give the algorithm for an allreduce: the quickest of those that make sense on these hosts.

        Args:
            nbytes: Of the tensor; the same on every rank, and so is the choice.
            topology: Where everything goes over TCP, one in which each rank has a host of its own.
            available: Names to choose from.

        Raises:
            UsageError: None of them can do an allreduce on these hosts.
        """
        if len(topology.hosts) == 1:
            sensible: tuple[str, ...] = ("direct",)
        elif any(len(ranks) > 1 for ranks in topology.hosts):
            sensible = ("hierarchical",)
        else:
            sensible = ("butterfly", "ring")
        for names in (sensible, ("butterfly", "ring"), ("hierarchical",), ("naive",)):
            usable = [name for name in names if name in available]
            if len(usable) > 1:
                return min(usable, key=lambda name: self.predict(name, nbytes, topology))
            if usable:
                return usable[0]
        raise UsageError(
            f"expected an algorithm for allreduce to choose from, on {len(topology.hosts)} host(s), "
            f"got {', '.join(available) or 'none'}"
        )

    @classmethod
    def fit(cls, measurements: Iterable[Measurement], prior: CostModel | None = None) -> CostModel:
        """Find the costs that explain measured times best, in least squares of the relative errors.

        Args:
            measurements: Any number of them, of any algorithms.
            prior: What holds for the costs on which no measurement depends; by default that of this class.

        Raises:
            UsageError: A measured time isn't a positive number of seconds.
        """
        start = asdict(prior or cls())
        names = list(start)
        # Costs are counted in units of the prior, so that they are all about 1, and each is held to it by a very weak
        # spring: it decides where the measurements say nothing.
        scale = [start[name] or asdict(cls())[name] for name in names]
        rows = [[_SPRING * (other == name) for other in names] for name in names]
        wanted = [_SPRING * start[name] / unit for name, unit in zip(names, scale, strict=True)]
        for measured in measurements:
            if not 0 < measured.seconds < math.inf:
                raise UsageError(f"a measured time must be a positive number of seconds, got {measured.seconds!r}")
            moved = counts(measured.algorithm, measured.nbytes, measured.topology)
            share = [moved.get(name, 0.0) * unit / measured.seconds for name, unit in zip(names, scale, strict=True)]
            if any(share):
                rows.append(share)
                wanted.append(1.0)
        found = _nonnegative_least_squares(rows, wanted)
        return cls(**{name: value * unit for name, value, unit in zip(names, found, scale, strict=True)})

    def to_dict(self) -> dict[str, float]:
        """Give the costs by name, in seconds, as JSON can hold them."""
        return asdict(self)

    @classmethod
    def from_dict(cls, costs: Mapping[str, object]) -> CostModel:
        """Make a model from what `to_dict` gave; costs that are missing have their defaults.

        Raises:
            ConfigurationError: There is a name that is no cost, or a value that is no number of seconds.
        """
        known = [field.name for field in fields(cls)]
        if unknown := sorted(set(costs) - set(known)):
            raise ConfigurationError(f"a cost model has {', '.join(known)}; got {', '.join(map(str, unknown))}")
        return cls(**costs)  # type: ignore[arg-type]  # checked when it is made


def counts(algorithm: str, nbytes: int, topology: Topology) -> dict[str, float]:
    """Give what an algorithm moves, by the cost that it incurs: the row of the table above.

    Raises:
        UsageError: There is no row for that algorithm.
    """
    if algorithm not in _ROWS:
        raise UsageError(f"there are formulas for {', '.join(_ROWS)}; got {algorithm!r}")
    if topology.size == 1:
        return {}
    return _ROWS[algorithm](nbytes, topology)


_SPRING = 1e-4


def _over_links(topology: Topology, messages: float, sent: float, reduced: float) -> dict[str, float]:
    link = "tcp" if len(topology.hosts) > 1 else "shared"
    return {f"{link}_alpha": messages, f"{link}_beta": sent, "gamma": reduced}


def _ring_moves(n: float, p: int) -> tuple[float, float, float]:
    return 2 * (p - 1), 2 * n * (p - 1) / p, n * (p - 1) / p


def _butterfly_moves(n: float, p: int) -> tuple[float, float, float]:
    rounds = p.bit_length() - 1
    q = 1 << rounds
    if n <= butterfly.SHORT:
        messages, sent, reduced = rounds, n * rounds, n * rounds
    else:
        messages, sent, reduced = 2 * rounds, 2 * n * (q - 1) / q, n * (q - 1) / q
    return (messages, sent, reduced) if p == q else (messages + 2, sent + 2 * n, reduced + n)


def _ring(n: float, topology: Topology) -> dict[str, float]:
    return _over_links(topology, *_ring_moves(n, topology.size))


def _butterfly(n: float, topology: Topology) -> dict[str, float]:
    messages, sent, reduced = _butterfly_moves(n, topology.size)
    return _over_links(topology, messages, sent * _crowd(topology), reduced)


def _naive(n: float, topology: Topology) -> dict[str, float]:
    others = topology.size - 1
    return _over_links(topology, others, n * others * _crowd(topology), n * others)


def _tree(n: float, topology: Topology) -> dict[str, float]:
    p = topology.size
    chunks = max(1, math.ceil(n / tree.CHUNK))
    depth, children = (p - 1, 1) if p > 2 and chunks >= p else (p.bit_length() - 1, (p - 1).bit_length())
    steps = chunks + depth - 1
    return _over_links(topology, steps, children * steps * n / chunks, 0)


def _pairwise(n: float, topology: Topology) -> dict[str, float]:
    p = topology.size
    return _over_links(topology, p - 1, n * (p - 1) / p * _crowd(topology), 0)


def _direct(n: float, topology: Topology) -> dict[str, float]:
    p = topology.size
    if n * p**2 <= direct_allreduce.ONE_SHOT:
        return {"sigma": 1, "shared_beta": n, "gamma": n * (p - 1)}
    if chain.pays(p, p, int(n)):
        chunks = math.ceil(n / SLOT)
        long = n * (chunks + p - 1) / chunks
        return {"sigma": 1, "shared_beta": long, "gamma": long}
    others = n * (p - 1) / p
    return {"sigma": math.ceil(n / p / piece_bytes(CHUNK, p)) + 1, "shared_beta": 2 * others, "gamma": others}


def _hierarchical(n: float, topology: Topology) -> dict[str, float]:
    sizes = [len(ranks) for ranks in topology.hosts]
    owners, most, hosts = min(sizes), max(sizes), len(sizes)
    part = n / owners
    moves = _butterfly_moves if part <= butterfly.SHORT else _ring_moves
    messages, sent, reduced = moves(part, hosts)
    within = part * (most - 1)
    moved = {"tcp_alpha": messages, "tcp_beta": sent * owners, "gamma": reduced + within}
    if most == 1:
        return moved
    return moved | {"sigma": 2 * max(1, math.ceil(part / piece_bytes(CHUNK, most))), "shared_beta": 2 * n}


def _crowd(topology: Topology) -> int:
    """Give how many ranks may send over the wire of one host at the same time."""
    return max(len(ranks) for ranks in topology.hosts) if len(topology.hosts) > 1 else 1


_ROWS = {
    "direct": _direct,
    "ring": _ring,
    "butterfly": _butterfly,
    "hierarchical": _hierarchical,
    "naive": _naive,
    "tree": _tree,
    "pairwise": _pairwise,
}


def _nonnegative_least_squares(rows: list[list[float]], wanted: list[float]) -> list[float]:
    """Solve rows * x = wanted as well as x >= 0 allows: what comes out negative is held at 0, the rest found anew."""
    matrix = torch.tensor(rows, dtype=torch.float64, device="cpu")
    right = torch.tensor(wanted, dtype=torch.float64, device="cpu").unsqueeze(1)
    free = list(range(matrix.shape[1]))
    found = [0.0] * len(free)
    while free:
        values = torch.linalg.lstsq(matrix[:, free], right).solution.flatten().tolist()
        if min(values) >= 0:
            for place, value in zip(free, values, strict=True):
                found[place] = value
            break
        free.pop(values.index(min(values)))
    return found
