"""What travels between a worker and a server: a bucket's gradients one way, and its weights back.

A push is one message of bytes: a header of float64 numbers, the rows that the gradients are a mean over and for each
piece whether it has one, and then the elements. Of a parameter with sparse gradients the header is followed by two
messages, the rows looked up and their values, or by one where the gradient is dense after all.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from hpsearch_comm import Group
from hpsearch_comm.operations.work import Handle
from hpsearch_trainers.host_memory import empty_on_host, to_host, wait_for
from hpsearch_trainers.strategies.placement import Bucket, Piece

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


class Fetches:
    """Receives the weights of all buckets, whose messages have tags one after another.

    Args:
        parameters: Those that servers train, by number, as the servers have them.
        buckets: Of all servers.
        group: All ranks.
        servers: Which of them serve.
        first_tag: That of the first bucket.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        buckets: Sequence[Bucket],
        group: Group,
        servers: Sequence[int],
        first_tag: int,
    ) -> None:
        self._parameters, self._buckets = parameters, buckets
        self._group, self._servers, self._first_tag = group, servers, first_tag
        self._weights = to_host([take_weights(bucket, parameters) for bucket in buckets])
        self._stepped = False
        self._pending: list[Handle[Tensor]] = []

    def expect(self) -> None:
        """Be ready for the weights."""
        self._pending = [
            self._group.recv_async(weights, self._servers[bucket.server], tag)
            for tag, (bucket, weights) in enumerate(zip(self._buckets, self._weights, strict=True), self._first_tag)
        ]
        self._stepped = False

    def load(self) -> None:
        """Wait for the weights, and let the parameters be them."""
        for bucket, weights, handle in zip(self._buckets, self._weights, self._pending, strict=True):
            handle.wait()
            put_weights(bucket, weights, self._parameters)

    def record_step(self) -> None:
        """Record the weights after this worker's own step, except tables with sparse gradients.

        To copy and compare a whole table would take longer than a step in the few rows of it that were looked up.
        """
        self._stepped = True
        for _, current, last in self._compared():
            last.copy_(current)

    def changed(self) -> list[nn.Parameter]:
        """Return the parameters that differ from what came, or was noted, last; only while no others may come."""
        return [parameter for parameter, current, last in self._compared() if not _same_values(current.cpu(), last)]

    def _compared(self) -> Iterator[tuple[nn.Parameter, Tensor, Tensor]]:
        """Return of each piece of which that is known its parameter, its elements, and what they were."""
        for bucket, weights in zip(self._buckets, self._weights, strict=True):
            if not (bucket.sparse and self._stepped):
                parts = torch.split(weights, [piece.stop - piece.start for piece in bucket.pieces])
                for piece, last in zip(bucket.pieces, parts, strict=True):
                    parameter = self._parameters[piece.number]
                    yield parameter, parameter.detach().reshape(-1)[piece.start : piece.stop], last


def _same_values(first: Tensor, second: Tensor) -> bool:
    # Weights that are no numbers any more aren't equal to themselves.
    return torch.equal(first, second) or torch.equal(first.view(torch.uint8), second.view(torch.uint8))


class ServedBucket:
    """A bucket of a server, and its parameters.

    Args:
        bucket: Which.
        tag: Of its messages.
        piece_parameters: The parameter of each piece.
        group: All ranks.
        most: Workers that push at once.

    Attributes:
        parameters: Those of its pieces.
        pushes: Their gradients, as they come.
    """

    def __init__(
        self, bucket: Bucket, tag: int, piece_parameters: Mapping[Piece, nn.Parameter], group: Group, most: int
    ) -> None:
        self.parameters = [piece_parameters[piece] for piece in bucket.pieces]
        self.pushes: DensePushes | SparsePushes = (
            SparsePushes(bucket, group, tag, self.parameters[0].shape)
            if bucket.sparse
            else DensePushes(bucket, group, most, tag, self.parameters[0].device)
        )
        self._bucket, self._group, self._tag = bucket, group, tag
        self._weights: dict[int, Tensor] = {}
        self._sending: dict[int, list[Handle[Tensor]]] = {}

    def set_mean_gradients(self) -> None:
        """Set the gradients of the parameters to the mean of those that are expected."""
        for parameter, gradient in zip(self.parameters, self.pushes.mean(), strict=True):
            if gradient is not None:
                gradient = gradient if gradient.is_sparse else gradient.view(parameter.shape)
                parameter.grad = gradient.to(parameter.device)

    def zero_grad(self) -> None:
        """Clear the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    def send(self, workers: Sequence[int]) -> None:
        """Send the weights as they are now.

        Args:
            workers: The ranks. Each is always sent to with the same others.
        """
        first = workers[0]
        if first not in self._weights:
            device = self.parameters[0].device
            self._weights[first] = empty_on_host([self._bucket.elements], self._bucket.dtype, device)
        for sending in self._sending.get(first, ()):
            sending.wait()
        sizes = [parameter.numel() for parameter in self.parameters]
        for parameter, part in zip(self.parameters, torch.split(self._weights[first], sizes), strict=True):
            part.copy_(parameter.detach().reshape(-1), non_blocking=True)
        wait_for(self.parameters[0].device)
        self._sending[first] = [self._group.send_async(self._weights[first], rank, self._tag) for rank in workers]

    def wait(self) -> None:
        """Wait until all has been sent."""
        for sending in itertools.chain.from_iterable(self._sending.values()):
            sending.wait()
