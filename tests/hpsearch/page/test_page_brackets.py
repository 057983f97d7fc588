"""Brackets on a page: how they narrow, on how many workers, and how a rung is named elsewhere."""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict
from dataclasses import replace
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hpsearch
from hpsearch.events import Finished, Started
from hpsearch.page.brackets import brackets
from hpsearch.page.charts.picture import Box, Words
from hpsearch.page.endings import endings_of
from hpsearch.page.html import Section
from hpsearch.page.trials import trials
from tests.hpsearch.support.packing import PackingBackend
from tests.hpsearch.support.pages import beyond, simulated
from tests.hpsearch.support.scripted import run_scripted, sweep_of
from tests.hpsearch.support.simulations import Walk
from tests.hpsearch.support.wide_study import write_wide_study

SCHEDULERS = {
    "synchronous": hpsearch.Hyperband(max_iter=27, eta=3),
    "asynchronous": hpsearch.ASHA(max_iter=27, eta=3, brackets=3),
    "one bracket": hpsearch.SuccessiveHalving(9, min_iter=1, trials=9),
    "pasha": hpsearch.PASHA(max_iter=27, eta=3),
}


def ran(scheduler: Any, workers: int = 1, seed: int = 0, widest: int = 1, trials: int = 30) -> hpsearch.Study:
    return simulated(
        lambda params, seed: hpsearch.Curve(
            {"loss": [params["x"] / (place + 1) for place in range(81)]}, 1.0, "no luck" if seed % 9 == 0 else ""
        ),
        early_terminate=scheduler,
        resources=hpsearch.Resources(workers, max_workers_per_trial=widest),
        run_cap=trials,
        seed=seed,
    )


def counted(study: hpsearch.Study) -> dict[tuple[int, int], dict[int, int]]:
    """Return the trials that began in each bracket and rung, with the number of workers that each had last."""
    found: defaultdict[tuple[int, int], dict[int, int]] = defaultdict(dict)
    for event in study.events():
        if isinstance(event, Started):
            assert event.rung is not None
            found[event.bracket, event.rung][event.segment.trial] = event.segment.width
    return found


def shown(study: hpsearch.Study) -> Section:
    section = brackets(study)
    assert section is not None
    assert section.table is not None
    assert section.picture is not None
    return section


