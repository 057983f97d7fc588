"""Tensors that aren't plain memory of their own: views, subclasses, tensors of other modes, tensors that overlap."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

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


@pytest.mark.parametrize("length", LENGTHS)
def test_elements_may_begin_at_any_byte_of_a_shared_buffer(length):
    """As records that were packed without gaps do."""

    def work(group: comm.Group) -> None:
        octets = group.empty(3 + 8 * length, dtype=torch.uint8)
        tensor = torch.frombuffer(octets.numpy(), dtype=torch.float64, offset=3).fill_(1.0 + group.rank)
        assert tensor.data_ptr() == octets.data_ptr() + 3
        assert group.allreduce(tensor, "sum").eq(3.0).all()
        assert group.reduce_scatter(tensor, "sum").eq(6.0).all()
        assert group.broadcast(tensor.fill_(group.rank), root=1).eq(1.0).all()

    run_ranks(2, work)


def test_a_tensor_that_lies_anywhere_in_out_is_gathered_right():
    def work(group: comm.Group) -> list[float]:
        out = torch.arange(8.0)
        return group.allgather(out[1:5], out=out).tolist()

    assert run_ranks(2, work) == [[1.0, 2.0, 3.0, 4.0] * 2] * 2


@pytest.mark.some_cases(2)
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


def _spread(values: torch.Tensor) -> torch.Tensor:
    """Return the values at every second position of a tensor with twice the memory."""
    room = values.new_zeros((*values.shape, 2))
    room[..., 0] = values
    return room[..., 0]


def _in_inference_mode(values: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return values.clone()


def _conjugated(values: torch.Tensor) -> torch.Tensor:
    return values.conj().resolve_conj().conj() if values.is_complex() else values


def _negated(values: torch.Tensor) -> torch.Tensor:
    return values if values.dtype is torch.bool else torch._neg_view(-values)


def _imaginary(values: torch.Tensor) -> torch.Tensor:
    """Return the values as the imaginary parts of conjugated complex numbers, if they can be that."""
    if values.dtype not in (torch.float32, torch.float64):
        return values
    return torch.complex(torch.zeros_like(values), -values).conj().imag


# What holds the same values as a tensor of plain memory.
KINDS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "plain": lambda values: values,
    "conjugated": _conjugated,
    "negated": _negated,
    "imaginary": _imaginary,
    "conjugated and negated": lambda values: _negated(_conjugated(values)),
    "conjugated in places": lambda values: _conjugated(_spread(values)),
    "transposed": lambda values: values.t().contiguous().t() if values.dim() == 2 else values,
    "in places": _spread,
    "in inference mode": _in_inference_mode,
    "conjugated in inference mode": lambda values: _in_inference_mode(values).conj_physical().conj(),
    "with history": lambda values: values.requires_grad_(values.is_floating_point() or values.is_complex()),
    "parameter": lambda values: torch.nn.Parameter(values, requires_grad=False),
    "tagged": lambda values: _conjugated(values).as_subclass(_Tagged),
}
SHAPES = ((), (1,), (4,), (5, 3), (0,), (2, 0), (0, 3), (2, 4000))
TYPES = (torch.float32, torch.complex64, torch.complex128, torch.float16, torch.bfloat16, torch.int64, torch.bool)


def _values(rank: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank)
    whole = torch.randint(-9, 9, (*shape, 2), generator=generator).double()
    return torch.view_as_complex(whole).to(dtype) if dtype.is_complex else whole[..., 0].to(dtype)


def _as_plain(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().as_subclass(torch.Tensor).resolve_conj().resolve_neg().clone()


CASES = st.tuples(st.sampled_from(sorted(KINDS)), st.sampled_from(sorted(KINDS)), st.sampled_from(SHAPES))


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(CASES, st.sampled_from(TYPES)), min_size=1, max_size=8), st.sampled_from([*WAYS, None]))
def test_every_collective_of_every_kind_of_tensor_gives_what_torch_gives(cases, way):
    size = 2 if way is not None else 1

    def check(group: comm.Group, kind: str, target: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        everyone = [_values(rank, shape, dtype) for rank in range(size)]

        def mine() -> torch.Tensor:
            made = KINDS[kind](_values(group.rank, shape, dtype))
            assert torch.equal(_as_plain(made), everyone[group.rank]), kind
            return made

        def room(shape: Any) -> torch.Tensor:
            return KINDS[target](torch.full(shape, 1, dtype=dtype))

        def same(found: torch.Tensor, expected: torch.Tensor) -> None:
            torch.testing.assert_close(_as_plain(found), expected, rtol=0, atol=0)

        op = "max" if dtype is torch.bool else "sum"
        total = torch.stack(everyone).any(0) if dtype is torch.bool else torch.stack(everyone).sum(0)
        same(group.allreduce(mine(), op), total)
        same(group.allreduce(mine(), op, out=(out := room(shape))), total)
        same(out, total)
        for root in range(size):
            same(group.broadcast(mine(), root), everyone[root])
        gathered = torch.cat([values.view(1) if values.dim() == 0 else values for values in everyone])
        same(group.allgather(mine()), gathered)
        same(group.allgather(mine(), out=(out := room(gathered.shape))), gathered)
        same(out, gathered)
        if not shape:
            return
        share = torch.tensor_split(total, size)[group.rank]
        same(group.reduce_scatter(mine(), op), share)
        same(group.reduce_scatter(mine(), op, out=(out := room(share.shape))), share)
        same(out, share)
        splits = [shape[0] - shape[0] // 2, shape[0] // 2][:size] if size == 2 else [shape[0]]
        rows, counts = group.alltoall(mine(), splits)
        assert counts == [splits[group.rank]] * size
        same(rows, torch.cat([torch.split(values, splits)[group.rank] for values in everyone]))
        same(group.alltoall_async(mine(), splits).wait()[0], rows)

    def work(group: comm.Group) -> None:
        for (kind, target, shape), dtype in cases:
            check(group, kind, target, shape, dtype)

    run_ranks(size, work, **(way or {}))


def _freed() -> torch.Tensor:
    tensor = torch.ones(3)
    tensor.untyped_storage().resize_(0)
    return tensor


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: torch.ones(3).to_sparse(), "got one of layout sparse_coo"),
        (lambda: torch.ones(3).to_mkldnn(), "got one of layout _mkldnn"),
        (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "got a nested one"),
        (lambda: torch._efficientzerotensor(3), "elements are in memory"),
        (_freed, "elements are in memory"),
    ],
)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_tensors_that_are_not_dense_memory_are_refused(group, make, message):
    calls: list[Callable[[torch.Tensor], object]] = [
        group.allreduce,
        group.broadcast,
        group.allgather,
        group.reduce_scatter,
        group.alltoall,
        lambda tensor: group.allreduce(torch.ones(3), out=tensor),
        lambda tensor: group.allgather(torch.ones(3), out=tensor),
        lambda tensor: group.reduce_scatter(torch.ones(3), out=tensor),
    ]
    for call in calls:
        with pytest.raises(comm.UsageError, match=message):
            call(make())
    group.barrier()


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
