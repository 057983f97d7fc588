"""Allreduce on one host: in place if the results are in a shared buffer, else in one shot, two shots or a chain.

Two shots, with n bytes on p ranks: every rank owns one part of n/p bytes. Three ranks, rank 1's view:

    memory of      rank 0        rank 1        rank 2
                 [ a0 b0 c0 ]  [ a1 b1 c1 ]  [ a2 b2 c2 ]       rank 0 owns part a, rank 1 part b, rank 2 part c

    reduce             b0 +        b1 +          b2   →  b      rank 1 reads its part of every rank, in rank order
    write        [ .  b  . ]   [ .  b  . ]   [ .  b  . ]        ... and writes the result to every rank's output

    barrier, reduce and write chunk by chunk, barrier.

Each rank reads n bytes and writes n bytes, whatever p is. There are two barriers: one before, so that all inputs are
ready, and one after, so that all results are ready. A third isn't needed: a rank only writes its own part, which no
other rank reads. If the tensors are in a shared buffer, this is the whole algorithm. If a rank reduces other memory
into a shared buffer, it first copies the n (p-1)/p bytes that the others read into the buffer.

For other memory the same happens through staging memory (see `pipeline`), in three stages. A rank stages only the
n (p-1)/p bytes that others reduce, and copies as many bytes of their results out. Stage, reduce and gather work on
successive chunks, so one barrier per step serves all three:

    chunk      stage   reduce   gather
    step 0       0
    step 1       1       0
    step 2       2       1        0           count + 2 steps with a barrier between each two
    ...

One shot, for short tensors: each rank stages all its n bytes, and after one barrier each rank reduces all p n bytes.

A chain, for long tensors: it takes fewer passes over memory than two shots, but longer to fill (see `chain`).

In every case the values of an element are combined in the order of ranks, and finished once, or by all ranks in the
same way. So all ranks get the same bits.
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
"""Limit for one shot if the tensors are in a shared buffer: bytes of a tensor times the square of the number of ranks.
Up to it, a copy takes less time than a second barrier."""

ONE_SHOT = 2 << 20
"""The same limit for tensors in other memory. The product is the number of bytes that all ranks read in one shot. In
two shots they read this number divided by the number of ranks, but need more barriers."""

Step = Callable[[], object]
Carry = Callable[[Operation, torch.Tensor, torch.Tensor], None]
"""Reduces the second argument over the ranks into the third. They may be the same tensor, or must not overlap.

Both are 1-D, contiguous and on the CPU. The operation is compared with the other ranks' operations before any data is
used. Raises MismatchError if a rank runs another operation, PeerLost if one has died, CommTimeoutError if one is
missing.
"""


def bind(shm: ShmSegment, reduction: Reduction, numel: int) -> Carry:
    """Choose the algorithm for tensors of this dtype and length, once for all calls.

    Args:
        shm: The host's shared memory.
        reduction: The reduction for the tensors' dtype.
        numel: Number of elements.
    """
    if shm.size == 1:
        return lambda _operation, tensor, out: copy(out, tensor)
    little = numel * reduction.dtype.itemsize * shm.size**2 <= SHORT and numel <= SERIAL
    carry = partial(_one_shot, shm, reduction, numel) if little else partial(_where_it_lies, shm, reduction)
    if reduction.computed is reduction.dtype:
        return carry

    def carry_signed(operation: Operation, tensor: torch.Tensor, out: torch.Tensor) -> None:
        signed = reduction.view(tensor)
        carry(operation, signed, signed if out is tensor else reduction.view(out))

    return carry_signed


def _one_shot(
    shm: ShmSegment, reduction: Reduction, numel: int, operation: Operation, tensor: torch.Tensor, out: torch.Tensor
) -> None:
    results = shm.results
    turn = results.turn
    results.turn = turn + 1
    row = results.row(turn, reduction.computed, numel)
    copy(row[shm.index], tensor)
    # `shm.meet`, inlined.
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
    """Reduce in place if all results are in a shared buffer; otherwise choose the algorithm by length."""
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
        # Sum in private memory, then copy: adding in memory that others have just read is twice as slow.
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
    """Split into parts that start at multiples of a cache line, so that two ranks never write to the same line."""
    line = LINE // itemsize
    length = -(-numel // (count * line)) * line
    return [(min(member * length, numel), min((member + 1) * length, numel)) for member in range(count)]
