"""Allreduce on one host: in place where the results lie in a shared buffer, else in one shot, two shots or a chain.

Two shots, of n bytes on p ranks. Every rank owns one part of n/p bytes. Three ranks, rank 1's view:

    memory of      rank 0        rank 1        rank 2
                 [ a0 b0 c0 ]  [ a1 b1 c1 ]  [ a2 b2 c2 ]       rank 0 owns part a, rank 1 part b, rank 2 part c

    reduce             b0 +        b1 +          b2   →  b      rank 1 reads its part of every rank, in rank order
    write        [ .  b  . ]   [ .  b  . ]   [ .  b  . ]        ... and writes the result where every rank wants it

    barrier, reduce and write chunk by chunk, barrier.

Each rank reads n bytes and writes n bytes, whatever p is, and there are two barriers: one before, since all inputs must
be there, and one after, since all results must be. No third: what a rank writes lies in its own part, which nobody else
reads. This is the whole of it where the tensors lie in a shared buffer. Where one is reduced into a shared buffer from
other memory, what the others are to read of it is copied there first, n (p-1)/p bytes.

For other memory the same happens through staging memory (see `pipeline`), in three stages. A rank stages only what
others are to reduce, n (p-1)/p bytes, and copies as much of their results out. With stage, reduce and gather one chunk
apart, one barrier serves all three:

    chunk      stage   reduce   gather
    step 0       0
    step 1       1       0
    step 2       2       1        0           count + 2 steps with a barrier between each two
    ...

One shot, for little: each rank stages all its n bytes, and after one barrier each reduces all p n by itself.

A chain, for much: it takes fewer passes over memory than two shots, but longer to fill (see `chain`).

In every case the values of an element are combined in the order of ranks and finished once, or by everyone in the same
way: all ranks get the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from hpsearch_comm.collectives.reduction import Reduction
from hpsearch_comm.collectives.shm import chain
from hpsearch_comm.collectives.shm.chunks import SERIAL, fold, fold_piece, piece_length
from hpsearch_comm.collectives.shm.pipeline import LINE, Pipeline, meet, spans_of
from hpsearch_comm.failure.operation import Operation
from hpsearch_comm.shm.buffers import SharedBuffer
from hpsearch_comm.shm.copying import copy
from hpsearch_comm.shm.shm_segment import ShmSegment

SHORT = 512 << 10
"""Bytes of a tensor, times the square of the number of ranks, up to which an allreduce takes one shot even where the
tensors lie in a shared buffer: a copy is shorter then than a second barrier."""

ONE_SHOT = 2 << 20
"""The same for tensors in other memory. Together the ranks read so many bytes in one shot; in two, the same number
divided by the number of ranks, but with more barriers."""

Step = Callable[[], object]
Carry = Callable[[Operation, torch.Tensor, torch.Tensor], None]
"""Reduces the second argument over the ranks into the third, which may be the second, or else lies apart from it.

