from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from hpsearch_comm.cuda.staging import ThroughHost
from hpsearch_comm.cuda.stream import wait_until
from hpsearch_comm.errors import PeerLost, UsageError
from hpsearch_comm.failure.abort import AbortState
from hpsearch_comm.header import DTYPES
from hpsearch_comm.operations.work_queue import Turn
from tests.comm.cuda.bare_collectives import bare_turn
from tests.comm.host_devices import HostEvent, HostStream

READY = HostEvent(lambda: True)
Collective = Callable[[torch.Tensor, torch.Tensor], object]


@pytest.fixture
def abort_state():
    abort_state = AbortState()
    yield abort_state
    abort_state.close()


class Staged:
    """Staging on the CPU."""

    stream = None

    def __init__(self, abort_state: AbortState) -> None:
        self.beside = HostStream()
        self.staging = ThroughHost(self.beside, self, abort_state)

    def carry(self, tensor: torch.Tensor, collective: Collective, out: torch.Tensor | None = None) -> None:
        """Carry a collective out, in place unless there is an `out`."""
        self.collective = collective
        self._run("allreduce" if out is None else "allgather", tensor, tensor if out is None else out)

    def broadcast(self, tensor: torch.Tensor, root: int) -> None:
        self.collective = lambda source, target: None
        self._run("broadcast", tensor, tensor, root)

    def run(self, turn: Turn, tensor: torch.Tensor, out: torch.Tensor, detail: Any) -> None:
        self.collective(tensor, out)

    def _run(self, operation: str, tensor: torch.Tensor, out: torch.Tensor, root: int = -1) -> None:
        turn = bare_turn(operation, tensor, root=root)
        turn.rank, turn.ready = 0, READY
        self.staging.run(turn, tensor, out, root)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("numel", [0, 1, 63, 200])
def test_each_element_goes_down_through_the_collective_and_up(abort_state, dtype, numel):
    values = torch.arange(numel).remainder(2).to(dtype)

    def turn_over(source: torch.Tensor, target: torch.Tensor) -> None:
        assert source.is_contiguous()
        assert source is target
        assert torch.equal(source.view(torch.uint8), values.view(torch.uint8))
        source.copy_((1 - source.to(torch.int64 if not dtype.is_complex else dtype)).to(dtype))

    tensor = values.clone()
    Staged(abort_state).carry(tensor, turn_over)
    assert tensor.to(torch.float64 if not dtype.is_complex else dtype).tolist() == [
        (1 + index) % 2 for index in range(numel)
    ]


def test_strides_and_out_are_kept(abort_state):
    staged = Staged(abort_state)
    strided = torch.arange(24.0).reshape(4, 6)[:, ::2]
    before = strided.clone()
    out = torch.zeros(3, 4).t()
    staged.carry(strided, lambda source, target: torch.mul(source, 2, out=target), out)
    assert torch.equal(out, 2 * before)
    assert torch.equal(strided, before)
    staged.carry(strided, lambda source, target: source.mul_(3))
    assert torch.equal(strided, 3 * before)
    assert staged.beside.followed == [READY] * 2


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
    def collective(source: torch.Tensor, target: torch.Tensor) -> None:
        assert (source.shape, source.dtype) == (tensor.shape, tensor.dtype)
        assert (target.shape, target.dtype) == (out.shape, out.dtype)
        assert source.is_contiguous()
        assert target.is_contiguous()
        target.copy_(torch.arange(target.numel()).view(target.shape))
        assert torch.equal(source, tensor), "the two lie apart"

    Staged(abort_state).carry(tensor, collective, out)
    assert torch.equal(out, torch.arange(out.numel()).view(out.shape).to(out.dtype))


def test_the_root_of_a_broadcast_may_have_elements_that_share_memory(abort_state):
    staged = Staged(abort_state)
    staged.broadcast(torch.ones(1).expand(3), 0)
    with pytest.raises(RuntimeError):
        staged.broadcast(torch.ones(1).expand(3), 1)


def test_a_call_waits_on_the_host_for_the_last_copy(abort_state):
    staged = Staged(abort_state)
    looks = iter([False, *[True] * 20])
    staged.beside.busy = lambda: next(looks, False)  # the copy up goes on for some looks
    staged.carry(torch.ones(3), lambda source, target: None)
    assert next(looks, None) is None
    assert staged.beside.followed == [READY]


def test_error_of_the_collective_comes_through_and_the_staging_goes_on(abort_state):
    staged = Staged(abort_state)
    tensor, out = torch.ones(40), torch.zeros(80)[::2]

    def fail(source: torch.Tensor, target: torch.Tensor) -> None:
        raise PeerLost("rank 1 has died", 1)

    with pytest.raises(PeerLost):
        staged.carry(tensor, fail, out)
    for used in (tensor, out):  # memory is kept for the copies before anything can go wrong
        assert any(kept is used for kept in staged.beside.kept)
    assert torch.equal(tensor, torch.ones(40))
    staged.carry(tensor, lambda source, target: source.add_(1))
    assert torch.equal(tensor, torch.full((40,), 2.0))


def test_conjugated_tensors_are_carried_by_value(abort_state):
    staged = Staged(abort_state)
    tensor = torch.tensor([1 + 2j, 3 - 1j])
    out = torch.zeros(2, dtype=torch.complex64)
    staged.carry(tensor.conj(), lambda source, target: target.copy_(source * 2), out.conj())
    assert out.tolist() == [2 + 4j, 6 - 2j]
    staged.carry(tensor.conj(), lambda source, target: source.mul_(1j))
    assert tensor.tolist() == [2 - 1j, -1 - 3j]


def test_failed_group_ends_the_wait_for_the_gpu(abort_state):
    staged = Staged(abort_state)
    staged.beside.busy = lambda: True
    abort_state.fail(PeerLost("rank 1 has died", 1))
    with pytest.raises(PeerLost, match="rank 1 has died"):
        staged.carry(torch.ones(3), lambda source, target: None)


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
