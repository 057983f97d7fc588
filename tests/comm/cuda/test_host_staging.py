from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest
import torch

from hpsearch_comm.cuda.staging import ThroughHost
from hpsearch_comm.cuda.stream import wait_until
from hpsearch_comm.errors import PeerLost, UsageError
from hpsearch_comm.failure.abort import AbortState
from hpsearch_comm.header import DTYPES
from hpsearch_comm.operations.host_collectives import HostCollectives
from tests.comm.host_devices import HostEvent, HostStream

READY = HostEvent(lambda: True)


@pytest.fixture
def abort_state():
    abort_state = AbortState()
    yield abort_state
    abort_state.close()


class Staged:
    """Staging on the CPU, with a record of what it asked for."""

    def __init__(self, abort_state: AbortState, chunk_bytes: int = 64) -> None:
        self.stream = HostStream()
        self.allocated: list[int] = []

        def allocate(nbytes: int) -> torch.Tensor:
            self.allocated.append(nbytes)
            return torch.full((nbytes,), 0xAB, dtype=torch.uint8)

        self.staging = ThroughHost(self.stream, cast(HostCollectives, None), abort_state, allocate, chunk_bytes)

    def elementwise(
        self, tensor: torch.Tensor, collective: Callable[[torch.Tensor], object], out: torch.Tensor | None = None
    ) -> None:
        """Carry a collective out, in place unless `out` is given."""
        self.staging.elementwise(tensor, tensor if out is None else out, collective, READY)

    def whole(
        self, tensor: torch.Tensor, out: torch.Tensor, collective: Callable[[torch.Tensor, torch.Tensor], object]
    ) -> None:
        self.staging.whole(tensor, out, collective, READY)


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
    staged.elementwise(tensor, turn_over)
    assert torch.equal(torch.cat(seen).view(torch.uint8), values.view(torch.uint8))
    assert tensor.to(torch.float64 if not dtype.is_complex else dtype).tolist() == [
        (1 + index) % 2 for index in range(numel)
    ]
    assert len(seen) == max(1, -(-numel // (64 // dtype.itemsize)))
    assert all(chunk.nbytes <= 64 for chunk in seen)


def test_strides_and_out_are_kept(abort_state):
    staged = Staged(abort_state, 16)
    strided = torch.arange(24.0).reshape(4, 6)[:, ::2]
    before = strided.clone()
    out = torch.zeros(3, 4).t()
    staged.elementwise(strided, lambda chunk: chunk.mul_(2), out)
    assert torch.equal(out, 2 * before)
    assert torch.equal(strided, before)
    staged.elementwise(strided, lambda chunk: chunk.mul_(3))
    assert torch.equal(strided, 3 * before)


def test_chunks_share_one_piece_of_host_memory(abort_state):
    staged = Staged(abort_state, 16)
    tensor = torch.arange(40.0)
    for _ in range(3):
        staged.elementwise(tensor, lambda chunk: chunk.add_(1))
    assert torch.equal(tensor, torch.arange(40.0) + 3)
    assert staged.allocated == [16]
    assert staged.stream.followed == [READY] * 3


@pytest.mark.parametrize(
    ("tensor", "out"),
    [
        (torch.arange(6.0).reshape(2, 3).t(), torch.zeros(2, 2, dtype=torch.bfloat16)),
        (torch.tensor(7, dtype=torch.int16), torch.zeros(3, 2).t()),
        (torch.zeros(0, 3), torch.zeros(1, dtype=torch.complex128)),
        (torch.ones(1, dtype=torch.uint8), torch.zeros(0)),
    ],
)
def test_any_collective_is_carried_whole(abort_state, tensor, out):
    staged = Staged(abort_state)

    def collective(given: torch.Tensor, wanted: torch.Tensor) -> None:
        assert (given.shape, given.dtype) == (tensor.shape, tensor.dtype)
        assert (wanted.shape, wanted.dtype) == (out.shape, out.dtype)
        assert given.is_contiguous()
        assert wanted.is_contiguous()
        wanted.copy_(torch.arange(wanted.numel()).view(wanted.shape))
        assert torch.equal(given, tensor), "the two lie apart"

    staged.whole(tensor, out, collective)
    assert torch.equal(out, torch.arange(out.numel()).view(out.shape).to(out.dtype))


def test_host_memory_is_kept_for_the_next_call_up_to_a_limit(abort_state):
    staged = Staged(abort_state)

    def carry(nbytes: int) -> int:
        """Return how often memory has been allocated so far, over all calls."""
        staged.whole(torch.zeros(nbytes, dtype=torch.uint8), torch.zeros(0), lambda given, wanted: None)
        return len(staged.allocated)

    assert [carry(nbytes) for nbytes in (0, 100, 64, 3 * 2**20, 2**22, 2**10)] == [0, 1, 1, 2, 2, 2]
    staged.elementwise(torch.ones(200), lambda chunk: chunk.add_(1))
    assert staged.allocated == [512, 2**22]
    # What takes more is given back when it is done, and the next one has memory again.
    assert [carry(nbytes) for nbytes in (2**26 + 1, 1, 1)] == [3, 4, 4]
    staged.staging.close()
    assert carry(1) == 5


@pytest.mark.parametrize("way", ["elementwise", "whole"])
def test_a_call_waits_on_the_host_for_the_last_copy(abort_state, way):
    staged = Staged(abort_state)
    looks = iter([False, *[True] * 20])
    staged.stream.busy = lambda: next(looks, False)  # the copy up goes on for some looks
    if way == "elementwise":
        staged.elementwise(torch.ones(3), lambda chunk: None)
    else:
        staged.whole(torch.ones(3), torch.ones(3), lambda given, wanted: None)
    assert next(looks, None) is None
    assert staged.stream.followed == [READY]


def test_error_of_the_collective_comes_through_and_the_staging_goes_on(abort_state):
    staged = Staged(abort_state, 16)
    tensor = torch.ones(40)

    def fail(chunk: torch.Tensor) -> None:
        raise PeerLost("rank 1 has died", 1)

    with pytest.raises(PeerLost):
        staged.elementwise(tensor, fail)
    assert torch.equal(tensor, torch.ones(40))
    staged.elementwise(tensor, lambda chunk: chunk.add_(1))
    assert torch.equal(tensor, torch.full((40,), 2.0))


@pytest.mark.parametrize("way", ["elementwise", "whole"])
def test_memory_is_kept_for_the_copies_before_anything_can_go_wrong(abort_state, way):
    staged = Staged(abort_state)
    tensor, out = torch.ones(40), torch.zeros(80)[::2]

    def fail(*_arguments: object) -> None:
        raise PeerLost("rank 1 has died", 1)

    def carry() -> None:
        if way == "elementwise":
            staged.elementwise(tensor, fail, out)
        else:
            staged.whole(tensor, out, fail)

    with pytest.raises(PeerLost):
        carry()
    for used in (tensor, out):
        assert any(kept is used for kept in staged.stream.kept)


def test_conjugated_tensors_are_carried_by_value(abort_state):
    staged = Staged(abort_state)
    tensor = torch.tensor([1 + 2j, 3 - 1j])
    out = torch.zeros(2, dtype=torch.complex64)
    staged.whole(tensor.conj(), out.conj(), lambda given, wanted: wanted.copy_(given * 2))
    assert out.tolist() == [2 + 4j, 6 - 2j]
    staged.elementwise(tensor.conj(), lambda chunk: chunk.mul_(1j))
    assert tensor.tolist() == [2 - 1j, -1 - 3j]


def test_failed_group_ends_the_wait_for_the_gpu(abort_state):
    staged = Staged(abort_state)
    staged.stream.busy = lambda: True
    abort_state.fail(PeerLost("rank 1 has died", 1))
    with pytest.raises(PeerLost, match="rank 1 has died"):
        staged.elementwise(torch.ones(3), lambda chunk: None)


def test_wait_looks_until_it_is_done_and_lets_checks_raise():
    looks = iter([False] * 300 + [True])
    checks: list[int] = []
    wait_until(lambda: next(looks), lambda: checks.append(1))
    assert len(checks) == 300

    def refuse() -> None:
        raise UsageError("enough")

    wait_until(lambda: True, refuse)
    with pytest.raises(UsageError, match="enough"):
        wait_until(lambda: False, refuse)
