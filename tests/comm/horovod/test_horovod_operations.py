"""hpsearch_comm.horovod on real ranks: what operations give, and that a disagreement doesn't end the job."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.comm.horovod.horovod_ranks import HorovodRanks

SIZE = 4


@pytest.fixture(scope="module")
def ranks() -> Iterator[HorovodRanks]:
    with HorovodRanks(SIZE, "tests.comm.horovod.horovod_calls") as ranks:
        yield ranks


def test_ranks_know_their_places(ranks):
    assert ranks.call("places") == [[rank, SIZE, rank, SIZE, 0, 1] for rank in range(SIZE)]


@pytest.mark.some_cases(3)
@pytest.mark.parametrize(
    "function",
    [
        "allreduces",
        "synchronous_ways",
        "gathers",
        "alltoalls",
        "reducescatters",
        "gradients",
        "sparse_reductions",
        "adasums",
    ],
)
def test_results_are_those_that_can_be_worked_out(ranks, function):
    ranks.call(function)


def test_operations_find_each_other_by_name_whatever_their_order(ranks):
    names = list("abcdefg")
    expected = [at * SIZE + 100 * sum(range(SIZE)) for at in range(7)]
    assert ranks.call("in_another_order_on_each_rank", names) == [expected] * SIZE


def test_several_threads_may_call(ranks):
    assert ranks.call("from_threads") == [[SIZE * (1.0 + thread) for thread in range(4)]] * SIZE


def test_poll_says_whether_an_operation_has_ended(ranks):
    assert ranks.call("poll_before_and_after") == [[False]] * SIZE


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("shape", "its shape must be the same on every rank, but is [3] on rank 0 and [4] on rank 1"),
        ("dtype", "its dtype must be the same on every rank, but is float32 on rank 0 and float64 on rank 1"),
        ("op", "its op must be the same on every rank, but is Max on rank 0 and Sum on rank 1"),
        ("root", "its root must be the same on every rank, but is 0 on rank 0 and 1 on rank 1"),
        ("factor", "its prescale_factor must be the same on every rank, but is 1.0 on rank 0 and 2.0 on rank 1"),
        ("columns", "its shape must be the same on every rank, but is [any, 1] on rank 0 and [any, 2] on rank 1"),
    ],
)
def test_a_disagreement_is_told_to_all_and_the_job_goes_on(ranks, kind, words):
    for text in ranks.call("disagree", kind):
        assert words in text


def test_a_name_can_be_under_way_once(ranks):
    for rank, text in enumerate(ranks.call("the_same_name_twice")):
        assert f"allreduce.twice{rank} hasn't ended yet" in text


def test_a_job_can_be_started_again_after_a_shutdown(ranks):
    for _ in range(3):
        assert ranks.call("start_again") == [[rank, SIZE] for rank in range(SIZE)]


def test_what_cant_be_carried_out_is_refused_and_the_job_goes_on(ranks):
    starts = [
        "ValueError: op must be one of hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product, got 17",
        "ValueError: pass op alone, which replaces average, got op=Sum and average=True",
        "ValueError: average must be True or False, got 'the name'",
        "UsageError: hvd.allreduce takes a dense tensor, got one of layout sparse_coo",
        "UsageError: hvd.allreduce takes a torch.Tensor, got list",
        "UsageError: hvd.allreduce_'s tensor must have memory of its own",
        "ValueError: hvd.grouped_allreduce_ takes each tensor once, as its result goes there, got one twice",
        "UsageError: collectives take tensors on the CPU or on a CUDA device, got one on meta",
        'UsageError: op="sum" of bool tensors',
        "ValueError: Adasum takes tensors of a floating dtype, got torch.int32",
        "ValueError: root_rank must be one of the process set's ranks, [0, 1, 2, 3], got 4",
        "UsageError: alltoall without splits needs a number of rows that 4 ranks can share evenly, got 5",
        "UsageError: splits must be 4 whole numbers of at least 0, one for each rank, with a sum of at most 5 rows",
        "UsageError: splits must be 4 whole numbers",
        "UsageError: splits must be 4 whole numbers",
        "HorovodInternalError: allgather.noname.",
        "HorovodInternalError: reducescatter.noname.",
        "HorovodInternalError: reducescatter takes op Average, Sum, Min, Max or Product, got Adasum",
        "ValueError: sparse tensors can be reduced with op Sum or Average, got Max",
        "ValueError: hvd.sparse_allreduce_async takes a sparse tensor, got one of torch.strided",
        "ValueError: handle 1000000000 was not given by an operation",
        "ValueError: the process set has not been registered",
        "UsageError: compression must be hvd.Compression.none, hvd.Compression.fp16 or a class of your own",
        "UsageError: compression must be hvd.Compression.none, hvd.Compression.fp16 or a class of your own",
        "UsageError: compression must be hvd.Compression.none, hvd.Compression.fp16 or a class of your own",
        "UsageError: compression must be hvd.Compression.none, hvd.Compression.fp16 or a class of your own",
    ]
    for said in ranks.call("refusals"):
        for text, start in zip(said, starts, strict=True):
            assert text.startswith(start)


def test_process_sets_go_their_own_ways(ranks):
    even = [[0, 2], 2, [0, 2], [2.0], 1.0, 6]
    odd = [[1, 3], 3, [1, 3], [2.0], 1.0, 6]
    assert ranks.call("process_sets") == [even, odd, even, odd]


def test_ranks_that_name_other_process_sets_are_told(ranks):
    for text in ranks.call("disagree_on_a_process_set"):
        assert "its ranks must be the same on every rank, but is [0, 1] on rank 0 and [0, 2] on rank 1" in text


def test_adasum_says_for_how_many_ranks_it_is(ranks):
    said = ranks.call("adasum_of_three")
    assert said == ["Adasum takes 1, 2, 4, 8 or another power of two ranks, got 3: use op=hvd.Average"] * 3 + [""]


@pytest.mark.parametrize("batches", [[3, 1, 0, 2], [2, 2, 2, 2], [0, 0, 0, 1], [0, 0, 0, 0]])
def test_ranks_that_have_joined_add_zeros(ranks, batches):
    outcomes = ranks.call("join_after", batches)
    (last,) = {last for last, _ in outcomes}
    assert batches[last] == max(batches)
    for rank, (_, means) in enumerate(outcomes):
        there = [[other for other in range(SIZE) if batches[other] > batch] for batch in range(batches[rank])]
        assert means == [[len(of) + sum(of), 2 * sum(of), sum(of) / SIZE] for of in there]


def test_what_zeros_would_change_ends_with_an_error_while_a_rank_has_joined(ranks):
    kinds = ["allgather", "broadcast", "alltoall", "reducescatter", "allreduce with op=Max", "barrier"]
    for rank, said in enumerate(ranks.call("calls_while_one_has_joined")):
        assert len(said) == (len(kinds) if rank else 0)
        for text, kind in zip(said, kinds, strict=bool(rank)):
            assert "can't be carried out while rank 0 has joined" in text
            assert f"mean nothing in {kind}. " in text
