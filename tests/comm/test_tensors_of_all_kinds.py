"""Tensors that aren't plain memory of their own: views, subclasses, tensors of other modes, tensors that overlap."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import hpsearch_comm as comm
from tests.comm.thread_ranks import run_ranks

WAYS: list[dict[str, Any]] = [{}, {"transport": "tcp"}]
LENGTHS = (3, 100_000, 3_000_000)  # one shot, two shots in chunks, a chain of sums


@pytest.fixture
def group() -> Iterator[comm.Group]:
    with comm.Group(0, 1) as group:
        yield group


@pytest.mark.parametrize(
    "call",
    [
        lambda group: group.allreduce(torch.ones(1).expand(5)),
        lambda group: group.allreduce_async(torch.arange(6.0).unfold(0, 3, 1)),
        lambda group: group.allreduce(torch.ones(5), out=torch.ones(1).expand(5)),
        lambda group: group.allgather(torch.ones(5), out=torch.ones(1).expand(5)),
        lambda group: group.reduce_scatter(torch.ones(5), out=torch.ones(1).expand(5)),
    ],
)
def test_results_go_into_no_tensor_whose_elements_share_memory(group, call):
    with pytest.raises(comm.UsageError, match=r"memory of its own for each element.*strides \[.*clone"):
        call(group)
    group.barrier()


def test_a_broadcast_writes_into_all_tensors_but_the_roots():
    def work(group: comm.Group) -> list[float]:
        shared = torch.full((1,), 7.0).expand(4)
        if group.rank == 1:
            with pytest.raises(comm.UsageError, match="broadcast's tensor must have memory of its own"):
                group.broadcast(shared)
            shared = shared.clone()
        return group.broadcast(shared).tolist()

    assert run_ranks(2, work) == [[7.0] * 4] * 2


def test_what_is_only_read_may_be_any_view():
    def work(group: comm.Group) -> None:
        shared = torch.tensor(1.0 + group.rank).expand(2, 3)
        assert group.allreduce(shared, "sum", out=torch.empty(2, 3)).tolist() == [[3.0] * 3] * 2
        assert group.allgather(shared).tolist() == [[1.0] * 3] * 2 + [[2.0] * 3] * 2
        assert group.reduce_scatter(shared, "sum").tolist() == [[3.0] * 3]
        assert group.alltoall(shared).tolist() == [[1.0] * 3, [2.0] * 3]

    run_ranks(2, work)


@pytest.mark.parametrize("ahead", [True, False])
def test_out_must_not_overlap_the_tensor(group, ahead):
    memory = torch.ones(10)
    tensor, out = (memory[:-1], memory[1:]) if ahead else (memory[1:], memory[:-1])
    where = rf"begins {'[+]' if ahead else '-'}4 bytes from the tensor's begin"
    with pytest.raises(comm.UsageError, match=f"out of allreduce must be the tensor or lie apart.*{where}"):
        group.allreduce(tensor, out=out)
    with pytest.raises(comm.UsageError, match=f"out of reduce_scatter must be the rows.*{where}"):
        group.reduce_scatter(tensor, out=out)
    group.barrier()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("length", LENGTHS)
def test_out_may_be_the_tensor_under_another_name(way, length):
    def work(group: comm.Group) -> None:
        tensor = torch.full((2 * length,), 1.0 + group.rank)
        group.allreduce(tensor, "sum", out=tensor.view(2, length).view(-1))
        assert (tensor == 3).all()
        mine = slice(group.rank * length, (group.rank + 1) * length)
        group.reduce_scatter(tensor, "sum", out=tensor[mine])
        assert (tensor[mine] == 6).all()
        tensor[mine] = group.rank
        group.allgather(tensor[mine], out=tensor)
        assert (tensor[:length] == 0).all()
        assert (tensor[length:] == 1).all()

    run_ranks(2, work, **way)


def test_interleaved_columns_and_neighbours_do_not_overlap():
    def work(group: comm.Group) -> None:
        table = torch.zeros(50, 2)
        table[:, 0] = 1.0 + group.rank
        group.allreduce(table[:, 0], "sum", out=table[:, 1])
        assert (table == torch.tensor([1.0 + group.rank, 3.0])).all()
        row = torch.ones(100)
        group.allreduce(row[:50], "sum", out=row[50:])
        assert row.tolist() == [1.0] * 50 + [2.0] * 50

    run_ranks(2, work)


def test_a_tensor_that_lies_anywhere_in_out_is_gathered_right():
    def work(group: comm.Group) -> list[float]:
        out = torch.arange(8.0)
        return group.allgather(out[1:5], out=out).tolist()

    assert run_ranks(2, work) == [[1.0, 2.0, 3.0, 4.0] * 2] * 2


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("length", LENGTHS)
def test_autograd_sees_that_a_tensor_has_changed(way, length):
    changes: list[Callable[[comm.Group, torch.Tensor], object]] = [
        lambda group, saved: group.allreduce(saved),
        lambda group, saved: group.allreduce_async(saved).wait(),
        lambda group, saved: group.allreduce(torch.ones(length), out=saved),
        lambda group, saved: group.allgather(torch.ones(length // 2 + (length % 2) * group.rank), out=saved),
        lambda group, saved: group.reduce_scatter(torch.ones(2 * length), out=saved),
    ]

    def work(group: comm.Group) -> None:
        weight = torch.ones(length, requires_grad=True)
        for change in changes:
            saved = torch.ones(length)
            product = weight * saved
            change(group, saved)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                torch.autograd.grad(product.sum(), weight)
        saved = torch.ones(length)
        product = weight * saved
        group.broadcast(saved, root=0)
        if group.rank == 0:  # whose tensor stays as it is
            torch.autograd.grad(product.sum(), weight)
        else:
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                torch.autograd.grad(product.sum(), weight)

    run_ranks(2, work, **way)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("length", LENGTHS)
def test_inference_tensors_travel_within_inference_mode_and_outside_of_it(way, length):
    def work(group: comm.Group) -> None:
        with torch.inference_mode():
            inside = torch.ones(length)
            group.allreduce(inside, "sum")
            group.allreduce_async(inside, "sum").wait()
            gathered = group.allgather(inside)
            short = torch.ones(length, dtype=torch.bfloat16)
            group.allreduce(short, "sum")
            conjugated = torch.complex(torch.ones(3), torch.ones(3)).conj()
            negated = conjugated.imag
        assert not gathered.is_inference()
        group.allreduce(inside, "sum")
        group.allreduce_async(inside, "sum").wait()
        assert (inside == 16).all()
        group.allreduce(short, "sum")
        assert (short == 4).all()
        assert group.allreduce(conjugated, "sum", out=torch.empty(3, dtype=torch.complex64))[0] == 2 - 2j
        assert group.allreduce(negated, "sum", out=torch.empty(3))[0] == -2
        # What the group has made within the mode serves it outside.
        outside = torch.ones(length, dtype=torch.bfloat16)
        group.allreduce(outside, "sum")
        assert (outside == 2).all()

    run_ranks(2, work, **way)


def test_a_group_may_be_made_in_inference_mode():
    def work(group: comm.Group) -> None:
        with torch.inference_mode():
            other = group.duplicate()
        with other:
            for length in LENGTHS:
                assert (other.allreduce(torch.ones(length), "sum") == 2).all()

    run_ranks(2, work)


@pytest.mark.parametrize("way", [*WAYS, {"hosts": ["a", "a", "b"]}])
def test_the_default_device_is_the_users_matter(way):
    def work(group: comm.Group) -> None:
        tensor = torch.ones(6)
        with torch.device("meta"):
            assert group.allgather(tensor).tolist() == [1.0] * 18
            assert group.allgather_object({"rank": 1}) == [{"rank": 1}] * 3
            assert group.broadcast_object("text") == "text"
            assert group.alltoall(tensor).tolist() == [1.0] * 6
            assert group.allreduce(tensor).tolist() == [1.0] * 6
            assert group.reduce_scatter(tensor.bfloat16(), "sum").tolist() == [3.0] * 2
            assert group.empty(5).is_cpu
            assert group.empty(0).is_cpu
            group.barrier()
            group.duplicate().close()

    run_ranks(3, work, **way)


class _Tagged(torch.Tensor):
    """A subclass as users write them: every function of torch passes through it."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("length", LENGTHS)
