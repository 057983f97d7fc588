"""Assignment of a model's parameters to servers, and to buckets that are sent together.

A parameter larger than an eighth of a server's fair share is cut into equal runs of elements, one for each server (as
in MXNet's key-value store for large arrays). The others are assigned in order of size, the largest first, each to the
server with the least load. So no server exceeds its fair share by more than about an eighth.

    parameter   0         1    2        3      two servers, whose fair share is 500 elements
    elements    800       40   100      60
    server 0    0..400         0..50    60     510
    server 1    400..800  40   50..100         490

A server's pieces are divided into buckets, in the order in which backward reaches the parameters. A bucket is sent as
soon as it has all its gradients. A long run of elements is cut again into runs of about a bucket's size, so that the
weights of the first can return while the last is being sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

_BUCKET_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Placed:
    """The properties of a parameter that its placement depends on."""

    elements: int
    dtype: torch.dtype
    can_be_cut: bool = False
    """Whether a run of its elements can be trained separately."""
    sparse: bool = False
    """Whether its gradients are sparse."""

    @property
    def bytes(self) -> int:
        """Return the bytes of its elements."""
        return self.elements * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Piece:
    """A contiguous run of a parameter's elements, often all of them."""

    number: int
    """Index of the parameter."""
    start: int
    stop: int


@dataclass(slots=True)
class Bucket:
    """Pieces of one dtype on one server that are sent together. A parameter with sparse gradients is alone in one."""

    server: int
    """Index of the server, from 0."""
    dtype: torch.dtype
    sparse: bool
    pieces: list[Piece] = field(default_factory=list)
    elements: int = 0

    @property
    def bytes(self) -> int:
        """Return the bytes of its elements."""
        return self.elements * self.dtype.itemsize

    def add(self, piece: Piece) -> None:
        """Append a piece."""
        self.pieces.append(piece)
        self.elements += piece.stop - piece.start


def assign_parameters(parameters: Sequence[Placed], servers: int, bucket_bytes: int = _BUCKET_BYTES) -> list[Bucket]:
    """Divide parameters among servers, balanced by bytes.

    Args:
        parameters: The parameters, if possible in the order of the forward pass.
        servers: Number of servers.
        bucket_bytes: Size at which a bucket is full, and maximum size of a run of a parameter that can be cut.

    Returns:
        The buckets of all servers, in the order in which backward computes their gradients.
    """
    buckets: list[Bucket] = []
    filling: dict[tuple[int, torch.dtype], Bucket] = {}
    for server, piece in _pieces(parameters, servers, bucket_bytes):
        parameter = parameters[piece.number]
        key = server, parameter.dtype
        bucket = filling.pop(key, None)
        if bucket is None or parameter.sparse:
            buckets.append(Bucket(server, parameter.dtype, parameter.sparse))
            if bucket is not None:
                filling[key] = bucket
            bucket = buckets[-1]
        bucket.add(piece)
        if not parameter.sparse and bucket.bytes < bucket_bytes:
            filling[key] = bucket
    return buckets


def _pieces(parameters: Sequence[Placed], servers: int, most_bytes: int) -> Iterator[tuple[int, Piece]]:
    """Yield each piece with its server, starting with the last parameter."""
    fair_share = sum(parameter.bytes for parameter in parameters) / servers
    cut = {
        number
        for number, parameter in enumerate(parameters)
        if parameter.can_be_cut and parameter.elements >= servers > 1 and parameter.bytes > fair_share / 8
    }
    load, holder = [0] * servers, {}
    for number in sorted(range(len(parameters)), key=lambda number: -parameters[number].bytes):
        if number not in cut:
            holder[number] = min(range(servers), key=load.__getitem__)
            load[holder[number]] += parameters[number].bytes
    for number in reversed(range(len(parameters))):
        parameter = parameters[number]
        runs = -(-parameter.bytes // most_bytes) if parameter.can_be_cut else 1
        if number in cut:
            runs = servers * -(-runs // servers)
        runs = max(1, min(runs, parameter.elements))
        for run, piece in enumerate(_runs(number, parameter.elements, runs)):
            yield holder.get(number, run * servers // runs), piece


def _runs(number: int, elements: int, count: int) -> Iterator[Piece]:
    """Divide a parameter's elements evenly into `count` runs."""
    for run in range(count):
        yield Piece(number, elements * run // count, elements * (run + 1) // count)
