from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpsearch.space import Space
from hpsearch.sweep.parallel import Parallel, Strategies
from hpsearch.task import Result
from hpsearch.trial import Segment, Trial
from tests.hpsearch.support import wide_trainables as trainables
from tests.hpsearch.support.gangs import Workers
from tests.hpsearch.support.segments import TRIAL
from tests.hpsearch.worker.test_worker_bits import bits


def wide(start: int, end: int | None, checkpoint: str | None = None, attempt: int = 1, width: int = 2) -> Segment:
    return Segment(TRIAL.number, start, end, checkpoint, attempt, width)


def losses(result: Result) -> list[float]:
    return [report.metrics["loss"] for report in result.reports]


def kinds(results: list[Result]) -> list[str | None]:
    return [None if result.failure is None else result.failure.kind for result in results]


def going_wrong(way: str, rank: int = 1) -> Trial:
    return replace(TRIAL, params={"way": way, "rank": rank})


# What runs.


def test_ranks_compute_together_and_rank_0_speaks_for_them(tmp_path: Path) -> None:
    with Workers(tmp_path, trainables.adds_ranks, scaling={"batch": "global"}, save_every=2) as workers:
        workers.start(wide(0, 3))
        (first, heard), (second, unheard) = workers.results([0, 1])
    assert kinds([first, second]) == [None, None]
    assert [report.metrics for report in heard.reports] == [{"loss": 3.0}, {"loss": 5.0}, {"loss": 7.0}]
    assert [save[:2] for save in heard.saves] == [(2, "trials/00003/1/hpsearch-checkpoint-2")]
    assert (first.iteration, first.checkpoint) == (3, "trials/00003/1/hpsearch-checkpoint-3")
    assert losses(first) == [7.0]
    assert (second.iteration, second.checkpoint, second.reports) == (3, None, ())
    assert (unheard.reports, unheard.saves) == ([], [])
    directory = tmp_path / "trials" / "00003" / "1"
    told = "of 2 with {'batch': 'global'}, hosts ((0, 1),)\n"
    assert (directory / "output.log").read_text() == f"rank 0 {told}"
    assert (directory / "rank-1" / "output.log").read_text() == f"rank 1 {told}"
    assert [path.name for path in (directory / "rank-1").iterdir()] == ["output.log"]


def strategies_of(name: str, **more: Any) -> Strategies:
    """Return the strategies of a sweep that has a parameter `parallel.micro_batches`."""
    space = Space.from_parameters({"lr": 0.1, "parallel": {"micro_batches": [1, 2, 3]}})
    return Strategies(Parallel(name, **more), space)  # type: ignore[arg-type]


def test_all_ranks_are_told_how_the_trial_is_parallel(tmp_path: Path) -> None:
    strategies = strategies_of("pipeline", schedule="1f1b")
    trial = replace(TRIAL, params={**TRIAL.params, "parallel.micro_batches": 3})
    with Workers(tmp_path, trainables.tells_how_it_is_parallel, strategies=strategies) as workers:
        workers.start(wide(0, 1), trial=trial)
        assert kinds([result for result, _ in workers.results([0, 1])]) == [None, None]
    directory = tmp_path / "trials" / "00003" / "1"
    told = "{'strategy': 'pipeline', 'micro_batches': 3, 'schedule': '1f1b'}\n"
    assert (directory / "output.log").read_text() == f"rank 0: {told}"
    assert (directory / "rank-1" / "output.log").read_text() == f"rank 1: {told}"


@pytest.mark.exhaustive
def test_a_loop_that_ignores_the_strategy_has_failed_on_all_ranks(tmp_path: Path) -> None:
    with Workers(tmp_path, trainables.leaves_a_mark, strategies=strategies_of("pipeline")) as workers:
        results = workers.run(wide(0, 1))
        assert kinds(results) == ["contract", "contract"]
        assert "never read trial.parallel" in str(results[0].failure)


def test_each_rank_has_a_directory_of_its_own(tmp_path: Path) -> None:
    with Workers(tmp_path, trainables.leaves_a_mark) as workers:
        assert kinds(workers.run(wide(0, 1))) == [None, None]
    directory = tmp_path / "trials" / "00003" / "1"
    assert [(directory / name / "mark").read_text() for name in ("", "rank-1")] == ["0", "1"]


def test_nodes_are_hosts(tmp_path: Path) -> None:
    with Workers(tmp_path, trainables.adds_ranks, nodes=("a", "a", "b")) as workers:
        assert kinds(workers.run(wide(0, 1, width=3))) == [None] * 3
    assert "hosts ((0, 1), (2,))" in (tmp_path / "trials" / "00003" / "1" / "output.log").read_text()


@pytest.mark.exhaustive
def test_a_trial_goes_from_one_worker_to_two_and_back(tmp_path: Path) -> None:
    with Workers(tmp_path, trainables.Counting) as workers:
        checkpoint = None
        for number, width in enumerate([1, 1, 2, 2, 1, 1]):
            results = workers.run(wide(number, number + 1, checkpoint, number + 1, width))
            assert kinds(results) == [None] * width
            assert losses(results[0]) == [width]
            checkpoint = results[0].checkpoint
    logs = [tmp_path / "trials" / "00003" / str(attempt) / "output.log" for attempt in range(1, 7)]
    assert [log.read_text().splitlines() for log in logs] == [
        ["build 1"],
        [],
        ["close, group closed: False", "build 2", "load", "close, group closed: False"],
        ["build 2", "load", "close, group closed: False"],
        ["build 1", "load"],
        ["close, group closed: False"],
    ]


