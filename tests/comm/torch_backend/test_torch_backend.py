"""torch.distributed over our groups, beside Gloo: real processes, the same functions on both."""

from __future__ import annotations

import importlib
import json
import signal

import pytest
import torch
from torch.torch_version import TorchVersion

from tests.comm.torch_backend.served_ranks import served

ranks = served("tests.comm.torch_backend.torch_scripts")
functional = served("tests.comm.torch_backend.torch_functional")
failing = served("tests.comm.torch_backend.torch_failures")


@pytest.mark.some_cases(2)
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("how", ["blocking", "async", "future"])
def test_every_collective_gives_what_gloo_gives(ranks, size, how):
    # Gloo has no futures of some collectives.
    expected = ranks.call(size, "collectives", "blocking", backend="gloo")
    assert ranks.call(size, "collectives", how) == expected


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("later", [False, True])
def test_coalesced_gathers_and_shares_are_those_of_gloo(functional, size, later):
    assert functional.call(size, "coalesced", later) == functional.call(size, "coalesced", True, backend="gloo")


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("size", [2, 3])
def test_functional_collectives_are_those_of_gloo(functional, size):
    assert functional.call(size, "functional") == functional.call(size, "functional", backend="gloo")


@pytest.mark.some_cases(1)
@pytest.mark.parametrize(
    "env",
    [
        {"HPSEARCH_COMM_TRANSPORT": "tcp", "HPSEARCH_COMM_STREAMS": "1"},
        {"HPSEARCH_COMM_ALGORITHM": "ring", "HPSEARCH_COMM_SECRET": "5a" * 32},
    ],
)
def test_the_environment_chooses_transport_algorithm_and_secret(ranks, env):
    expected = ranks.call(3, "collectives", "blocking", backend="gloo")
    assert ranks.call(3, "collectives", "async", **env) == expected
    assert ranks.call(3, "groups", **env) == ranks.call(3, "groups", backend="gloo")


def test_an_older_torch_is_refused_and_no_collective_waits_for_ever(monkeypatch):
    import hpsearch_comm.torch_backend

    monkeypatch.setattr(torch, "__version__", TorchVersion("2.7.1+cpu"))
    with pytest.raises(ImportError, match=r"needs torch 2\.8 or newer, got 2\.7\.1"):
        importlib.reload(hpsearch_comm.torch_backend)


def test_the_timeline_is_that_of_the_group_of_all_ranks(ranks, tmp_path):
    ranks.call(3, "groups", HPSEARCH_COMM_TIMELINE=str(tmp_path / "trace.json"))
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"trace.rank0.json", "trace.rank1.json", "trace.rank2.json"}
    events = json.loads((tmp_path / "trace.rank0.json").read_text())
    assert not [event for event in events if event["name"] == "allreduce"]  # which only the new groups have called


def test_a_mistake_in_the_environment_is_said_at_once(ranks):
    for outcome in ranks.outcomes(2, "objects", HPSEARCH_COMM_ALGORITHM="rings"):
        assert (outcome.result, outcome.error) == ("DistBackendError", "ConfigurationError")
        assert "HPSEARCH_COMM_ALGORITHM" in outcome.text


def test_ranks_of_a_new_group_that_dont_come_are_named(failing):
    outcomes = failing.outcomes(3, "lonely")
    assert (outcomes[0].result, outcomes[0].error) == ("DistBackendError", "RendezvousError"), outcomes[0]
    assert "2 of 3 did not come to rank 0 (torch's store (FileStore at " in outcomes[0].text


@pytest.mark.some_cases(1)
@pytest.mark.parametrize(("size", "function"), [(2, "objects"), (3, "objects"), (3, "groups"), (4, "groups")])
def test_objects_and_groups_are_those_of_gloo(ranks, size, function):
    assert ranks.call(size, function) == ranks.call(size, function, backend="gloo")


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("length", [3, 400_000])
@pytest.mark.parametrize("size", [2, 3])
def test_messages_are_those_of_gloo(ranks, size, length):
    assert ranks.call(size, "messages", length) == ranks.call(size, "messages", length, backend="gloo")


@pytest.mark.parametrize("size", [2, 3])
def test_what_gloo_refuses_or_gets_wrong(ranks, size):
    ranks.call(size, "beyond_gloo")


