"""What servers hold: everything once, in shares of about as many bytes."""

from __future__ import annotations

import itertools

import torch
from hypothesis import given
from hypothesis import strategies as st

from hpsearch_trainers.strategies.placement import Bucket, Piece, Placed, assign_parameters

PARAMETERS = st.builds(
    Placed,
    st.integers(0, 5000),
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    st.booleans(),
    st.booleans(),
)


def test_the_example_of_the_file():
    buckets = assign_parameters([Placed(elements, torch.float32, True) for elements in (800, 40, 100, 60)], 2)
    held = [[piece for bucket in buckets if bucket.server == server for piece in bucket.pieces] for server in range(2)]
    assert held == [
        [Piece(3, 0, 60), Piece(2, 0, 50), Piece(0, 0, 400)],
        [Piece(2, 50, 100), Piece(1, 0, 40), Piece(0, 400, 800)],
    ]
    assert sorted(bucket.elements for bucket in buckets) == [490, 510]


def test_a_long_parameter_is_cut_on_one_server_too():
    """So that its first run comes back while the last one is on its way."""
    parameter = Placed(1000, torch.float32, True)
    buckets = assign_parameters([parameter], 1, 1024)
    runs = [Piece(0, 0, 250), Piece(0, 250, 500), Piece(0, 500, 750), Piece(0, 750, 1000)]
    assert [piece for bucket in buckets for piece in bucket.pieces] == runs
    assert {bucket.bytes for bucket in assign_parameters([parameter], 2, 1024)} <= {1000, 1024, 2000}
    assert len(assign_parameters([Placed(1000, torch.float32)], 1, 1024)) == 1


@given(st.lists(PARAMETERS, max_size=12), st.integers(1, 4), st.integers(1, 20_000))
def test_each_element_is_held_once(parameters, servers, bucket_bytes):
    buckets = assign_parameters(parameters, servers, bucket_bytes)
    for number, parameter in enumerate(parameters):
        pieces = [piece for bucket in buckets for piece in bucket.pieces if piece.number == number]
        runs = sorted((piece.start, piece.stop) for piece in pieces)
        assert runs[0][0] == 0
        assert runs[-1][1] == parameter.elements
        assert all(before[1] == after[0] for before, after in itertools.pairwise(runs))
        assert len(runs) == 1 or parameter.can_be_cut
    for bucket in buckets:
        assert 0 <= bucket.server < servers
        assert bucket.elements == sum(piece.stop - piece.start for piece in bucket.pieces)
        assert {parameters[piece.number].dtype for piece in bucket.pieces} == {bucket.dtype}
        assert bucket.sparse == parameters[bucket.pieces[0].number].sparse
        assert len(bucket.pieces) == 1 or not bucket.sparse
        first = sum(piece.stop - piece.start for piece in bucket.pieces[:-1]) * bucket.dtype.itemsize
        assert first < bucket_bytes
    assert _numbers(buckets) == sorted(_numbers(buckets), reverse=True)


def _numbers(buckets: list[Bucket]) -> list[int]:
    return [bucket.pieces[0].number for bucket in buckets]


@given(
    st.lists(st.builds(Placed, st.integers(1, 5000), st.just(torch.float32), st.just(True)), min_size=1),
    st.integers(2, 4),
)
def test_no_server_has_much_more_than_its_share(parameters, servers):
    load = [0] * servers
    for bucket in assign_parameters(parameters, servers):
        load[bucket.server] += bucket.bytes
    share = sum(load) / servers
    assert max(load) <= share * 9 / 8 + 4 * servers * len(parameters)
