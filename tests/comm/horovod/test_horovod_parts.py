"""The parts of hpsearch_comm.horovod that need no ranks: which tensors go together, Adasum of two, the variables."""

from __future__ import annotations

import math
import threading
import time
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hpsearch_comm as comm
import hpsearch_comm.horovod as hvd
from hpsearch_comm.horovod.controller import Controller
from hpsearch_comm.horovod.execution import SMALL_BYTES, combine, plan_batches
from hpsearch_comm.horovod.request import Entry, ReduceOp, Request
from hpsearch_comm.horovod.settings import Settings
from tests.comm.host_devices import DeviceRanks
from tests.comm.thread_ranks import run_ranks

sizes = st.one_of(st.integers(0, 64), st.integers(SMALL_BYTES // 4 - 2, SMALL_BYTES // 4 + 2))
requests = st.builds(
    Request,
    st.just("x"),
    st.just("allreduce"),
    st.lists(st.tuples(st.sampled_from(["float32", "float64"]), sizes.map(lambda size: (size,))), max_size=4).map(
        tuple
    ),
    st.sampled_from([ReduceOp.SUM, ReduceOp.AVERAGE, ReduceOp.ADASUM]),
    prescale_factor=st.sampled_from([1.0, 0.5]),
)


@given(st.lists(requests, max_size=6), st.sampled_from([0, 100, 1 << 20]))
def test_each_tensor_is_in_one_batch_and_batches_are_of_one_kind_and_bounded(ready, limit):
    batches = plan_batches(ready, limit)
    places = [place for batch in batches for place in batch]
    assert sorted(places) == [(at, which) for at, request in enumerate(ready) for which in range(len(request.tensors))]
    for batch in batches:
        kinds = {(ready[at].tensors[which][0], ready[at].op, ready[at].prescale_factor) for at, which in batch}
        assert len(kinds) == 1
        ((dtype, op, _),) = kinds
        each = [ready[at].tensors[which][1][0] * (4 if dtype == "float32" else 8) for at, which in batch]
        assert len(batch) == 1 or (sum(each) <= limit and max(each) <= SMALL_BYTES and op is not ReduceOp.ADASUM)


def test_small_tensors_of_a_kind_go_together():
    small = Request("a", "allreduce", (("float32", (8,)),) * 3, ReduceOp.SUM)
    large = Request("b", "allreduce", (("float32", (SMALL_BYTES,)),), ReduceOp.SUM)
    assert plan_batches([small, large, small], 1 << 20) == [[(0, 0), (0, 1), (0, 2), (2, 0), (2, 1), (2, 2)], [(1, 0)]]


vectors = st.lists(st.floats(-8, 8, width=32), min_size=3, max_size=3).map(torch.tensor)


@given(vectors, vectors)
def test_adasum_of_two_is_the_papers(first, second):
    def length(of: Any) -> float:
        return math.fsum(value * value for value in of.tolist())

    product = math.fsum(a * b for a, b in zip(first.tolist(), second.tolist(), strict=True))
    shares = [1 - product / (2 * length(of)) if length(of) else 1.0 for of in (first, second)]
    expected = [shares[0] * a + shares[1] * b for a, b in zip(first.tolist(), second.tolist(), strict=True)]
    torch.testing.assert_close(combine(first, second), torch.tensor(expected), rtol=1e-4, atol=1e-4)


def test_adasum_adds_what_is_orthogonal_averages_what_is_equal_and_keeps_what_is_alone():
    one, other, zero = torch.tensor([3.0, 0.0]), torch.tensor([0.0, 4.0]), torch.zeros(2)
    assert combine(one, other).tolist() == [3.0, 4.0]
    assert combine(one, one).tolist() == [3.0, 0.0]
    assert combine(one, zero).tolist() == combine(zero, one).tolist() == [3.0, 0.0]
    assert combine(zero, zero).tolist() == [0.0, 0.0]


def test_variables_say_how_it_runs():
    assert Settings.read({}) == Settings(0.001, 2 << 20, 60.0)
    assert Settings.read({"HOROVOD_CYCLE_TIME": " 3.5 ", "HOROVOD_FUSION_THRESHOLD": "0"}) == Settings(0.0035, 0, 60.0)
    assert Settings.read({"HOROVOD_STALL_CHECK_TIME_SECONDS": "5"}).stall_seconds == 5
    assert Settings.read({"HOROVOD_STALL_CHECK_TIME_SECONDS": "0"}).stall_seconds == math.inf
    assert Settings.read({"HOROVOD_STALL_CHECK_DISABLE": "1"}).stall_seconds == math.inf
    assert Settings.read({"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "9"}).shutdown_seconds == 9
    assert Settings.read({}).shutdown_seconds == math.inf


@pytest.mark.parametrize("text", ["-1", "fast", "nan", "inf"])
def test_a_variable_that_is_no_number_is_named(text):
    with pytest.raises(
        comm.ConfigurationError, match=f"expected HOROVOD_CYCLE_TIME to be a number of at least 0, got '{text}'"
    ):
        Settings.read({"HOROVOD_CYCLE_TIME": text})


@pytest.mark.parametrize("ranks", [3, None, [0.5], ["0"], [True]])
def test_a_process_set_is_made_of_ranks(ranks):
    with pytest.raises(ValueError, match="must be made of a list of ranks"):
        hvd.ProcessSet(ranks)


def test_before_init_there_is_no_job():
    assert not hvd.is_initialized()
    for ask in (hvd.rank, hvd.size, hvd.local_rank, hvd.local_size, hvd.cross_rank, hvd.cross_size):
        with pytest.raises(ValueError, match=r"call hvd.init\(\) before this"):
            ask()
    with pytest.raises(hvd.HorovodInternalError, match=r"call hvd.init\(\) before this"):
        hvd.allreduce(torch.ones(1))
    hvd.shutdown()


def test_it_says_what_it_is_built_on():
    assert not any(ask() for ask in (hvd.mpi_built, hvd.mpi_enabled, hvd.gloo_built, hvd.gloo_enabled))
    assert not any(ask() for ask in (hvd.nccl_built, hvd.ddl_built, hvd.ccl_built, hvd.cuda_built, hvd.rocm_built))
    with pytest.raises(ValueError, match="no MPI"):
        hvd.mpi_threads_supported()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_compression_gives_back_the_dtype(dtype):
    tensor = torch.tensor([1, 2, 3], dtype=dtype)
    short, context = hvd.Compression.fp16.compress(tensor)
    assert short.dtype is (torch.float16 if dtype.is_floating_point else dtype)
    assert torch.equal(hvd.Compression.fp16.decompress(short, context), tensor)
    assert hvd.Compression.none.compress(tensor)[0] is tensor


@pytest.mark.parametrize(
    ("module", "name", "instead"),
    [
        (hvd, "mpi_ops", "import its functions from hpsearch_comm.horovod itself"),
        (hvd, "run", "python -m hpsearch_comm.launch"),
        (hvd.elastic, "run_fn", "hvd.elastic.run"),
        (hvd.elastic.state, "StateHandler", "a subclass of hvd.elastic.State"),
    ],
)
def test_a_name_of_horovods_that_is_missing_says_what_to_use(module, name, instead):
    with pytest.raises(hvd.MissingError) as caught:
        getattr(module, name)
    assert f"{module.__name__} has no {name}, which Horovod's API has: " in str(caught.value)
    assert instead in str(caught.value)
    assert not hasattr(module, name)


@pytest.mark.parametrize("module", [hvd, hvd.elastic, hvd.elastic.state])
def test_a_name_that_nobody_has_is_pythons_attribute_error(module):
    with pytest.raises(AttributeError, match=r"has no attribute 'allredoce'") as caught:
        module.allredoce  # noqa: B018
    assert not isinstance(caught.value, comm.CommError)


def test_what_is_under_way_when_a_rank_leaves_ends_with_that_reason_wherever_the_thread_is():
    """The thread is between two exchanges, and meets the groups closed."""

    def leave(group: comm.Group) -> list[str]:
        carried = threading.Event()

        def carry(entry: Entry) -> None:
            carried.set()
            while not group.closed:
                time.sleep(0.001)
            group.barrier()

        controller = Controller(group, [3], Settings.read({}))
        entries = [Entry(Request("a", "held"), carry=carry), Entry(Request("b", "held"), carry=carry)]
        controller.submit(entries[0])
        carried.wait()
        controller.submit(entries[1])
        controller.close()
        said = []
        for call in (entries[0].handle.wait, entries[1].handle.wait, controller.join):
            with pytest.raises(hvd.HorovodInternalError) as ended:
                call()
            said.append(str(ended.value))
        return said

    (said,) = run_ranks(1, leave)
    assert len(said) == 3
    for text in said:
        assert "rank 3 has left the job by hvd.shutdown() or its end" in text
        assert "the group is closed" not in text


def test_a_rank_that_joins_without_a_step_gives_zeros_of_the_gpu_that_its_caller_has_chosen(monkeypatch):
    """Each thread chooses its own, and the controller's has chosen none."""
    caller = threading.get_ident()
    made: list[torch.device] = []

    def stand_in(request: Request, device: torch.device) -> Entry:
        made.append(device)
        return Entry(request)

    monkeypatch.setattr("hpsearch_comm.horovod.controller.stand_in", stand_in)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3 if threading.get_ident() == caller else 0)
    group = comm.Group(0, 1)
    DeviceRanks(1).join(group)
    controller = Controller(group, [0], Settings.read({}))
    controller.join().wait(60)
    thread = threading.Thread(
        target=controller._stand_in, args=[Request("x", "allreduce", (("float32", (2,)),), ReduceOp.SUM, device="cuda")]
    )
    thread.start()
    thread.join()
    controller.close()
    assert made == [torch.device("cuda", 3)]
