from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from hpsearch_comm.collectives.parts import split


@given(st.integers(0, 300), st.integers(1, 17))
def test_parts_are_those_of_tensor_split(numel, count):
    whole = torch.arange(numel)
    parts = split(numel, count)
    assert [whole[start:stop].tolist() for start, stop in parts] == [
        part.tolist() for part in whole.tensor_split(count)
    ]


def test_the_last_parts_are_empty_where_elements_are_few():
    assert split(5, 3) == [(0, 2), (2, 4), (4, 5)]
    assert split(1, 3) == [(0, 1), (1, 1), (1, 1)]
    assert split(0, 2) == [(0, 0), (0, 0)]