def test_what_hangs_on_a_future_may_call_collectives(ranks):
    assert ranks.call(2, "callbacks") == [[2.0, 4.0, 8.0, 16.0]] * 2


def test_what_hangs_on_several_futures_calls_collectives_in_the_same_order_on_every_rank(ranks):
    assert ranks.call(2, "callbacks_of_many") == [[4.0 * number for number in range(30)]] * 2


def test_what_hangs_on_a_message_waits_for_it_elsewhere(ranks):
    assert ranks.call(2, "callbacks_of_messages") == [0.0, 2.0]


def test_tensors_are_kept_while_they_travel(ranks):
    ranks.call(2, "forgotten_inputs")


def test_groups_may_be_used_from_threads(ranks):
    ranks.call(2, "two_threads")


@pytest.mark.parametrize(
    ("what", "cause", "text"),
    [
        ("shape", "MismatchError", r"float32 [3]"),
        ("gathered shape", "MismatchError", "allgather"),
        ("operation", "MismatchError", "barrier"),
        ("message", "MismatchError", "send_recv"),
        ("late", "CommTimeoutError", "waited"),
        ("late barrier", "CommTimeoutError", "not every rank has come to barrier 0 within its own timeout of 0.3 s"),
        ("late asynchronous barrier", "CommTimeoutError", "barrier 0 within its own timeout of 0.3 s"),
    ],
)
def test_what_the_ranks_disagree_on_is_an_error_on_all(failing, what, cause, text):
    for outcome in failing.outcomes(2, "mistaken", what):
        assert (outcome.result, outcome.error) == ("DistBackendError", cause), outcome
        assert text in outcome.text


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("splits", "all_to_all_single expected"),
        ("device", "takes tensors on the CPU or on a CUDA device, got one on meta: move it with tensor.cpu()"),
        ("operator", "reduces with SUM, AVG, PRODUCT"),
        ("integers", 'op="mean" needs a floating dtype, got int64'),
        ("sparse shape", "sparse tensors of one shape"),
        ("lists", "one tensor for each of the 2 ranks, got 1"),
    ],
)
def test_a_mistake_is_an_error_and_the_group_goes_on(failing, what, text):
    assert all(text in said for said in failing.call(2, "mistaken_and_goes_on", what))


@pytest.mark.parametrize(
    ("backend", "instead"), [("cpu:hpsearch,cuda:nccl", "nccl"), ("cpu:gloo,cuda:hpsearch", "gloo")]
)
def test_a_backend_beside_ours_is_refused_where_the_group_is_made(failing, backend, instead):
    for outcome in failing.outcomes(2, "monitored", [], False, backend=backend):
        assert (outcome.result, outcome.error) == ("DistBackendError", "UsageError"), outcome
    for said in failing.call(2, "beside_another", backend):
        assert f'no other backend, got "{backend}"' in said
        assert f'dist.new_group(backend="{instead}")' in said


@pytest.mark.parametrize("what", ["blocking", "async", "future", "callback", "message"])
def test_a_rank_that_dies_is_lost_to_the_others(failing, what):
    *others, victim = failing.outcomes(3, "killed", what)
    assert victim.code == -signal.SIGKILL
    for outcome in others:
        if what in ("future", "callback"):  # which know nothing of causes
            assert "PeerLost: " in outcome.text
            assert "rank 2" in outcome.text
        else:
            assert (outcome.result, outcome.error, outcome.rank) == ("DistBackendError", "PeerLost", 2), outcome


@pytest.mark.some_cases(1)
@pytest.mark.parametrize(
    ("missing", "wait_all", "names"),
    [([1, 3], False, "rank 1 of 4"), ([1, 3], True, "rank 1, 3 of 4"), ([0], False, "rank 0 of 4")],
)
def test_a_monitored_barrier_says_who_is_missing(failing, missing, wait_all, names):
    for outcome in failing.outcomes(4, "monitored", missing, wait_all):
        assert (outcome.result, outcome.error) == ("DistBackendError", "CommTimeoutError"), outcome
        assert f"monitored_barrier: {names} didn't come within 2 s" in outcome.text
