"""Trials are handed to another tool once, when they have ended, whatever happened before and in between."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from hpsearch.events import Retried
from hpsearch.observers.base import Observed, Record
from hpsearch.observers.trial_log import EndedTrial, EndedTrials, TrialLog
from hpsearch.results.over_time import over_iterations
from hpsearch.study.state import SweepState
from hpsearch.trial import TrialState
from tests.hpsearch.support.lives import Life, lives
from tests.hpsearch.support.scripted import sweep_of

ENDED = (TrialState.COMPLETE, TrialState.STOPPED, TrialState.FAILED)


class Shelf(TrialLog):
    """Keeps trials in a dictionary that outlives it; half of each write is lost where it is to be killed there."""

    name = "shelf"

    def __init__(self, observed: Observed, kept: dict[int, Any], killed_at: int | None = None) -> None:
        super().__init__(observed)
        self.kept, self.killed_at, self.writes = kept, killed_at, 0

    def find(self) -> Mapping[int, str]:
        return {number: trial.digest for number, trial in self.kept.items() if trial is not None}

    def write(self, trial: EndedTrial) -> None:
        self.kept[trial.row.number] = None  # begun
        self.writes += 1
        if self.writes == self.killed_at:
            raise KeyboardInterrupt
        self.kept[trial.row.number] = trial


def records_of(life: Life) -> list[Record]:
    replay = enumerate(SweepState(life.sweep).replay(life.events), 1)
    return [Record(seq, float(seq), event, followed.decisions) for seq, (event, followed) in replay]


@settings(deadline=None, max_examples=15)
@given(life=lives(), share=st.floats(0, 1), killed_at=st.integers(1, 6))
def test_after_any_kill_and_resume_each_ended_trial_lies_there_as_it_is(life, share, killed_at):
    records = records_of(life.run())
    kept: dict[int, Any] = {}
    for heard in (records[: round(share * len(records))], records):
        shelf = Shelf(Observed(Path("s"), life.sweep, 0.0), kept, killed_at if heard is not records else None)
        try:
            for place, record in enumerate(heard):
                shelf.observe(record)
                if place > len(heard) // 2:  # the first half is what former runs told
                    shelf.rungs(())
                    shelf.flush()
            shelf.rungs(())
            shelf.close()
        except KeyboardInterrupt:
            continue
    rows = {row.number: row for row in life.sweep_state.rows() if row.state in ENDED}
    assert kept.keys() >= rows.keys()
    curves = over_iterations(life.entries, lambda report: report)
    for number, row in rows.items():
        # Of a worse one the checkpoint may be gone since; NaN differs from itself. One that failed again as it had
        # failed before isn't written again: its time, which it now has more of, makes no other trial of it.
        kept_row, now = (replace(one, checkpoint=None, seconds=0.0) for one in (kept[number].row, row))
        assert repr(kept_row) == repr(now)
        assert [(one.report.iteration, one.report) for one in kept[number].reported] == curves.get(number, [])


def retried(seed: int) -> Life:
    """Live through failures, some of which are retried, so that trials go on after they had ended."""
    return Life(sweep_of(run_cap=20), seed, 2, 0.7).run()


def test_what_is_there_already_is_not_written_again():
    lived = [retried(seed) for seed in range(4)]
    assert any(isinstance(event, Retried) for life in lived for event in life.events)
    for life in lived:
        kept: dict[int, Any] = {}
        counts = []
        for _ in range(2):
            shelf = Shelf(Observed(Path("s"), life.sweep, 0.0), kept)
            for record in records_of(life):
                shelf.observe(record)
                shelf.flush()  # nothing yet: what ended in a former run may have gone on in it
            shelf.rungs(())
            shelf.close()
            counts.append(shelf.writes)
        assert counts == [len(kept), 0]


def test_a_trial_is_one_that_has_ended_until_it_goes_on():
    for life in map(retried, range(4)):
        trials, sweep_state = EndedTrials(life.sweep), SweepState(life.sweep)
        for seq, (event, followed) in enumerate(sweep_state.replay(life.events), 1):
            trials.take(Record(seq, float(seq), event, followed.decisions))
            rows = sweep_state.rows()
            assert [trials.has(row.number) for row in rows] == [row.state in ENDED for row in rows]
            for row in rows:
                if row.state in ENDED:
                    assert trials.of(row.number).began < trials.of(row.number).ended <= seq
        assert trials.take_changed() != []


def test_a_trial_that_has_not_ended_is_not_written_until_it_has():
    life = Life(sweep_of(run_cap=9), 0, 1, 0.0).run()
    records = records_of(life)
    kept: dict[int, Any] = {}
    shelf = Shelf(Observed(Path("s"), life.sweep, 0.0), kept)
    shelf.rungs(())
    for record in records:
        trials = EndedTrials(life.sweep)
        for former in records[: record.seq]:
            trials.take(former)
        shelf.observe(record)
        shelf.flush()
        assert sorted(kept) == [number for number in range(9) if trials.has(number)]
    assert len(kept) == 9
