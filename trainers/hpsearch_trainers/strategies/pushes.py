"""What travels between a worker and a server: a bucket's gradients one way, and its weights back.

A push is one message of bytes: a header of float64 numbers, the rows that the gradients are a mean over and for each
piece whether it has one, and then the elements. Of a parameter with sparse gradients the header is followed by two
messages, the rows looked up and their values, or by one where the gradient is dense after all.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from hpsearch_comm import Group
from hpsearch_comm.operations.work import Handle
from hpsearch_trainers.host_memory import empty_on_host, to_host, wait_for
from hpsearch_trainers.strategies.placement import Bucket

__all__ = [
    "DensePush",
    "DensePushes",
    "Push",
    "Pushes",
    "SparsePush",
    "SparsePushes",
    "gradients_of",
    "pushes_to",
    "put_weights",
    "take_weights",
]

_NONE, _DENSE, _SPARSE = 0.0, 1.0, 2.0
_SHORT = (torch.float16, torch.bfloat16)


class Message:
    """A bucket in bytes.

    Args:
        bucket: Which.
        device: Of its parameters, from and to which its elements are copied.

    Attributes:
        bytes: What travels, uint8 and 1-D.
        header: Rows, and for each piece what it has; float64 and 1-D.
        elements: Of all pieces, 1-D.
        parts: Those of each piece.
    """

    def __init__(self, bucket: Bucket, device: torch.device) -> None:
        count = 1 + len(bucket.pieces)
        after = 16 * (-(-count // 2))  # elements begin where any dtype may
        self.bytes = empty_on_host([after + bucket.bytes], torch.uint8, device).zero_()
        self.header = self.bytes[: 8 * count].view(torch.float64)
        self.elements = self.bytes[after:].view(bucket.dtype)
        self.parts = torch.split(self.elements, [piece.stop - piece.start for piece in bucket.pieces])


class DensePush:
    """A worker's end of a bucket's gradients.

    Args:
        bucket: Whose.
        group: All ranks.
        server: The rank that has it.
        tag: Of its messages.
        device: Of the gradients.
    """

    def __init__(self, bucket: Bucket, group: Group, server: int, tag: int, device: torch.device) -> None:
        self._message = Message(bucket, device)
        self._device = device
        self._group, self._server, self._tag = group, server, tag
        self._sending: Handle[Tensor] | None = None

    def send(self, rows: float, gradients: Sequence[Tensor | None]) -> None:
        """Send them.

        Args:
            rows: Those that they are a mean over; 0 where they count for nothing.
            gradients: Of each piece, 1-D; None where there is none.
        """
        if self._sending is not None:
            self._sending.wait()
        self._message.header[0] = rows
        for index, (gradient, part) in enumerate(zip(gradients, self._message.parts, strict=True), 1):
            self._message.header[index] = _NONE if gradient is None else _DENSE
            if gradient is None:
                part.zero_()
            else:
                part.copy_(gradient, non_blocking=True)
        wait_for(self._device)
        self._sending = self._group.send_async(self._message.bytes, self._server, self._tag)


class DensePushes:
    """A server's end of them.

    Args:
        bucket: Whose.
        group: All ranks.
        most: Workers that push at once.
        tag: Of the messages.
        device: Where means of them go.
    """

    def __init__(self, bucket: Bucket, group: Group, most: int, tag: int, device: torch.device) -> None:
        self._all = [Message(bucket, device) for _ in range(most)]
        self._messages: list[Message] = []
        self._group, self._tag = group, tag
        self._pending: list[Handle[Tensor]] = []

    def expect(self, workers: Sequence[int]) -> None:
        """Be ready for a push of each of these ranks."""
        self._messages = self._all[: len(workers)]
        self._pending = [
            self._group.recv_async(message.bytes, worker, self._tag)
            for worker, message in zip(workers, self._messages, strict=True)
        ]

    def mean(self) -> list[Tensor | None]:
        """Wait for them; return the mean over all rows for each piece, None where nobody has a gradient.

        They are added up in the order of the workers, so that the sum has the same bits each time.
        """
        for handle in self._pending:
            handle.wait()
        counting = [message for message in self._messages if message.header[0] > 0]
        total = sum(float(message.header[0]) for message in counting)
        first, *remaining = counting
        mean = first.elements.float() if first.elements.dtype in _SHORT else first.elements
        mean *= float(first.header[0]) / total
        for message in remaining:
            mean.add_(message.elements, alpha=float(message.header[0]) / total)
        if mean is not first.elements:
            first.elements.copy_(mean)
        present = torch.stack([message.header[1:] for message in counting]).any(0).tolist()
        return [part if is_present else None for part, is_present in zip(first.parts, present, strict=True)]


class SparsePush:
    """As `DensePush`, of one parameter whose gradients are sparse; a gradient has the parameter's shape."""

    def __init__(self, _bucket: Bucket, group: Group, server: int, tag: int, _device: torch.device) -> None:
        self._group, self._server, self._tag = group, server, tag
        self._sending: list[Handle[Tensor]] = []

    def send(self, rows: float, gradients: Sequence[Tensor | None]) -> None:
        """See `DensePush.send`."""
        for sending in self._sending:
            sending.wait()
        (gradient,) = gradients
        header = torch.tensor([rows, _NONE, 0.0], dtype=torch.float64, device="cpu")
        parts: list[Tensor] = []
        if rows > 0 and gradient is not None:
            if gradient.layout is torch.sparse_coo and gradient.sparse_dim() == 1:
                gradient = gradient.coalesce()
                parts = [gradient.indices()[0], gradient.values()]
                header[1], header[2] = _SPARSE, len(parts[1])
            else:
                parts = [gradient.to_dense()]
                header[1], header[2] = _DENSE, len(parts[0])
        self._sending = [self._group.send_async(part, self._server, self._tag) for part in (header, *to_host(parts))]


