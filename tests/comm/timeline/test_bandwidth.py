"""Rates as nccl-tests defines them."""

from __future__ import annotations

import pytest

from hpsearch_comm.timeline.trace_event import algorithm_bandwidth, bus_bandwidth, bus_factor


@pytest.mark.parametrize(
    ("operation", "size", "factor"),
    [
        ("allreduce", 2, 1.0),
        ("allreduce", 4, 1.5),
        ("allgather", 4, 0.75),
        ("reduce_scatter", 4, 0.75),
        ("alltoall", 4, 0.75),
        ("broadcast", 4, 1.0),
        ("allreduce", 1, 0.0),
    ],
)
def test_bus_factor_is_that_of_nccl_tests(operation: str, size: int, factor: float) -> None:
    assert bus_factor(operation, size) == factor


def test_rates_are_in_units_of_ten_to_the_ninth_bytes_a_second() -> None:
    assert algorithm_bandwidth(2_000_000_000, 1.0) == 2.0
    assert bus_bandwidth("allreduce", 2_000_000_000, 1.0, 4) == 3.0


def test_no_time_is_no_rate() -> None:
    assert algorithm_bandwidth(1024, 0.0) == 0.0
