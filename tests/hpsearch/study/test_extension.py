"""A finished sweep is given more to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from hpsearch.errors import SweepError
from hpsearch.events import Ended, Extended, Opened, Started
from hpsearch.results.study import Study, load
from hpsearch.schedulers.halving import Hyperband, SuccessiveHalving
from hpsearch.space import Space, Uniform
from hpsearch.sweep.parts import Limits, Resources
from hpsearch.sweep.sweep import Sweep
from hpsearch.tables.trials import rows_to_csv
from hpsearch.task import Message, Task
from tests.hpsearch.support.scripted import ScriptedBackend, done, events_of, run_scripted, sweep_of

FLAT = {"early_terminate": None, "max_iter": 2}


def run(path: Path, sweep: Sweep | None, workers: int = 1) -> tuple[Study, ScriptedBackend]:
    backend = ScriptedBackend(lambda task: [done(task)], workers)
    return run_scripted(path, sweep, backend), backend


def dying_after(segments: int) -> ScriptedBackend:
    """Return a backend in which the user presses Ctrl-C twice during a segment, after so many others."""

    def answer(task: Task) -> Sequence[Message]:
        if len(backend.tasks) > segments:
            raise KeyboardInterrupt
        return [done(task)]

    backend = ScriptedBackend(answer)
    return backend


def table(study: Study) -> str:
    return rows_to_csv(study.trials, study.sweep.parameters.names)


@pytest.mark.parametrize(
    ("small", "large", "trials"),
    [
        (sweep_of(**FLAT, run_cap=3), sweep_of(**FLAT, run_cap=5), (3, 5)),
        (sweep_of(run_cap=17), sweep_of(run_cap=30), (17, 30)),
        (sweep_of(), sweep_of(early_terminate=Hyperband(9, brackets=5)), (17, 31)),
        (
            sweep_of(early_terminate=Hyperband(9, brackets=1)),
            sweep_of(early_terminate=Hyperband(9, brackets=3)),
            (9, 17),
        ),
        (sweep_of(), sweep_of(run_cap=20), (17, 20)),
        (
            sweep_of(early_terminate=SuccessiveHalving(9)),
            sweep_of(early_terminate=SuccessiveHalving(9), run_cap=18),
            (9, 18),
        ),
    ],
)
def test_a_finished_sweep_goes_on_with_more(tmp_path, small, large, trials):
    path = tmp_path / "s"
    study, _ = run(path, small)
    assert (study.state, len(study.trials)) == ("finished", trials[0])
    before = table(study)
    study, backend = run(path, large, workers=3)
    assert (study.state, len(study.trials)) == ("finished", trials[1])
    assert table(study).startswith(before)
    assert {task.trial.number for task in backend.tasks} == set(range(*trials))
    assert study.sweep.difference(large) == []
    kinds = [type(event) for event in events_of(path)]
    assert kinds.count(Extended) == 1
    place = kinds.index(Extended)
    assert kinds[place - 2 : place] == [Ended, Opened]
    assert table(load(path)) == table(study)
    if large.early_terminate is None or trials[0] == 17:
        # whole rounds, so it's as though it had been asked for at once
        whole, _ = run(tmp_path / "whole", large)
        assert table(whole) == table(study)


def test_a_finished_sweep_is_given_as_it_is_and_nothing_runs(tmp_path):
    study, _ = run(tmp_path / "s", sweep_of())
    written = events_of(tmp_path / "s")
    again, backend = run(tmp_path / "s", sweep_of(resources=Resources(workers=7), limits=Limits(max_time=1.0)))
    assert table(again) == table(study)
    assert not hasattr(backend, "job")
    assert events_of(tmp_path / "s") == written


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (sweep_of(**FLAT, run_cap=4), "run_cap: 5 in the study, 4 here"),
        (sweep_of(**FLAT, run_cap=9, seed=1), "seed: 0 in the study, 1 here"),
        (sweep_of(early_terminate=None, max_iter=3, run_cap=5), "max_iter: 2 in the study, 3 here"),
        (sweep_of(run_cap=5), "early_terminate"),
        (sweep_of(**FLAT, run_cap=5, parameters=Space.from_parameters({"x": Uniform(0.0, 2.0)})), "2.0 here"),
    ],
)
def test_less_or_another_sweep_is_refused_with_the_difference_and_nothing_is_written(tmp_path, asked, told):
    path = tmp_path / "s"
    study, _ = run(path, sweep_of(**FLAT, run_cap=5))
    written = events_of(path)
    with pytest.raises(SweepError) as caught:
        run(path, asked)
    assert told in str(caught.value)
    assert events_of(path) == written
    assert table(load(path)) == table(study)


BRACKETS = {count: sweep_of(early_terminate=Hyperband(9, brackets=count)) for count in (2, 3)}


@pytest.mark.parametrize(
    ("small", "asked"),
    [
        (sweep_of(), sweep_of(run_cap=16)),
        (replace(BRACKETS[3], run_cap=30), replace(BRACKETS[2], run_cap=30)),
        (BRACKETS[2], replace(BRACKETS[2], run_cap=13)),
    ],
)
def test_a_bound_below_what_ran_is_refused_before_anything_is_written(tmp_path, small, asked):
    path = tmp_path / "s"
    run(path, small)
    written = events_of(path)
    with pytest.raises(SweepError):
        run(path, asked)
    assert events_of(path) == written


def test_it_is_extended_again_and_the_former_sizes_are_refused(tmp_path):
    path = tmp_path / "s"
    for cap in (2, 4, 7):
        study, _ = run(path, sweep_of(**FLAT, run_cap=cap))
        assert len(study.trials) == cap
    with pytest.raises(SweepError, match="run_cap: 7 in the study, 4 here"):
        run(path, sweep_of(**FLAT, run_cap=4))
    assert [event for event in events_of(path) if isinstance(event, Extended)] == [Extended(4), Extended(7)]
    study, _ = run(path, None)
    assert study.sweep.run_cap == 7


def test_a_sweep_that_was_ended_early_is_extended_where_it_stands(tmp_path):
    path = tmp_path / "s"
    small, large = sweep_of(run_cap=17), sweep_of(run_cap=25)
    assert run_scripted(path, small, dying_after(5)).state == "interrupted"
    study, _ = run(path, large, workers=4)
    whole, _ = run(tmp_path / "whole", large)
    assert table(study) == table(whole)


def test_a_killed_extension_is_replayed_at_its_place(tmp_path):
    """After any of its events; the process is gone before it could write `Ended`."""
    path = tmp_path / "s"
    run(path, sweep_of())
    large = sweep_of(run_cap=26)
    expected, _ = run(tmp_path / "whole", large)
    for place, steps in enumerate((0, 1, 3, 2, 4)):
        study = run_scripted(path, large if place == 0 else None, dying_after(steps))
        assert study.state == "interrupted"
        assert study.sweep.run_cap == 26
    study, _ = run(path, large)
    assert table(study) == table(expected)
    segments = [event.segment for event in events_of(path) if isinstance(event, Started)]
    assert sum(segment.trial >= 17 for segment in segments) == 13 + 5  # those of the bracket, and five again
    assert sum(isinstance(event, Extended) for event in events_of(path)) == 1


def test_a_grid_that_was_cut_short_by_run_cap_goes_on_to_its_end_and_no_further(tmp_path):
    space = Space.from_parameters({"x": Uniform(0.0, 1.0, points=6)})
    grid = sweep_of(method="grid", parameters=space, **FLAT, run_cap=4)
    assert len(run(tmp_path / "s", grid)[0].trials) == 4
    assert len(run(tmp_path / "s", replace(grid, run_cap=10))[0].trials) == 6
    study, _ = run(tmp_path / "s", replace(grid, run_cap=20))
    assert (study.state, len(study.trials)) == ("finished", 6)