class SparsePushes:
    """As `DensePushes`, of one parameter whose gradients are sparse."""

    def __init__(self, bucket: Bucket, group: Group, tag: int, shape: torch.Size) -> None:
        self._dtype, self._group, self._tag, self._shape = bucket.dtype, group, tag, shape
        self._pending: list[tuple[int, Handle[Tensor]]] = []

    def expect(self, workers: Sequence[int]) -> None:
        """See `DensePushes.expect`."""
        self._pending = []
        for worker in workers:
            header = torch.zeros(3, dtype=torch.float64, device="cpu")
            self._pending.append((worker, self._group.recv_async(header, worker, self._tag)))

    def mean(self) -> list[Tensor | None]:
        """See `DensePushes.mean`; sparse where all are."""
        received: list[tuple[float, Tensor | None]] = []
        for worker, handle in self._pending:
            rows, kind, length = handle.wait().tolist()
            received.append((rows, self._receive(worker, kind, int(length))))
        total = sum(rows for rows, _ in received)
        weighted = [(rows / total, gradient) for rows, gradient in received if gradient is not None]
        if not weighted:
            return [None]
        if any(not gradient.is_sparse for _, gradient in weighted):
            weighted = [(weight, gradient.to_dense()) for weight, gradient in weighted]
        wide = torch.float32 if self._dtype in _SHORT else self._dtype
        mean = functools.reduce(torch.add, (gradient.to(wide) * weight for weight, gradient in weighted))
        return [mean.coalesce().to(self._dtype) if mean.is_sparse else mean.to(self._dtype)]

    def _receive(self, worker: int, kind: float, length: int) -> Tensor | None:
        if kind == _NONE:
            return None
        values = torch.empty(length, *self._shape[1:], dtype=self._dtype, device="cpu")
        if kind == _DENSE:
            return self._group.recv(values, worker, self._tag)
        rows = torch.empty(length, dtype=torch.int64, device="cpu")
        self._group.recv(rows, worker, self._tag)
        self._group.recv(values, worker, self._tag)
        return torch.sparse_coo_tensor(rows[None], values, self._shape, check_invariants=False)


Push = DensePush | SparsePush
Pushes = DensePushes | SparsePushes


def pushes_to(
    servers: Sequence[int], buckets: Sequence[Bucket], group: Group, first_tag: int, device: torch.device
) -> list[Push]:
    """Make a worker's ends of all buckets, whose messages have tags one after another.

    Args:
        servers: Their ranks.
        buckets: Of all servers.
        group: All ranks.
        first_tag: That of the first bucket.
        device: Of the gradients.
    """
    return [
        (SparsePush if bucket.sparse else DensePush)(bucket, group, servers[bucket.server], tag, device)
        for tag, bucket in enumerate(buckets, first_tag)
    ]


def gradients_of(bucket: Bucket, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Return what a worker pushes of a bucket.

    Args:
        bucket: Which.
        gradients: Of all parameters, by number.
    """
    own_gradients = [gradients[piece.number] for piece in bucket.pieces]
    if bucket.sparse:
        return own_gradients
    return [
        None if gradient is None else _flat(gradient)[piece.start : piece.stop]
        for piece, gradient in zip(bucket.pieces, own_gradients, strict=True)
    ]


def take_weights(bucket: Bucket, parameters: Sequence[Tensor]) -> Tensor:
    """Return a bucket's weights, 1-D.

    Args:
        bucket: Which.
        parameters: All, by number.
    """
    flat = [parameters[piece.number].detach().reshape(-1)[piece.start : piece.stop] for piece in bucket.pieces]
    return torch.cat(flat)


@torch.no_grad()
def put_weights(bucket: Bucket, elements: Tensor, parameters: Sequence[Tensor]) -> None:
    """Set parameters to the weights that have come.

    Args:
        bucket: Whose.
        elements: Its weights, 1-D.
        parameters: All, by number.
    """
    sizes = [piece.stop - piece.start for piece in bucket.pieces]
    for piece, part in zip(bucket.pieces, torch.split(elements, sizes), strict=True):
        parameter = parameters[piece.number]
        if len(part) == parameter.numel():
            parameter.copy_(part.view(parameter.shape))
        else:
            parameter.view(-1)[piece.start : piece.stop].copy_(part)


def _flat(gradient: Tensor) -> Tensor:
    return (gradient.to_dense() if gradient.layout is not torch.strided else gradient).reshape(-1)
