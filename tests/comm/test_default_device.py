"""torch's default device and dtype are the user's: nothing of the package may lie or compute where they say."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import hpsearch_comm as comm
from hpsearch_comm.header import REDUCTIONS
from tests.comm.thread_ranks import run_ranks

WAYS = [{}, {"transport": "tcp"}, {"transport": "tcp", "algorithm": "naive"}, {"hosts": ["a", "a", "b"]}]


@contextmanager
def _defaults(device: str, dtype: torch.dtype) -> Iterator[None]:
    """Set both for all threads and back: the device is a thread's own, and the dtype is everybody's."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(before)


@pytest.mark.parametrize("way", WAYS)
def test_the_default_device_and_dtype_are_the_users_matter(way):
    def work(group: comm.Group) -> None:
        tensor = torch.ones(6, dtype=torch.float32, device="cpu")
        with torch.device("meta"):
            assert group.allgather(tensor).tolist() == [1.0] * 18
            assert group.allgather(tensor[0]).tolist() == [1.0] * 3
            assert group.allgather_object({"rank": 1}) == [{"rank": 1}] * 3
            assert group.broadcast_object("text") == "text"
            assert group.broadcast(tensor).tolist() == [1.0] * 6
            assert group.alltoall(tensor).tolist() == [1.0] * 6
            for dtype in (torch.float16, torch.bfloat16, torch.float8_e5m2, torch.float32, torch.complex64):
                for op in ("sum", "mean", "product") if dtype.is_complex else REDUCTIONS[1:6]:
                    expected = 3.0 if op == "sum" else 1.0
                    assert (
                        group.allreduce(tensor.to(dtype, copy=True), op).to(torch.complex64).tolist() == [expected] * 6
                    )
                    assert group.reduce_scatter(tensor.to(dtype), op).to(torch.complex64).tolist() == [expected] * 2
            long = tensor.expand(100_000, 6).contiguous().bfloat16()
            assert (group.allreduce(long, "sum") == 3).all()
            assert group.allreduce(tensor, "min").tolist() == [1.0] * 6
            assert group.allreduce_async(tensor, "max").wait().tolist() == [1.0] * 6
            assert group.empty(5).is_cpu
            assert group.empty(5).dtype is torch.float32
            assert group.empty(0).is_cpu
            group.barrier()
            group.duplicate().close()
            other = group.duplicate()
            network = torch.nn.Linear(6, 2, device="cpu", dtype=torch.bfloat16)
            model = comm.DataParallel(network, other)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(2):
                model(tensor.bfloat16() * group.rank).sum().backward()
                assert (network.weight.grad == 1).all()  # type: ignore[union-attr]
                optimizer.step()
                optimizer.zero_grad()
            comm.broadcast_optimizer_state(optimizer, other)
            embedding = torch.nn.Embedding(4, 2, sparse=True, device="cpu", dtype=torch.float32)
            comm.DataParallel(embedding, other)(torch.tensor([1, 1], device="cpu")).sum().backward()
            assert embedding.weight.grad.to_dense().tolist()[1] == [2.0, 2.0]  # type: ignore[union-attr]
            other.close()

    with _defaults("cpu", torch.float64):
        run_ranks(3, work, **way)


@pytest.mark.exhaustive
def test_what_is_made_once_and_for_all_is_made_on_the_cpu_whatever_the_default_device(tmp_path):
    script = """
import torch
torch.set_default_device("meta")
torch.set_default_dtype(torch.float64)
import hpsearch_comm as comm
from hpsearch_comm.collectives.reduction import reduction_for
for op in ("sum", "mean", "min", "max", "product"):
    for dtype in (torch.float32, torch.float16, torch.float8_e5m2):
        reduction = reduction_for(op, dtype)
        part = torch.full((3,), -0.0, dtype=torch.float32, device="cpu").to(reduction.accumulate)
        reduction.finish(part, 3)
        assert part.device.type == "cpu" and part.dtype is reduction.accumulate
        assert part.float().signbit().tolist() == [op not in ("min", "max")] * 3, (op, dtype)
with comm.Group(0, 1) as group:
    assert group.allreduce(torch.ones(3, dtype=torch.float32, device="cpu"), "max").tolist() == [1, 1, 1]
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


FACTORIES = {"arange", "as_tensor", "asarray", "empty", "empty_strided", "eye", "full", "linspace", "ones", "rand"} | {
    "randint", "randn", "randperm", "range", "scalar_tensor", "sparse_coo_tensor", "tensor", "zeros"
}  # fmt: skip


def test_every_new_tensor_of_the_package_names_its_device():
    package = Path(comm.__file__).parent
    missing = []
    for file in sorted(package.rglob("*.py")):
        if file.parent.name == "benchmark":
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and isinstance(node.func.value, ast.Name)
                and node.func.value.id == "torch"
                and node.func.attr in FACTORIES
                and "device" not in {keyword.arg for keyword in node.keywords}
            ):
                missing.append(f"{file.relative_to(package)}:{node.lineno} torch.{node.func.attr}")
    assert missing == []