def bars(section: Section, grey: bool = False) -> dict[tuple[int, int], Box]:
    """Return the bar of trials of each bracket and rung; the grey bars are right below."""
    assert section.picture is not None
    boxes = [one for one in section.picture.shapes if isinstance(one, Box) and one.tip]
    found = {}
    for place, box in enumerate(boxes):
        if told := re.match(r"bracket (\d+), rung (\d+) ", box.tip):
            below = boxes[place + 1] if place + 1 < len(boxes) else None
            if not grey:
                found[int(told[1]), int(told[2])] = box
            elif below is not None and below.ink == "muted":
                found[int(told[1]), int(told[2])] = below
    return found


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(list(SCHEDULERS)), st.integers(1, 5), st.integers(0, 99))
def test_each_rung_has_the_trials_that_began_in_it(scheduler, workers, seed):
    study = ran(SCHEDULERS[scheduler], workers, seed)
    section, known = shown(study), counted(study)
    table = section.table
    assert table is not None
    rows = {(int(row[0]), int(re.findall(r"rung (\d+)", row[1])[0])): row for row in table.rows}
    for rung, row in rows.items():
        begun = int(row[2].split(" of ")[0])
        assert begun == len(known.get(rung, {}))
        assert int(row[-1]) <= begun
    assert {rung for rung in known if rung not in rows} == set()
    ends = {
        int(re.findall(r"rung (\d+)", row[1])[0]): re.findall(r"to iteration (\d+)\)", row[1])[0]
        for row in table.rows
        if row[0] == "0"
    }
    assert [int(end) for end in ends.values()] == sorted(int(end) for end in ends.values())
    drawn = bars(section)
    assert set(drawn) == set(rows)
    most = max(len(one) for one in known.values())
    highest = max(drawn.values(), key=lambda box: box.height)
    assert len(known[next(rung for rung, box in drawn.items() if box is highest)]) == most
    for rung, box in drawn.items():
        share = len(known.get(rung, {})) / most * highest.height
        assert box.height == pytest.approx(max(2.0, share))
    assert section.picture is not None
    assert beyond(section.picture) == []


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(["synchronous", "one bracket", "asynchronous"]), st.integers(1, 4), st.integers(2, 9))
def test_one_of_several_that_a_worker_trained_together_had_its_part(tmp_path_factory, scheduler, workers, lanes):
    sweep = replace(
        sweep_of(early_terminate=SCHEDULERS[scheduler], run_cap=20),
        resources=hpsearch.Resources(trials_per_worker=lanes, max_workers_per_trial=workers),
    )
    backend = PackingBackend(workers, metric=lambda trial, iteration: trial.seed % 1009 / iteration)
    study = run_scripted(tmp_path_factory.mktemp("packed") / "s", sweep, backend)
    section = shown(study)
    began = {}
    had: defaultdict[tuple[int, int], dict[int, tuple[int, int]]] = defaultdict(dict)
    for event in study.events():
        if isinstance(event, Started):
            began[event.segment.trial, event.segment.attempt] = event
        elif isinstance(event, Finished):
            start = began[event.trial, event.attempt]
            assert start.rung is not None
            had[start.bracket, start.rung][event.trial] = start.segment.width, event.lanes
    means = {rung: fmean(width / others for width, others in one.values()) for rung, one in had.items()}
    drawn = bars(section, grey=True)
    assert set(drawn) == set(means)
    for rung, box in drawn.items():
        assert box.height == pytest.approx(max(2.0, 18 * means[rung] / max(means.values())))
    table = section.table
    assert table is not None
    place = list(table.head).index("trained together")
    for row in table.rows:
        beside = {others for _, others in had[int(row[0]), int(re.findall(r"rung (\d+)", row[1])[0])].values()}
        ends = [str(beside.pop())] if len(beside) == 1 else [f"{min(beside)} to {max(beside)}"] if beside else [""]
        assert [row[place]] == ends
    assert section.picture is not None
    assert beyond(section.picture) == []


def test_the_picture_says_how_many_are_on_a_worker_and_then_how_many_workers_one_has(tmp_path):
    sweep = replace(
        sweep_of(early_terminate=hpsearch.SuccessiveHalving(27)),
        resources=hpsearch.Resources(trials_per_worker=9, max_workers_per_trial=3),
    )
    study = run_scripted(
        tmp_path / "s", sweep, PackingBackend(3, lambda trial, iteration: trial.seed % 1009 / iteration)
    )
    section = shown(study)
    assert section.picture is not None
    labels = [one.text for one in section.picture.shapes if isinstance(one, Words)]
    _, first, *_, last = [one for one in labels if "worker" in one]
    assert re.fullmatch(r"[\d.]+ on a worker", first)
    assert last == "3 workers each"
    assert "1 to 3 workers. Up to 9 trials were trained together on a worker." in section.paragraphs[0]


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(["synchronous", "one bracket", "asynchronous"]), st.integers(2, 8), st.integers(0, 99))
def test_workers_per_trial_are_those_that_each_had_last(scheduler, workers, seed):
    study = ran(SCHEDULERS[scheduler], workers, seed, widest=workers)
    section, known = shown(study), counted(study)
    table = section.table
    assert table is not None
    widths = [width for one in known.values() for width in one.values()]
    if max(widths) == 1:
        assert "workers per trial" not in table.head
        return
    place = list(table.head).index("workers per trial")
    means = {rung: fmean(one.values()) for rung, one in known.items()}
    for row in table.rows:
        rung = int(row[0]), int(re.findall(r"rung (\d+)", row[1])[0])
        told = Counter(
            {int(width): int(count) for count, width in re.findall(r"(\d+)(?: trials?)? on (\d+)", row[place])}
        )
        assert told == Counter(known.get(rung, {}).values())
    drawn = bars(section, grey=True)
    assert set(drawn) == set(means)
    widest = max(means.values())
    for rung, box in drawn.items():
        assert box.height == pytest.approx(max(2.0, 18 * means[rung] / widest))
    low, high = min(widths), max(widths)
    assert (f"{low} to {high} workers" if low < high else f"A trial had {high} workers") in section.paragraphs[0]