def test_subclasses_are_taken_for_their_memory(length):
    def work(group: comm.Group) -> None:
        tagged = torch.ones(length).as_subclass(_Tagged)
        assert group.allreduce(tagged, "sum") is tagged
        assert (tagged.as_subclass(torch.Tensor) == 2).all()
        assert type(group.allgather(tagged)) is torch.Tensor
        parameter = torch.nn.Parameter(torch.ones(length))
        group.allreduce(parameter, "sum")
        assert (parameter == 2).all()
        buffer = torch.nn.Parameter(torch.ones(length), requires_grad=False)
        assert (group.broadcast(buffer) == 1).all()

    run_ranks(2, work)


class _Wrapper(torch.Tensor):
    """As DTensor and FakeTensor are made: it has a shape and a dtype, and its elements are elsewhere."""

    @staticmethod
    def __new__(cls, elements: torch.Tensor) -> _Wrapper:
        wrapper: _Wrapper = torch.Tensor._make_wrapper_subclass(cls, elements.shape, dtype=elements.dtype)
        return wrapper

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise AssertionError(f"{func} was called")


def test_tensors_without_memory_of_their_own_are_refused(group):
    wrapper = _Wrapper(torch.ones(3))
    with pytest.raises(comm.UsageError, match="got _Wrapper, which keeps its elements elsewhere"):
        group.allreduce(wrapper)
    with pytest.raises(comm.UsageError, match="got _Wrapper"):
        group.allgather(torch.ones(3), out=wrapper)
    with pytest.raises(comm.UsageError, match="got one on meta"):
        group.allreduce(torch.ones(3, device="meta"))
    group.barrier()
