"""The orders in which stages take micro-batches, carried out by the clock."""

from __future__ import annotations

import pytest

from hpsearch_trainers.strategies import pipeline
from hpsearch_trainers.strategies.pipeline import BACKWARD, FORWARD, SCHEDULES, order_of

_LETTERS = {FORWARD: "F", BACKWARD: "B"}


def carry_out(schedule: str, stages: int, count: int) -> list[list[str]]:
    """Return what each stage does in each slot, if a pass takes one; `.` if it waits for another stage."""
    orders = [order_of(schedule, stages, stage, count) for stage in range(stages)]
    ended: dict[tuple[str, int, int], int] = {}
    slots: list[list[str]] = [[] for _ in range(stages)]
    slot = 0
    while any(orders):
        done = dict(ended)
        for stage, order in enumerate(orders):
            shown = ". "
            if order:
                direction, number = order[0]
                before = (FORWARD, number, stage - 1) if direction == FORWARD else (BACKWARD, number, stage + 1)
                if before in done or not 0 <= before[2] < stages:
                    assert direction == FORWARD or (FORWARD, number, stage) in done
                    ended[direction, number, stage] = slot
                    shown = f"{_LETTERS[direction]}{number}"
                    order.pop(0)
            slots[stage].append(shown)
        assert len(ended) > len(done), "every stage waits"
        slot += 1
    return slots


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("stages", [2, 3, 5])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 9])
def test_every_pass_is_taken_once_in_the_least_time(schedule, stages, count):
    slots = carry_out(schedule, stages, count)
    assert {len(row) for row in slots} == {2 * (count + stages - 1)}
    for row in slots:
        taken = [shown for shown in row if shown != ". "]
        assert sorted(taken) == sorted(f"{letter}{number}" for letter in "FB" for number in range(count))
        assert [shown for shown in taken if shown[0] == "B"] == [f"B{number}" for number in range(count)]


@pytest.mark.parametrize("stages", [2, 3, 5])
@pytest.mark.parametrize("count", [1, 2, 4, 9])
def test_what_a_stage_keeps(stages, count):
    def most_kept(schedule: str, stage: int) -> int:
        kept, most = 0, 0
        for direction, _ in order_of(schedule, stages, stage, count):
            kept += 1 if direction == FORWARD else -1
            most = max(most, kept)
        return most

    for stage in range(stages):
        assert most_kept("gpipe", stage) == count
        assert most_kept("1f1b", stage) == min(stages - stage, count)


def test_the_picture_is_what_happens():
    text = pipeline.__doc__
    assert text is not None
    drawn = [line.removeprefix("gpipe").removeprefix("1f1b") for line in map(str.strip, text.splitlines())]
    for schedule in SCHEDULES:
        for stage, row in enumerate(carry_out(schedule, 3, 4)):
            expected = f"{stage}   {' '.join(row).strip()}"
            assert any(line.strip().startswith(expected) for line in drawn), expected
