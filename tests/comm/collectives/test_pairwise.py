from __future__ import annotations

import math
from itertools import combinations
from typing import Any

import pytest

from tests.comm.collectives.pairwise import Row, every_combination, every_second, pairwise


def anything(_row: Row) -> bool:
    return True


def pairs(rows: list[Row]) -> set[tuple]:
    return {pair for row in rows for pair in combinations(row.items(), 2)}


@pytest.mark.parametrize("sizes", [(2, 2), (1, 3, 1), (3, 3, 3), (12, 5, 6, 15, 9), (1, 1), (4, 2, 2, 2, 2, 2, 7)])
def test_every_pair_of_values_occurs(sizes):
    factors = {f"factor {place}": [f"{place} {value}" for value in range(size)] for place, size in enumerate(sizes)}
    chosen = pairwise(factors, anything)
    assert pairs(chosen) == pairs(every_combination(factors, anything))
    assert all(list(row) == list(factors) for row in chosen)


def test_they_are_few_beside_all():
    factors = {name: range(size) for name, size in (("a", 12), ("b", 5), ("c", 6), ("d", 15), ("e", 9))}
    least = 12 * 15
    assert least <= len(pairwise(factors, anything)) < 1.4 * least
    assert len(every_combination(factors, anything)) == 48_600


def test_every_possible_pair_occurs_and_nothing_impossible_does():
    factors: dict[str, list[Any]] = {
        "size": [1, 2, 3],
        "op": ["sum", "product", "mean"],
        "dtype": ["float8", "float32", "int"],
    }

    def possible(row: Row) -> bool:
        if row.get("dtype") == "int" and row.get("op") == "mean":
            return False
        return not (row.get("dtype") == "float8" and row.get("op") == "product" and row.get("size", 0) > 2)

    chosen = pairwise(factors, possible)
    assert all(map(possible, chosen))
    found = pairs(chosen)
    assert found == pairs(every_combination(factors, possible))
    assert (("op", "product"), ("dtype", "float8")) in found
    assert (("op", "mean"), ("dtype", "int")) not in found


def test_the_same_ones_are_chosen_in_every_run():
    factors = {"a": "xy", "b": "pqr"}
    rows = [(row["a"], row["b"]) for row in pairwise(factors, anything)]
    assert rows == [("x", "p"), ("x", "q"), ("x", "r"), ("y", "p"), ("y", "q"), ("y", "r")]


def test_equal_values_of_two_factors_are_two_things():
    chosen = pairwise({"a": [1, 2], "b": [1, 2], "c": [1, 2]}, anything)
    assert len(pairs(chosen)) == 12


@pytest.mark.parametrize("sizes", [(2, 2, 2), (9, 3, 2), (2, 5, 3), (4, 2, 3, 2)])
def test_every_pair_of_values_is_in_those_that_are_always_tried_of_every_second(sizes):
    factors = [range(size) for size in sizes]
    given = every_second(*factors)
    rows = [{str(place): value for place, value in enumerate(one.values)} for one in given]
    often = [row for row, one in zip(rows, given, strict=True) if not one.marks]
    assert len(rows) == math.prod(sizes)
    assert len(often) == (len(rows) + 1) // 2
    assert pairs(often) == pairs(rows)
