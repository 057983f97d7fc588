"""Messages between a worker and a server: a bucket's gradients to the server, and its weights back.

A push is one message of bytes: a header and the elements. The header is float64: the number of rows of the mean
gradient, and for each piece whether it has a gradient. For a parameter with sparse gradients, the header is followed by
two messages, row indices and values, or by one message if the gradient happens to be dense.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from hpsearch_comm import Group
from hpsearch_comm.operations.work import Handle
from hpsearch_trainers.host_memory import empty_on_host, to_host, wait_for
from hpsearch_trainers.strategies.placement import Bucket, Piece

_NONE, _DENSE, _SPARSE = 0.0, 1.0, 2.0
_SHORT = (torch.float16, torch.bfloat16)


class Message:
    """A bucket without sparse gradients as a message of bytes.

    Args:
        bucket: The bucket.
        device: Device of its parameters; elements are copied to and from it.

    Attributes:
        bytes: The message, uint8 and 1-D.
        header: Number of rows, and for each piece whether it has a gradient; float64 and 1-D.
        elements: Elements of all pieces, 1-D.
        parts: Elements of each piece; views of `elements`.
    """

    def __init__(self, bucket: Bucket, device: torch.device) -> None:
        count = 1 + len(bucket.pieces)
        after = 16 * (-(-count // 2))  # elements are aligned for any dtype
        self.bytes = empty_on_host([after + bucket.bytes], torch.uint8, device).zero_()
        self.header = self.bytes[: 8 * count].view(torch.float64)
        self.elements = self.bytes[after:].view(bucket.dtype)
        self.parts = torch.split(self.elements, [piece.stop - piece.start for piece in bucket.pieces])
        self._pieces, self._device = bucket.pieces, device

    def fill(self, rows: float, gradients: Sequence[Tensor | None]) -> None:
        """Copy gradients into the message.

        Args:
            rows: Number of rows of the mean gradient; 0 if it doesn't count.
            gradients: Gradients of all parameters, by index.
        """
        self.header[0] = rows
        for index, (piece, part) in enumerate(zip(self._pieces, self.parts, strict=True), 1):
            gradient = gradients[piece.number]
            self.header[index] = _NONE if gradient is None else _DENSE
            if gradient is None:
                part.zero_()
            else:
                dense = gradient.to_dense() if gradient.layout is not torch.strided else gradient
                part.copy_(dense.reshape(-1)[piece.start : piece.stop], non_blocking=True)
        wait_for(self._device)


def _sparse_messages(rows: float, gradient: Tensor | None) -> list[Tensor]:
    """Return the messages of a parameter with sparse gradients; see `Message.fill`."""
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
    return [header, *to_host(parts)]


def take_weights(bucket: Bucket, parameters: Sequence[Tensor]) -> Tensor:
    """Return a bucket's weights, 1-D.

    Args:
        bucket: The bucket.
        parameters: All parameters, by index.
    """
    flat = [parameters[piece.number].detach().reshape(-1)[piece.start : piece.stop] for piece in bucket.pieces]
    return torch.cat(flat)


@torch.no_grad()
def put_weights(bucket: Bucket, elements: Tensor, parameters: Sequence[Tensor]) -> None:
    """Copy a bucket's weights into the parameters.

    Args:
        bucket: The bucket.
        elements: Its weights, 1-D.
        parameters: All parameters, by index.
    """
    sizes = [piece.stop - piece.start for piece in bucket.pieces]
    for piece, part in zip(bucket.pieces, torch.split(elements, sizes), strict=True):
        parameter = parameters[piece.number]
        if len(part) == parameter.numel():
            parameter.copy_(part.view(parameter.shape))
        else:
            parameter.view(-1)[piece.start : piece.stop].copy_(part)


FIRST_TAG = 1
"""Message tag of the first bucket; the others follow."""


class PushedBuckets:
    """The buckets of all servers on a worker, which pushes their gradients and receives their weights.

    Args:
        parameters: The parameters that servers train, by index, with the same values as on the servers.
        buckets: The buckets.
        group: All ranks.
        servers: Ranks of the servers.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], buckets: Sequence[Bucket], group: Group, servers: Sequence[int]
    ) -> None:
        self.parameters, self.buckets = parameters, buckets
        self._group, self._servers = group, servers
        self._messages = [None if bucket.sparse else Message(bucket, parameters[0].device) for bucket in buckets]
        self._sending: list[list[Handle[Tensor]]] = [[] for _ in buckets]
        self._weights = to_host([take_weights(bucket, parameters) for bucket in buckets])
        self._pending: list[Handle[Tensor]] = []

    def push(self, index: int, rows: float, gradients: Sequence[Tensor | None]) -> None:
        """Send a bucket's gradients.

        Args:
            index: Index of the bucket.
            rows: Number of rows of the mean gradient; 0 if it doesn't count.
            gradients: Gradients of all parameters, by index. They may change afterwards.
        """
        bucket, message = self.buckets[index], self._messages[index]
        for sending in self._sending[index]:
            sending.wait()
        if message is None:
            parts = _sparse_messages(rows, gradients[bucket.pieces[0].number])
        else:
            message.fill(rows, gradients)
            parts = [message.bytes]
        server = self._servers[bucket.server]
        self._sending[index] = [self._group.send_async(part, server, FIRST_TAG + index) for part in parts]

    def expect(self) -> None:
        """Start to receive the weights."""
        self._pending = [
            self._group.recv_async(weights, self._servers[bucket.server], tag)
            for tag, (bucket, weights) in enumerate(zip(self.buckets, self._weights, strict=True), FIRST_TAG)
        ]

    def load(self) -> None:
        """Wait for the weights, and copy them into the parameters."""
        for bucket, weights, handle in zip(self.buckets, self._weights, self._pending, strict=True):
            handle.wait()
            put_weights(bucket, weights, self.parameters)