@pytest.mark.exhaustive
def test_a_trainer_has_the_same_curve_at_every_width(tmp_path: Path) -> None:
    def curve(widths: list[int], attempt: int) -> list[float]:
        values = []
        checkpoint = None
        for number, width in enumerate(widths):
            part = wide(number * 2, number * 2 + 2, checkpoint, attempt + number, width)
            results = workers.run(part)
            assert kinds(results) == [None] * width
            values += [report.metrics["validation_loss"] for report in results[0].reports]
            checkpoint = results[0].checkpoint
        return values

    with Workers(tmp_path, trainables.Small, scaling={"batch": "global", "lr": "none"}) as workers:
        alone = curve([1, 1, 1], 1)
        assert curve([2, 2, 2], 11) == pytest.approx(alone, rel=1e-4)
        assert curve([1, 2, 1], 21) == pytest.approx(alone, rel=1e-4)
    assert alone[-1] < alone[0]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "trainable", [pytest.param(trainables.drawing, marks=pytest.mark.exhaustive), trainables.Drawing]
)
def test_a_wide_trial_in_parts_has_the_bits_of_the_whole(tmp_path: Path, trainable: Any) -> None:
    with Workers(tmp_path, trainable) as workers:
        whole = workers.run(wide(0, 5))[:1]
        first = workers.run(wide(0, 2, None, 2))[0]
        second = workers.run(wide(2, 5, first.checkpoint, 3))[0]
    assert bits(tmp_path, [first, second]) == bits(tmp_path, whole)


# Ends.


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("trainable", [trainables.own_loop, trainables.adds_ranks])
def test_a_cut_ends_all_ranks_at_the_same_report(tmp_path: Path, trainable: Any) -> None:
    with Workers(tmp_path, trainable) as workers:
        results = workers.run(wide(0, 9), cut_at=[2, 1])  # rank 1's channel isn't asked
        assert kinds(results) == [None, None]
        assert [(result.iteration, result.cut) for result in results] == [(2, True), (2, True)]
        assert results[0].checkpoint == "trials/00003/1/hpsearch-checkpoint-2"


def test_a_rank_that_dies_is_lost_to_the_others_which_work_on(tmp_path: Path) -> None:
    with Workers(tmp_path, trainables.goes_wrong) as workers:
        workers.start(wide(0, 3), trial=going_wrong("die"))
        [(result, _)] = workers.results([0])
        assert result.failure is not None
        assert result.failure.kind == "peer"
        assert result.failure.message.startswith("rank 1 (pid")
        assert result.checkpoint is None
        [after] = workers.run(wide(0, 2, attempt=2, width=1), trial=going_wrong(""))
        assert (after.failure, after.iteration) == (None, 2)
        assert workers.processes[1].wait() == -9


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_raises_says_so_and_the_others_that_it_left(tmp_path: Path, rank: int) -> None:
    with Workers(tmp_path, trainables.goes_wrong) as workers:
        results = workers.run(wide(0, 3), trial=going_wrong("raise", rank))
        assert kinds(results) == ["raised" if number == rank else "peer" for number in range(2)]
        left = results[1 - rank].failure
        assert left is not None
        assert "this rank's own mistake" in left.message
        assert kinds(workers.run(wide(0, 3, attempt=2), trial=going_wrong(""))) == [None, None]


@pytest.mark.exhaustive
def test_a_loss_stays_one_under_another_error(tmp_path: Path) -> None:
    with Workers(tmp_path, trainables.wraps_losses) as workers:
        results = workers.run(wide(0, 3))
    assert kinds(results) == ["peer", "raised"]


def test_a_rank_that_returns_early_leaves_the_others_behind(tmp_path: Path) -> None:
    with Workers(tmp_path, trainables.goes_wrong) as workers:
        results = workers.run(wide(0, 3), trial=going_wrong("return"))
    assert kinds(results) == ["peer", None]
    assert [result.iteration for result in results] == [2, 1]


def test_ranks_that_do_different_things_are_told_both(tmp_path: Path) -> None:
    with Workers(tmp_path, trainables.goes_wrong) as workers:
        results = workers.run(wide(0, 3), trial=going_wrong("mismatch"))
    assert kinds(results) == ["raised", "raised"]
    for result in results:
        assert result.failure is not None
        assert result.failure.message.startswith("hpsearch_comm.errors.MismatchError")


def test_wide_segments_leave_nothing_behind(tmp_path: Path) -> None:
    with Workers(tmp_path, trainables.adds_ranks) as workers:
        held, addresses = [], []
        for attempt in (1, 2, 3):
            addresses.append(workers.ask(0, "address"))
            assert kinds(workers.run(wide(0, 2, attempt=attempt))) == [None, None]
            held.append([workers.ask(rank, what) for rank in (0, 1) for what in ("descriptors", "threads")])
    assert held[1] == held[2]
    assert len(set(addresses)) == 3


def test_a_worker_that_is_never_in_a_gang_has_no_address(tmp_path: Path) -> None:
    with Workers(tmp_path, trainables.adds_ranks, nodes=("a",)) as workers:
        assert workers.ask(0, "address") == ""
