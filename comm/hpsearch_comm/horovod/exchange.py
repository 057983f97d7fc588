"""One exchange of the negotiation: each rank gives a message and gets those of all."""

from __future__ import annotations

import torch

from hpsearch_comm.group import Group

__all__ = ["FRAME_BYTES", "exchange"]

FRAME_BYTES = 256
"""What a rank can say in a single collective; a longer message takes another one."""
_LENGTH_BYTES = 4


def exchange(group: Group, message: bytes) -> list[bytes]:
    """Return the messages of all ranks, by rank; a collective.

    Each rank has a frame in one matrix of bytes, of which it fills its own: the bitwise or of all is the matrix of all.
    That is one allreduce, where an allgather would have to tell the lengths first.
    """
    frames = torch.zeros(group.size, FRAME_BYTES, dtype=torch.uint8, device="cpu")
    packed = len(message).to_bytes(_LENGTH_BYTES, "little") + message
    fitting = packed[:FRAME_BYTES]
    frames[group.rank, : len(fitting)] = torch.frombuffer(bytearray(fitting), dtype=torch.uint8)
    group.allreduce(frames, "bor")
    data = frames.numpy().tobytes()
    rows = [data[rank * FRAME_BYTES : (rank + 1) * FRAME_BYTES] for rank in range(group.size)]
    lengths = [int.from_bytes(row[:_LENGTH_BYTES], "little") for row in rows]
    if max(lengths) <= FRAME_BYTES - _LENGTH_BYTES:
        return [row[_LENGTH_BYTES : _LENGTH_BYTES + length] for row, length in zip(rows, lengths, strict=True)]
    everything = group.allgather(torch.frombuffer(bytearray(packed), dtype=torch.uint8)).numpy().tobytes()
    messages = []
    for length in lengths:
        messages.append(everything[_LENGTH_BYTES : _LENGTH_BYTES + length])
        everything = everything[_LENGTH_BYTES + length :]
    return messages