Both are 1-D, contiguous and on the CPU. The operation is compared with the other ranks' before anything is used: it
raises MismatchError where a rank is in another one, PeerLost where one has died, CommTimeoutError where one is missing.
"""


def bind(shm: ShmSegment, reduction: Reduction, numel: int) -> Carry:
    """Choose how tensors of this kind and length are reduced: once for all calls.

    Args:
        shm: The host's.
        reduction: Made for the tensors' dtype.
        numel: Their elements.
    """
    if shm.size == 1:
        return lambda _operation, tensor, out: copy(out, tensor)
    little = numel * reduction.dtype.itemsize * shm.size**2 <= SHORT and numel <= SERIAL
    carry = partial(_one_shot if little else _where_it_lies, shm, reduction)
    if reduction.computed is reduction.dtype:
        return carry

    def carry_signed(operation: Operation, tensor: torch.Tensor, out: torch.Tensor) -> None:
        signed = reduction.view(tensor)
        carry(operation, signed, signed if out is tensor else reduction.view(out))

    return carry_signed


def _one_shot(
    shm: ShmSegment, reduction: Reduction, operation: Operation, tensor: torch.Tensor, out: torch.Tensor
) -> None:
    results = shm.results
    turn = results.turn
    results.turn = turn + 1
    row = results.row(turn, tensor.dtype, tensor.numel())
    copy(row[shm.index], tensor)
    # `shm.meet`, without a frame of its own.
    shm.sign(operation)
    shm.barrier.wait(operation)
    shm.compare(operation)
    if reduction.widens:
        fold(shm, operation, reduction, row, out, finish=True)
        return
    reduction.into(row[0], row[1], out)
    for theirs in row[2:]:
        reduction.combine(out, theirs)
    reduction.finish(out, len(row))


def _where_it_lies(
    shm: ShmSegment, reduction: Reduction, operation: Operation, tensor: torch.Tensor, out: torch.Tensor
) -> None:
    """Reduce in place if all results belong in a shared buffer, and otherwise by the way that suits the length."""
    location = shm.find(out)
    if location is not None and tensor.data_ptr() != out.data_ptr():
        for member, (start, stop) in enumerate(_even_parts(tensor.numel(), shm.size, tensor.dtype.itemsize)):
            if member != shm.index:
                copy(out[start:stop], tensor[start:stop])
    if tensor.nbytes * shm.size**2 <= ONE_SHOT:
        first, run = _one_shot_through_staging(shm, operation, tensor, reduction, out)
    elif chain.pays(shm.size, shm.cores, tensor.numel() * reduction.accumulate.itemsize):
        chained = chain.Chain(shm, operation, tensor, reduction, out)
        first, run = chained.first, chained.run
    else:
        first, run = _two_shot(shm, operation, tensor, reduction, out)
    offsets = meet(shm, operation, location, first)
    if offsets is None:
        run()
    else:
        assert location is not None
        _in_place(shm, operation, tensor, reduction, out, location[0], offsets)


def _one_shot_through_staging(
    shm: ShmSegment, operation: Operation, tensor: torch.Tensor, reduction: Reduction, out: torch.Tensor
) -> tuple[Step, Step]:
    pipeline = Pipeline(shm, operation, [tensor])

    def run() -> None:
        row = shm.results.row(pipeline.result_turn, tensor.dtype, tensor.numel())
        fold(shm, operation, reduction, row, out, finish=True)

    return lambda: pipeline.publish(0, tensor), run


def _two_shot(
    shm: ShmSegment, operation: Operation, tensor: torch.Tensor, reduction: Reduction, out: torch.Tensor
) -> tuple[Step, Step]:
    parts = _even_parts(tensor.numel(), shm.size, tensor.dtype.itemsize)
    inputs = spans_of(shm, tensor, parts)
    outputs = inputs if out is tensor else spans_of(shm, out, parts)
    pipeline = Pipeline(shm, operation, inputs)

    def stage(number: int) -> None:
        pipeline.stage(number, inputs)

    def reduce(number: int) -> None:
        chunk = pipeline.cut(outputs[shm.index], number)
        result = shm.results.view(shm.index, pipeline.result_turn + number, 0, chunk.dtype, chunk.numel())
        # Summed up in memory of its own and then copied: adding where others have just read is twice as slow.
        pipeline.reduce(number, inputs, reduction, chunk, finish=True)
        copy(result, chunk)

    def gather(number: int) -> None:
        pipeline.gather(number, outputs)

    return lambda: stage(0), lambda: pipeline.run(stage, reduce, gather)


def _in_place(
    shm: ShmSegment,
    operation: Operation,
    tensor: torch.Tensor,
    reduction: Reduction,
    out: torch.Tensor,
    buffer: SharedBuffer,
    offsets: Sequence[int],
) -> None:
    dtype, itemsize = tensor.dtype, tensor.dtype.itemsize
    start, stop = _even_parts(tensor.numel(), shm.size, itemsize)[shm.index]
    step = piece_length(shm, operation, reduction)
    elsewhere = tensor.data_ptr() != out.data_ptr()
    with operation.phase("in place"):
        for cut in range(start, stop, step):
            first, numel = cut * itemsize, min(step, stop - cut)
            outputs = [buffer.part(member, offset + first, numel, dtype) for member, offset in enumerate(offsets)]
            result = outputs[shm.index]
            inputs = outputs.copy()
            if elsewhere:
                inputs[shm.index] = tensor[cut : cut + numel]
            fold_piece(shm, reduction, inputs, result, finish=True)
            for output in outputs:
                if output is not result:
                    copy(output, result)
    shm.barrier.wait(operation)


def _even_parts(numel: int, count: int, itemsize: int) -> list[tuple[int, int]]:
    """Cut into parts that begin at whole cache lines, so that two ranks never write to one."""
    line = LINE // itemsize
    length = -(-numel // (count * line)) * line
    return [(min(member * length, numel), min((member + 1) * length, numel)) for member in range(count)]
