from __future__ import annotations

import contextlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hpsearch_comm.errors import RefusedError
from hpsearch_comm.header import (
    ALGORITHMS,
    DTYPES,
    HEADER_BYTES,
    OPERATIONS,
    REDUCTIONS,
    SIGNATURE_BYTES,
    TAIL,
    Signature,
    unpack_tail,
)

NUMBERS = st.integers(0, 2**62)
SIGNATURES = st.builds(
    Signature,
    sequence=NUMBERS,
    operation=st.sampled_from(OPERATIONS),
    algorithm=st.sampled_from(ALGORITHMS),
    dtype=st.sampled_from(DTYPES),
    shape=st.lists(NUMBERS, max_size=8).map(tuple),
    reduction=st.sampled_from(REDUCTIONS),
    root=st.integers(-1, 2**31),
)


@given(SIGNATURES, NUMBERS, NUMBERS)
def test_what_is_packed_is_unpacked(signature, step, nbytes):
    packed = signature.pack()
    assert len(packed) == SIGNATURE_BYTES
    whole = packed + TAIL.pack(step, nbytes)
    assert len(whole) == HEADER_BYTES
    assert Signature.unpack(whole) == signature
    assert unpack_tail(whole) == (step, nbytes)


@given(st.binary(max_size=200))
def test_random_bytes_are_refused_or_read_and_never_crash(data):
    with contextlib.suppress(RefusedError):
        str(Signature.unpack(data))


@given(SIGNATURES, st.integers(0, SIGNATURE_BYTES - 1), st.integers(1, 255))
def test_every_byte_counts(signature, place, change):
    packed = bytearray(signature.pack())
    packed[place] ^= change
    try:
        other = Signature.unpack(bytes(packed))
    except RefusedError:
        return
    # Bytes that mean nothing are zero, and are compared as bytes.
    assert other != signature or bytes(packed) != signature.pack()


def test_a_tensor_of_many_dimensions_keeps_its_number_of_elements():
    signature = Signature(0, "allreduce", "ring", torch.float32, (2,) * 11)
    assert Signature.unpack(signature.pack()).shape == (2, 2, 2, 2, 2, 2, 2, 16)
    assert Signature.unpack(signature.pack()).nbytes == 4 * 2**11


@pytest.mark.parametrize(
    ("signature", "text"),
    [
        (
            Signature(17, "allreduce", "ring", torch.float32, (3, 4), "mean"),
            "allreduce 17 (mean of float32 [3, 4], 48 bytes, ring)",
        ),
        (
            Signature(2, "broadcast", "tree", torch.int64, (1000,), root=3),
            "broadcast 2 (int64 [1000], 8,000 bytes, root 3, tree)",
        ),
        (Signature(5, "barrier", "direct"), "barrier 5 (direct)"),
        (
            Signature(1, "allreduce", "direct", torch.bfloat16, (), "sum"),
            "allreduce 1 (sum of bfloat16 [], 2 bytes, direct)",
        ),
    ],
)
def test_it_reads_as_a_user_would_say_it(signature, text):
    assert str(signature) == text