def test_workers_per_trial_grow_as_a_bracket_narrows():
    study = ran(SCHEDULERS["one bracket"], workers=9, seed=1, widest=9, trials=9)
    means = [fmean(one.values()) for _, one in sorted(counted(study).items())]
    assert means == sorted(means)
    assert means[0] < means[-1]
    heights = [box.height for _, box in sorted(bars(shown(study), grey=True).items())]
    assert heights == sorted(heights)
    assert heights[0] < heights[-1]


def test_without_wide_trials_no_word_is_said_of_workers():
    section = shown(ran(SCHEDULERS["synchronous"]))
    assert section.picture is not None
    texts = [one.text for one in section.picture.shapes if isinstance(one, Words)]
    assert not [text for text in [*section.paragraphs, *texts] if "worker" in text]


def test_many_rungs_have_bars_and_as_many_labels_as_there_is_room_for():
    sweep = hpsearch.Sweep(
        name="population",
        trainable="package.module:function",
        metric=hpsearch.Metric("loss"),
        method="pbt",
        parameters=hpsearch.Space.from_parameters({"x": hpsearch.Uniform(0, 1)}),
        early_terminate=hpsearch.PBT(max_iter=200, interval=1, population=4),
        resources=hpsearch.Resources(4),
    )
    study = hpsearch.search(Walk(), sweep, backend="simulated", directory=":memory:", progress=False)
    section = shown(study)
    drawn = bars(section)
    assert len(drawn) > 100
    assert all(box.width > 0 for box in drawn.values())
    assert section.picture is not None
    assert beyond(section.picture) == []
    heads = sorted(one.x for one in section.picture.shapes if isinstance(one, Words) and one.ink == "muted")
    assert 2 < len(heads) < 40
    assert min(later - earlier for earlier, later in itertools.pairwise(heads)) > 20


def test_a_reason_names_the_iterations_of_the_rung_of_the_trials_own_bracket():
    study = ran(SCHEDULERS["synchronous"], workers=2)
    endings, ends = endings_of(study), {(one.bracket, one.rung): one.until for one in study.rungs}
    where = {trial: rung for rung, known in counted(study).items() for trial in known}
    stopped = [row for row in study.trials if row.state == "stopped"]
    assert len({where[row.number][0] for row in stopped}) > 1
    for row in stopped:
        bracket, rung = where[row.number]
        assert endings.why(row).startswith(f"rung {rung} (to iteration {ends[bracket, rung]}): ")
        assert endings.why(row).endswith(row.reason.split(": ", 1)[1])
        assert row.iterations == ends[bracket, rung]
        assert endings.bracket(row) == str(bracket)
    assert [endings.why(row) for row in study.trials if row.state == "failed"] == ["no luck"] * sum(
        row.state == "failed" for row in study.trials
    )


def test_the_table_of_trials_has_the_bracket_and_without_brackets_no_such_column():
    study = ran(SCHEDULERS["synchronous"])
    section = trials(study)
    assert section is not None
    assert section.table is not None
    place = list(section.table.head).index("bracket")
    where = {trial: rung for rung, known in counted(study).items() for trial in known}
    assert all(row[place] == str(where[int(row[0])][0]) for row in section.table.rows)
    plain = trials(simulated(lambda params, seed: hpsearch.Curve({"loss": [1.0]}), max_iter=1, run_cap=2))
    assert plain is not None
    assert plain.table is not None
    assert "bracket" not in plain.table.head
    assert brackets(simulated(lambda params, seed: hpsearch.Curve({"loss": [1.0]}), max_iter=1, run_cap=2)) is None


@pytest.mark.parametrize("ended", [False, True])
def test_trials_that_run_have_begun_and_a_trial_counts_with_the_workers_that_it_had_last(tmp_path, ended):
    """Trial 1 went on with four workers, was taken back, and goes on with one."""
    write_wide_study(tmp_path / "wide", ended=ended)
    study = hpsearch.load(tmp_path / "wide")
    section = shown(study)
    assert section.table is not None
    assert [row[2:] for row in section.table.rows] == [("3", "3"), ("1", "1" if ended else "0")]
    assert [box.height for _, box in sorted(bars(section).items())] == pytest.approx([30, 10])
    assert "worker" not in section.paragraphs[0]
