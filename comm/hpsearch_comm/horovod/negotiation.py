"""Which operations are ready: the part of the negotiation that neither waits nor sends.

Each rank announces what it is asked for, under a name. After each exchange every rank has seen the same messages, takes
them in in the same way, and so comes to the same decisions in the same order: no rank is above the others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpsearch_comm.errors import CommError
from hpsearch_comm.horovod.request import ReduceOp, Request

_OWN_ROWS = frozenset(("allgather", "alltoall"))
"""Kinds in which each rank may have another number of rows."""
_ADDING = frozenset((ReduceOp.SUM, ReduceOp.AVERAGE, ReduceOp.ADASUM))
"""Operators to which zeros add nothing."""
_SHARES_ROWS = _OWN_ROWS | {"reducescatter"}


def find_disagreement(requests: Mapping[int, Request], joined: Sequence[int]) -> str | None:
    """Return why what the ranks have announced under one name can't be carried out; None if it can.

    Args:
        requests: By rank, the lowest first. Ranks that have joined needn't have announced anything.
        joined: The ranks that have.
    """
    first_rank, first = next(iter(requests.items()))
    for rank, request in requests.items():
        for aspect, ours, theirs in _aspects(first, request):
            if ours != theirs:
                return (
                    f"the ranks disagree on {first.name}: its {aspect} must be the same on every rank, but is {ours} "
                    f"on rank {first_rank} and {theirs} on rank {rank}"
                )
    absent = [rank for rank in joined if rank not in requests]
    if absent and not (first.kind == "allreduce" and first.op in _ADDING):
        operation = first.kind if first.op is None or first.kind != "allreduce" else f"allreduce with op={first.op}"
        return (
            f"{first.name} can't be carried out while rank {absent[0]} has joined: it could only give zeros, which "
            f"mean nothing in {operation}. Call it before the first rank joins, or after all have"
        )
    if first.kind in _SHARES_ROWS and any(not shape for _, shape in first.tensors):
        return f"{first.name} must be of tensors with at least one dimension, along which it works, got one without"
    return None


def _aspects(first: Request, other: Request) -> list[tuple[str, Any, Any]]:
    """Pair what two requests say; what comes first is what a user should hear of first."""
    return [
        ("operation", first.kind, other.kind),
        ("number of tensors", len(first.tensors), len(other.tensors)),
        ("dtype", _of_all(dtype for dtype, _ in first.tensors), _of_all(dtype for dtype, _ in other.tensors)),
        ("shape", _shapes(first), _shapes(other)),
        ("device", first.device, other.device),
        ("op", first.op, other.op),
        ("root" if first.kind == "broadcast" else "ranks", _of_all(first.numbers), _of_all(other.numbers)),
        ("prescale_factor", first.prescale_factor, other.prescale_factor),
        ("postscale_factor", first.postscale_factor, other.postscale_factor),
    ]


def _shapes(request: Request) -> str:
    own_rows = request.kind in _OWN_ROWS
    shapes = [("any", *shape[1:]) if own_rows and shape else shape for _, shape in request.tensors]
    return ", ".join(f"[{', '.join(map(str, shape))}]" for shape in shapes)


def _of_all(values: Any) -> Any:
    """Return the one value, or the list of several."""
    values = list(values)
    return values[0] if len(values) == 1 else values


JOIN = "join"
"""Name and kind of what a rank announces that takes part with zeros from now on, until all have announced it."""
_MOST_KNOWN = 4096
"""Requests that have a number. A program with more of them just writes the others out each time."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Every rank that must take part has announced something under one name."""

    request: Request
    """That of the lowest rank which has announced it; those of the others may differ in the number of rows. The number
    of a join is the rank that came last."""
    refusal: str = ""
    """Why it can't be carried out: the ranks have announced different things, or one that can't be done now."""


class Negotiation:
    """What has been announced, by whom.

    Args:
        rank: This rank, counted in the process set.
        ranks: The process set's ranks, counted in the job: what errors and joins name.
    """

    def __init__(self, rank: int, ranks: Sequence[int]) -> None:
        self._rank = rank
        self._ranks = ranks
        self._announced: dict[str, dict[int, Request]] = {}  # by name and rank, in the order in which they came
        self._numbers: dict[Request, int] = {}
        self._numbered: list[Request] = []

    @property
    def open(self) -> bool:
        """Whether anything has been announced that isn't ready yet."""
        return bool(self._announced)

    @property
    def _joined(self) -> dict[int, Request]:
        return self._announced.get(JOIN, {})

    @property
    def is_awaited(self) -> bool:
        """Whether this rank is one that others wait for."""
        missing = any(self._rank not in requests for requests in self._announced.values())
        return missing and self._rank not in self._joined

    def absent(self, name: str) -> list[int]:
        """Name the ranks that haven't announced it, in the job's numbers; none where nothing is known of it."""
        requests = self._announced.get(name)
        if requests is None:
            return []
        return [number for rank, number in enumerate(self._ranks) if rank not in requests and rank not in self._joined]

    def write(self, requests: Sequence[Request]) -> bytes:
        """Return this rank's message: what it is newly asked for."""
        entries = [
            number if (number := self._numbers.get(request)) is not None else request.write() for request in requests
        ]
        return json.dumps(entries, separators=(",", ":")).encode() if entries else b""

    def process_messages(self, messages: Sequence[bytes]) -> list[Decision]:
        """Take in the messages of all ranks, by rank; return what is to be done now, the same on every rank."""
        for rank, message in enumerate(messages):
            if message:
                self._read(rank, message)
        ready = [name for name in self._announced if not self.absent(name)]
        # A join ends behind what its ranks are to take part in.
        return [self._decide(name) for name in sorted(ready, key=lambda name: name == JOIN)]

    def _read(self, rank: int, message: bytes) -> None:
        try:
            for entry in json.loads(message):
                request = self._numbered[entry] if isinstance(entry, int) else Request.read(entry)
                self._announced.setdefault(request.name, {})[rank] = request
        except (ValueError, TypeError, IndexError) as error:
            raise CommError(
                f"rank {rank} of the process set sent what can't be read ({error}): run one version on every rank"
            ) from None

    def _decide(self, name: str) -> Decision:
        requests = self._announced.pop(name)
        if name == JOIN:
            return Decision(Request(JOIN, JOIN, numbers=(self._ranks[next(reversed(requests))],)))
        by_number = {self._ranks[rank]: request for rank, request in sorted(requests.items())}
        reason = find_disagreement(by_number, [self._ranks[rank] for rank in sorted(self._joined)])
        first = next(iter(by_number.values()))
        if reason is not None:
            return Decision(first, reason)
        if ".noname." not in name:
            for request in by_number.values():
                if request not in self._numbers and len(self._numbered) < _MOST_KNOWN:
                    self._numbers[request] = len(self._numbered)
                    self._numbered.append(request)
        return Decision(first)