class ServedBucket:
    """A bucket on its server, with its parameters.

    Args:
        bucket: The bucket.
        tag: Message tag of the bucket.
        piece_parameters: The parameter of each piece.
        group: All ranks.
        most: Maximum number of workers that push at the same time.

    Attributes:
        parameters: The parameters of its pieces.
    """

    def __init__(
        self, bucket: Bucket, tag: int, piece_parameters: Mapping[Piece, nn.Parameter], group: Group, most: int
    ) -> None:
        self.parameters = [piece_parameters[piece] for piece in bucket.pieces]
        self._messages = [] if bucket.sparse else [Message(bucket, self.parameters[0].device) for _ in range(most)]
        self._pending: list[tuple[int, Handle[Tensor]]] = []
        self._bucket, self._group, self._tag = bucket, group, tag
        self._sending: dict[int, Handle[Tensor]] = {}

    def expect(self, workers: Sequence[int]) -> None:
        """Start to receive a push from each of these ranks."""
        if self._bucket.sparse:
            first_messages = [torch.zeros(3, dtype=torch.float64, device="cpu") for _ in workers]
        else:
            first_messages = [message.bytes for message in self._messages[: len(workers)]]
        self._pending = [
            (worker, self._group.recv_async(message, worker, self._tag))
            for worker, message in zip(workers, first_messages, strict=True)
        ]

    def set_mean_gradients(self) -> None:
        """Wait for the pushes, and set the parameters' gradients to their mean over all rows."""
        means = self._sparse_mean() if self._bucket.sparse else self._dense_mean()
        for parameter, gradient in zip(self.parameters, means, strict=True):
            if gradient is not None:
                gradient = gradient if gradient.is_sparse else gradient.view(parameter.shape)
                parameter.grad = gradient.to(parameter.device)

    def _dense_mean(self) -> list[Tensor | None]:
        """Return the mean gradient of each piece; None if no worker has one.

        Gradients are added in the order of the workers, so the result is reproducible bit for bit.
        """
        for _, handle in self._pending:
            handle.wait()
        counting = [message for message in self._messages[: len(self._pending)] if message.header[0] > 0]
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

    def _sparse_mean(self) -> list[Tensor | None]:
        """Return the mean gradient, which is sparse if all gradients are; see `_dense_mean`."""
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
        dtype = self._bucket.dtype
        wide = torch.float32 if dtype in _SHORT else dtype
        mean = functools.reduce(torch.add, (gradient.to(wide) * weight for weight, gradient in weighted))
        return [mean.coalesce().to(dtype) if mean.is_sparse else mean.to(dtype)]

    def _receive(self, worker: int, kind: float, length: int) -> Tensor | None:
        if kind == _NONE:
            return None
        shape = self.parameters[0].shape
        values = torch.empty(length, *shape[1:], dtype=self._bucket.dtype, device="cpu")
        if kind == _DENSE:
            return self._group.recv(values, worker, self._tag)
        rows = torch.empty(length, dtype=torch.int64, device="cpu")
        self._group.recv(rows, worker, self._tag)
        self._group.recv(values, worker, self._tag)
        return torch.sparse_coo_tensor(rows[None], values, shape, check_invariants=False)

    def zero_grad(self) -> None:
        """Clear the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    def send(self, workers: Sequence[int]) -> None:
        """Send the current weights to these ranks."""
        (weights,) = to_host([torch.cat([parameter.detach().reshape(-1) for parameter in self.parameters])])
        for rank in workers:
            if rank in self._sending:
                self._sending[rank].wait()
            self._sending[rank] = self._group.send_async(weights, rank, self._tag)

    def wait(self) -> None:
        """Wait until all weights have been sent."""
        for sending in self._sending.values():
            sending.wait()
