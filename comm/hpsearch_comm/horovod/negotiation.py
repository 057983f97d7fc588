"""Decisions on which operations are ready: the part of the negotiation that neither waits nor sends.

Each rank announces its requests by name. After each exchange every rank has received the same messages and processes
them in the same way. So all ranks make the same decisions in the same order, without a coordinator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpsearch_comm.errors import CommError
from hpsearch_comm.horovod.request import ReduceOp, Request

_OWN_ROWS = frozenset(("allgather", "alltoall"))
"""Kinds for which the number of rows may differ between ranks."""
_ADDING = frozenset((ReduceOp.SUM, ReduceOp.AVERAGE, ReduceOp.ADASUM))
"""Operators for which zeros don't change the result."""
_SHARES_ROWS = _OWN_ROWS | {"reducescatter"}


def find_disagreement(requests: Mapping[int, Request], joined: Sequence[int]) -> str | None:
    """Return the reason why the ranks' requests of one name can't be executed; None if they can.

    Args:
        requests: Requests by rank, the lowest rank first. Ranks that have joined may be missing.
        joined: The ranks that have joined.
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
    """Return the properties of two requests in pairs. The error names the first pair that differs."""
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
    """Return the value if there is exactly one, or else the list of all values."""
    values = list(values)
    return values[0] if len(values) == 1 else values


JOIN = "join"
"""Name and kind of a join: the rank contributes zeros until all ranks have joined."""
_MOST_KNOWN = 4096
"""Maximum number of requests that are sent as a number. Any further request is written out each time."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A name that every required rank has announced, and what to do about it."""

    request: Request
    """The request of the lowest rank that announced the name. Other ranks' requests may differ in the number of rows.
    The number in a join request is the rank that joined last."""
    refusal: str = ""
    """Why the operation can't be executed; empty if it can."""


class Negotiation:
    """The requests that have been announced, by name and rank.

    Args:
        rank: This process's rank in the process set.
        ranks: The process set's ranks, as numbers in the job. Errors and joins use these numbers.
    """

    def __init__(self, rank: int, ranks: Sequence[int]) -> None:
        self._rank = rank
        self._ranks = ranks
        self._announced: dict[str, dict[int, Request]] = {}  # by name and rank, in the order of announcement
        self._numbers: dict[Request, int] = {}
        self._numbered: list[Request] = []

    @property
    def open(self) -> bool:
        """Whether some announced operation isn't ready yet."""
        return bool(self._announced)

    @property
    def _joined(self) -> dict[int, Request]:
        return self._announced.get(JOIN, {})

    @property
    def is_awaited(self) -> bool:
        """Whether other ranks wait for this rank."""
        missing = any(self._rank not in requests for requests in self._announced.values())
        return missing and self._rank not in self._joined

    def absent(self, name: str) -> list[int]:
        """Return the ranks, as numbers in the job, that haven't announced `name`; empty if no rank has announced it."""
        requests = self._announced.get(name)
        if requests is None:
            return []
        return [number for rank, number in enumerate(self._ranks) if rank not in requests and rank not in self._joined]

    def write(self, requests: Sequence[Request]) -> list[Any]:
        """Return this rank's message with its new requests, to send as JSON."""
        return [
            number if (number := self._numbers.get(request)) is not None else request.write() for request in requests
        ]

    def process_messages(self, messages: Sequence[Any]) -> list[Decision]:
        """Process the messages of all ranks, by rank; return the decisions, which are the same on every rank."""
        for rank, message in enumerate(messages):
            if message:
                self._read(rank, message)
        ready = [name for name in self._announced if not self.absent(name)]
        # A join finishes after the operations that the joined ranks contribute zeros to.
        return [self._decide(name) for name in sorted(ready, key=lambda name: name == JOIN)]

    def _read(self, rank: int, message: Any) -> None:
        try:
            for entry in message:
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
