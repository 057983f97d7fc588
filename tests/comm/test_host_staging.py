from __future__ import annotations

import pytest
import torch

from hpsearch_comm.cuda.queue import wait_until
from hpsearch_comm.cuda.staging import HostStaging, chunks, layout
from hpsearch_comm.errors import PeerLost, UsageError
from hpsearch_comm.failure.abort import AbortState
from hpsearch_comm.header import DTYPES
from tests.comm.host_nccl import HostQueue

CPU = torch.device("cpu")


@pytest.fixture
def abort_state():
    abort_state = AbortState()
    yield abort_state
    abort_state.close()


class Staged:
    """Staging on the CPU, with a record of what it asked for."""

    def __init__(self, abort_state: AbortState, chunk_bytes: int = 64) -> None:
        self.down, self.up = HostQueue(), HostQueue()
        self.allocated: list[int] = []

        def allocate(nbytes: int) -> torch.Tensor:
            self.allocated.append(nbytes)
            return torch.full((nbytes,), 0xAB, dtype=torch.uint8)

        self.staging = HostStaging(
            CPU, abort_state, chunk_bytes=chunk_bytes, allocate=allocate, queues=(self.down, self.up)
        )


@pytest.mark.parametrize("numel", [0, 1, 15, 16, 17, 100, 1000])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.complex128])
def test_chunks_cover_everything_once_and_fit(numel, dtype):
    parts = chunks(numel, dtype.itemsize, 64)
    assert [stop for _, stop in parts[:-1]] == [start for start, _ in parts[1:]]
    assert (parts[0][0], parts[-1][1]) == (0, numel)
    assert all((stop - start) * dtype.itemsize <= 64 for start, stop in parts)
    assert len(parts) == max(1, -(-numel // (64 // dtype.itemsize)))


def test_chunks_are_equally_long_but_for_the_last():
    assert chunks(33, 4, 64) == [(0, 11), (11, 22), (22, 33)]
    assert chunks(10, 16, 1) == [(index, index + 1) for index in range(10)]
    assert chunks(5, 1, 2) == [(0, 2), (2, 4), (4, 5)]


def test_layout_keeps_blocks_aligned_and_apart():
    offsets, total = layout([1, 0, 512, 513])
    assert offsets == [0, 512, 512, 1024]
    assert total == 2048
    assert layout([]) == ([], 0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("numel", [0, 1, 63, 200])
def test_each_element_goes_down_through_the_collective_and_up(abort_state, dtype, numel):
    staged = Staged(abort_state)
    values = torch.arange(numel).remainder(2).to(dtype)
    seen = []

    def turn_over(chunk: torch.Tensor) -> None:
        assert chunk.is_contiguous()
        assert chunk.dtype is dtype
        seen.append(chunk.clone())
        chunk.copy_((1 - chunk.to(torch.int64 if not dtype.is_complex else dtype)).to(dtype))

    tensor = values.clone()
    assert staged.staging.elementwise(tensor, turn_over) is tensor
    assert torch.equal(torch.cat(seen).view(torch.uint8), values.view(torch.uint8))
    assert tensor.to(torch.float64 if not dtype.is_complex else dtype).tolist() == [
        (1 + index) % 2 for index in range(numel)
    ]
    assert len(seen) == len(chunks(numel, dtype.itemsize, 64))


def test_strides_out_and_gradients_are_kept(abort_state):
    staged = Staged(abort_state, 16)
    strided = torch.arange(24.0).reshape(4, 6)[:, ::2]
    before = strided.clone()
    out = torch.zeros(3, 4).t()
    assert staged.staging.elementwise(strided, lambda chunk: chunk.mul_(2), out=out) is out
    assert torch.equal(out, 2 * before)
    assert torch.equal(strided, before)
    staged.staging.elementwise(strided, lambda chunk: chunk.mul_(3))
    assert torch.equal(strided, 3 * before)
    parameter = torch.ones(5, requires_grad=True)
    staged.staging.elementwise(parameter, lambda chunk: chunk.add_(1))
    assert parameter.tolist() == [2.0] * 5


def test_slots_are_reused_and_waited_for_in_the_gpu(abort_state):
    staged = Staged(abort_state, 16)
    tensor = torch.arange(40.0)
    for _ in range(3):
        staged.staging.elementwise(tensor, lambda chunk: chunk.add_(1))
    assert torch.equal(tensor, torch.arange(40.0) + 3)
    assert staged.allocated == [16, 16, 16]
    # Three marks of callers; 30 chunks, of which all but the first three took a slot that had been used.
    assert len(staged.down.followed) == 3 + 27
    assert len(staged.up.followed) == 3
    assert len(staged.up.released) == 3


def test_any_collective_is_carried_whole(abort_state):
    staged = Staged(abort_state)
    inputs = [torch.arange(6.0).reshape(2, 3).t(), torch.tensor(7, dtype=torch.int16), torch.zeros(0, 3)]
    outputs = [torch.zeros(2, 2, dtype=torch.bfloat16), torch.zeros(3, 2).t(), torch.zeros(0)]

    def collective(given: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
        assert [tensor.shape for tensor in given] == [tensor.shape for tensor in inputs]
        assert [tensor.dtype for tensor in wanted] == [tensor.dtype for tensor in outputs]
        assert all(tensor.is_contiguous() for tensor in (*given, *wanted))
        assert torch.equal(given[0], inputs[0])
        assert given[1].item() == 7
        wanted[0].fill_(2)
        wanted[1].copy_(torch.arange(6.0).reshape(2, 3))

    staged.staging.whole(inputs, outputs, collective)
    assert outputs[0].tolist() == [[2, 2], [2, 2]]
    assert torch.equal(outputs[1], torch.arange(6.0).reshape(2, 3))
    staged.staging.whole(inputs, outputs, collective)
    assert len(staged.allocated) == 1
    staged.staging.whole([torch.zeros(3 * 2**21)], [], lambda _given, _wanted: None)
    assert staged.allocated == [4 * 2**20, 32 * 2**20]
    staged.staging.whole(inputs, outputs, collective)
    assert len(staged.allocated) == 2
    # What takes more is given back when it is done, and the next one has memory again.
    long = [torch.zeros(2**24 + 1)]
    staged.staging.whole(long, [], lambda _given, _wanted: None)
    assert staged.allocated[2:] == [128 * 2**20]
    assert staged.staging._slab.numel() == 0
    staged.staging.whole(inputs, outputs, collective)
    assert torch.equal(outputs[1], torch.arange(6.0).reshape(2, 3))
    staged.staging.close()
    staged.staging.whole([], [], lambda given, wanted: None)


def test_call_from_another_thread_waits_for_everything_on_the_host(abort_state):
    staged = Staged(abort_state)
    ready = staged.staging.mark()
    tensor = torch.ones(100)
    staged.staging.elementwise(tensor, lambda chunk: chunk.mul_(5), ready=ready)
    assert staged.down.followed[0] is ready
    assert staged.up.followed[0] is ready
    assert staged.up.released == []
    assert torch.equal(tensor, torch.full((100,), 5.0))


def test_error_of_the_collective_comes_through_and_the_staging_goes_on(abort_state):
    staged = Staged(abort_state, 16)
    tensor = torch.ones(40)

    def fail(chunk: torch.Tensor) -> None:
        raise PeerLost("rank 1 has died", 1)

    with pytest.raises(PeerLost):
        staged.staging.elementwise(tensor, fail)
    assert torch.equal(tensor, torch.ones(40))
    staged.staging.elementwise(tensor, lambda chunk: chunk.add_(1))
    assert torch.equal(tensor, torch.full((40,), 2.0))


@pytest.mark.parametrize("way", ["elementwise", "whole"])
def test_memory_is_kept_for_the_copies_before_anything_can_go_wrong(abort_state, way):
    staged = Staged(abort_state)
    tensor, out = torch.ones(40), torch.zeros(80)[::2]

    def fail(*_arguments: object) -> None:
        raise PeerLost("rank 1 has died", 1)

    def carry() -> None:
        if way == "elementwise":
            staged.staging.elementwise(tensor, fail, out=out)
        else:
            staged.staging.whole([tensor], [out], fail)

    with pytest.raises(PeerLost):
        carry()
    for queue in (staged.down, staged.up):
        for used in (tensor, out):
            assert any(kept is used for kept in queue.kept)


def test_conjugated_tensors_are_carried_by_value(abort_state):
    staged = Staged(abort_state)
    tensor = torch.tensor([1 + 2j, 3 - 1j])
    out = torch.zeros(2, dtype=torch.complex64)
    staged.staging.whole([tensor.conj()], [out.conj()], lambda given, wanted: wanted[0].copy_(given[0] * 2))
    assert out.tolist() == [2 + 4j, 6 - 2j]
    staged.staging.elementwise(tensor.conj(), lambda chunk: chunk.mul_(1j))
    assert tensor.tolist() == [2 - 1j, -1 - 3j]


def test_closing_waits_for_no_gpu(abort_state):
    staged = Staged(abort_state)
    staged.up.busy = lambda: True  # the copies up don't end
    staged.staging.elementwise(torch.ones(3), lambda chunk: None)
    staged.staging.close()


def test_failed_group_ends_the_wait_for_the_gpu(abort_state):
    staged = Staged(abort_state)
    staged.down.busy = lambda: True
    abort_state.fail(PeerLost("rank 1 has died", 1))
    with pytest.raises(PeerLost, match="rank 1 has died"):
        staged.staging.elementwise(torch.ones(3), lambda chunk: None)


def test_wrong_tensors_are_refused(abort_state):
    staging = Staged(abort_state).staging
    with pytest.raises(UsageError, match=r"tensors must lie on cpu, .* got one on meta"):
        staging.elementwise(torch.zeros(2, device="meta"), lambda chunk: None)
    with pytest.raises(UsageError, match=r"out must have the tensor's shape \[2\], got \[3\]"):
        staging.elementwise(torch.zeros(2), lambda chunk: None, out=torch.zeros(3))
    with pytest.raises(UsageError, match="got one on meta"):
        staging.whole([torch.zeros(2)], [torch.zeros(2, device="meta")], lambda given, wanted: None)


def test_wait_looks_until_it_is_done_and_lets_checks_raise():
    looks = iter([False] * 500 + [True])
    checks: list[int] = []
    wait_until(lambda: next(looks), lambda: checks.append(1))
    assert len(checks) == 500

    def refuse() -> None:
        raise UsageError("enough")

    wait_until(lambda: True, refuse)
    with pytest.raises(UsageError, match="enough"):
        wait_until(lambda: False, refuse)
