"""Studies beside each other."""

from __future__ import annotations

import csv
import io
import json
import math
import shutil
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import hpsearch
from hpsearch.errors import HpsearchError
from hpsearch.page.charts.picture import Area, Line
from hpsearch.page.comparing import courses
from hpsearch.results.comparison import AXES, Comparison, compare
from hpsearch.tables.comparison import comparison_json, comparison_text, courses_csv
from tests.hpsearch.support.command_line import call
from tests.hpsearch.support.compared import searched

SEEDS = range(7)


class Falling(hpsearch.Curves):
    def curve(self, params: dict[str, Any], seed: int) -> hpsearch.Curve:
        return hpsearch.Curve({"loss": [params["x"], params["x"] / 2]}, seconds=1.0)


def failing(trial: hpsearch.RunningTrial) -> None:
    raise ValueError("no")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compared")


@pytest.fixture(scope="module")
def few(folder: Path) -> list[hpsearch.Study]:
    return [searched(folder / f"few{seed}", name="few", run_cap=2, seed=seed) for seed in SEEDS]


@pytest.fixture(scope="module")
def more(folder: Path) -> list[hpsearch.Study]:
    return [searched(folder / f"more{seed}", name="more", seed=seed) for seed in SEEDS]


@pytest.fixture(scope="module")
def both(few: Sequence[hpsearch.Study], more: Sequence[hpsearch.Study]) -> Comparison:
    return compare(*few, *more)


@pytest.mark.exhaustive
def test_studies_that_differ_in_their_seed_alone_are_one_side(both):
    assert [(side.label, [run.seed for run in side.runs]) for side in both.sides] == [
        ("few", list(SEEDS)),
        ("more", list(SEEDS)),
    ]
    assert both.differing(both.sides[1]) == {"name": ("'few'", "'more'"), "run_cap": ("2", "6")}


@pytest.mark.exhaustive
def test_the_best_after_so_much_is_what_the_study_would_have_had_if_it_had_ended_there(more):
    (side,) = compare(*more).sides
    for run in side.runs:
        values = [row.values[0] for row in run.study.trials]
        for count in range(1, 7):
            assert run.at("trials", count) == min(values[:count])
            assert run.at("iterations", 3 * count + 2) == min(values[:count])
        assert run.at("trials", 0) is None
        assert run.value == run.study.best_value
        times = run.study.times().values()
        ends = [ended for _, ended in times if ended is not None]
        assert run.course.end.seconds >= max(ends) - min(began for began, _ in times)


def test_median_and_quartiles_are_those_of_the_runs(both):
    for side in both.sides:
        values = [run.value for run in side.runs]
        spread = side.spread(values)
        expected = np.percentile(values, [50, 25, 75])
        assert [spread.median, spread.low, spread.high] == pytest.approx(expected)


def test_a_study_counts_once_under_whatever_path(few, folder):
    link, copied = folder / "link", folder / "copied"
    link.symlink_to(few[0].directory)
    shutil.copytree(few[0].directory, copied)
    for other in (few[0].directory, link, copied):
        with pytest.raises(HpsearchError, match="expected different studies, got this one twice"):
            compare(few[0], few[1], other)


def test_studies_that_were_run_in_memory_are_compared():
    given = {
        "method": "random",
        "metric": "loss",
        "directory": ":memory:",
        "backend": "simulated",
        "resources": {"workers": 1},
    }
    ran = [
        hpsearch.search(Falling(), parameters={"x": hpsearch.Uniform(0, 1)}, max_iter=2, run_cap=cap, **given)  # type: ignore[arg-type]
        for cap in (2, 6)
    ]
    few, more = compare(*ran).sides
    assert [few.best_run.value, more.best_run.value] == [study.best_value for study in ran]
    with pytest.raises(HpsearchError, match="got this one twice"):
        compare(ran[0], ran[0])


def test_a_run_without_a_value_counts_as_worse_than_all_others(both):
    side = both.sides[0]
    assert side.spread([1.0, None, 3.0]).median == 3.0
    assert side.spread([1.0, None, None]).median is None
    assert (side.spread([1.0, 2.0, None]).low, side.spread([1.0, 2.0, None]).high) == (1.5, None)
    maximized = type(side)("up", side.runs, more_is_better=True)
    assert maximized.spread([1.0, None, 3.0]).median == 1.0


def test_the_difference_is_paired_by_seed_and_above_0_where_it_is_better(both):
    known = {one.by: one for one in both.differences}
    assert set(known) == {None, *AXES}
    one = known[None]
    pairs = [(few.value, more.value) for few, more in zip(*(side.runs for side in both.sides), strict=True)]
    gains = [few - more for few, more in pairs]
    test = stats.ttest_rel(*zip(*pairs, strict=True))
    low, high = test.confidence_interval(0.95)
    assert one.pairs == len(SEEDS)
    assert one.mean == pytest.approx(np.mean(gains))
    assert one.mean > 0  # each found as much with its first trials as the other in all
    assert one.interval == pytest.approx((low, high))
    assert one.p_value == pytest.approx(stats.wilcoxon(gains).pvalue)
    # By equal trials both are the same search.
    assert (known["trials"].amount, known["trials"].mean, known["trials"].p_value) == (2.0, 0.0, 1.0)
    assert (known["iterations"].amount, known["iterations"].mean) == (6.0, 0.0)


def test_less_than_six_pairs_have_no_test(few, more):
    (one, *_) = compare(*few[:5], *more[:5]).differences
    assert (one.pairs, one.p_value) == (5, None)
    assert one.interval is not None


def test_seeds_that_are_not_the_same_are_not_paired(few, more):
    (one, *_) = compare(*few[:3], *more[3:]).differences
    low, high = stats.ttest_ind(
        *([run.best_value for run in runs] for runs in (few[:3], more[3:])), equal_var=False
    ).confidence_interval(0.95)
    assert (one.pairs, one.p_value) == (0, None)
    assert one.interval == pytest.approx((low, high))


def test_seeds_without_a_partner_are_left_out_and_told(few, more):
    compared = compare(*few[:4], *more[2:])
    for one in compared.differences:
        assert (one.pairs, [run.seed for run in one.left_out]) == (2, [0, 1, 4, 5, 6])
    (one, *_) = compared.differences
    gains = [few[seed].best_value - more[seed].best_value for seed in (2, 3)]
    assert one.mean == pytest.approx(np.mean(gains))
    text = comparison_text(compared)
    assert "more, left out, as the other side has no such seed: seeds 0, 1 of few and seeds 4, 5, 6 of more\n" in text
    told = comparison_json(compared)["differences"][0]["left_out"]
    assert [(entry["directory"], entry["seed"]) for entry in told] == [
        (str(study.directory), study.sweep.seed) for study in (few[0], few[1], more[4], more[5], more[6])
    ]
    (one, *_) = compare(*few[:3], *more[2:]).differences  # a single seed pairs nothing
    assert (one.pairs, one.left_out) == (0, ())


def test_studies_of_a_side_with_one_seed_are_no_evidence_of_chance(few, more, folder):
    twice = [
        searched(folder / f"{name}-again", name=name, seed=0, run_cap=cap) for name, cap in (("few", 2), ("more", 6))
    ]
    compared = compare(few[0], twice[0], more[0], twice[1])
    (one, *_) = compared.differences
    assert (one.mean, one.interval) == (few[0].best_value - more[0].best_value, None)
    assert "few: studies with the same seed count as one, by their mean: 2 with seed 0\n" in comparison_text(compared)
    (one, *_) = compare(few[0], twice[0], few[1], more[0], more[1]).differences
    assert (one.pairs, one.left_out) == (2, ())


def test_one_study_of_each_has_no_interval(few, more):
    (one, *_) = compare(few[0], more[0]).differences
    assert one.mean == few[0].best_value - more[0].best_value
    assert (one.interval, one.p_value) == (None, None)


def test_what_is_maximized_is_better_above(folder):
    studies = [
        searched(folder / f"up{cap}", name=f"up{cap}", metric={"goal": "maximize"}, run_cap=cap, seed=3)
        for cap in (1, 6)
    ]
    (one, *_) = compare(*studies).differences
    assert one.mean == studies[1].best_value - studies[0].best_value >= 0


def test_time_in_which_no_process_ran_does_not_count(folder):
    place = folder / "twice"
    searched(place, run_cap=1)
    before = hpsearch.load(place).course().end
    study = searched(place, run_cap=2)
    opened = [entry.time for entry in study.entries() if type(entry.event).__name__ == "Opened"]
    after = study.course().end
    assert after.trials == 2
    assert after.seconds <= after.time - before.time + before.seconds - (opened[1] - before.time) + 1e-6


def test_params_that_differ_beyond_the_digits_that_are_shown_are_marked(folder):
    studies = [
        searched(folder / f"near{x}", name=f"near{x}", run_cap=1, points_to_try=[{"x": x}]) for x in (0.25, 0.250001)
    ]
    assert "\n * x " in comparison_text(compare(*studies))


def test_studies_of_other_aims_are_refused(few, folder):
    best = searched(folder / "of-best", run_cap=1, metric=hpsearch.Metric("loss", scope="best"))
    with pytest.raises(
        HpsearchError, match=r"got one that is to minimize loss, of all reports of a trial the best loss;"
    ):
        compare(few[0], best)
    other = searched(folder / "down", metric={"goal": "maximize"}, run_cap=1)
    with pytest.raises(HpsearchError, match=r"down: expected a study that is to minimize loss, as .*few0 is"):
        compare(few[0], other)
    with pytest.raises(HpsearchError, match=r"few0: expected different studies, got this one twice"):
        compare(few[0], few[1], few[0])


def test_a_study_without_a_value_is_told(few, folder):
    with pytest.raises(HpsearchError):
        searched(folder / "failing", failing, run_cap=5)
    compared = compare(few[0], hpsearch.load(folder / "failing"))
    (one, *_) = compared.differences
    assert one.mean is None
    text = comparison_text(compared)
    assert f"as they stand: unknown, as there is no value to reckon with in {folder / 'failing'}\n" in text
    assert f"{folder / 'failing'} is error" in text
    assert compared.plots(folder / "drawn")


def test_the_text_holds_the_best_and_what_differs(both):
    text = comparison_text(both)
    values = [side.spread([run.value for run in side.runs]).median for side in both.sides]
    assert all(f"{value:.4g} [" in text for value in values if value is not None)
    best = [min(side.runs, key=lambda run: run.study.best_value) for side in both.sides]
    assert [f"{run.best.number} (seed {run.seed})" in text for run in best if run.best] == [True, True]
    assert "\n * x " in text
    assert "\n c  " in text
    assert "  run_cap: 2 in few, 6 in more\n" in text
    assert "7 seeds paired, Wilcoxon p = " in text


def test_csv_has_every_change_of_the_best(both):
    rows = list(csv.DictReader(io.StringIO(courses_csv(both))))
    for run in both.runs:
        own = [row for row in rows if row["directory"] == str(run.study.directory)]
        assert [float(row["value"]) for row in own] == sorted(map(float, (row["value"] for row in own)), reverse=True)
        assert float(own[-1]["value"]) == run.study.best_value


def test_json_is_strict_and_holds_everything(both):
    told = json.loads(json.dumps(comparison_json(both), allow_nan=False))
    assert [side["label"] for side in told["sides"]] == ["few", "more"]
    assert [study["value"] for study in told["sides"][0]["studies"]] == [run.value for run in both.sides[0].runs]
    assert math.isclose(told["differences"][0]["mean"], both.differences[0].mean or math.nan)
    spreads = [entry for side in told["sides"] for entry in (side["best"], *side["after"])]
    assert all(entry["low"] <= entry["median"] <= entry["high"] for entry in spreads if None not in entry.values())
    assert any(entry["low"] < entry["high"] for entry in spreads if None not in entry.values())


def test_the_command_prints_and_draws(both, folder, capsys):
    directories = [run.study.directory for run in both.runs]
    answer = call(capsys, "compare", *directories, "--plots", folder / "plots")
    assert answer.code == 0
    assert answer.out.startswith(comparison_text(both))
    names = {f"best-by-{axis}.svg" for axis in AXES}
    assert {path.name for path in (folder / "plots").iterdir()} == names
    assert call(capsys, "compare", *directories, "--format", "csv").out == courses_csv(both)
    assert json.loads(call(capsys, "compare", *directories, "--format", "json").out) == comparison_json(both)
    assert call(capsys, "compare", *directories, "--plots", directories[0] / "study.db").code == 1


@pytest.mark.exhaustive
@pytest.mark.parametrize("goal", ["minimize", "maximize"])
def test_the_best_is_drawn_in_steps_within_its_quartiles(folder, goal):
    sides = [
        [
            searched(folder / f"{goal}{cap}-{seed}", name=f"{cap}", metric={"goal": goal}, run_cap=cap, seed=seed)
            for seed in range(3)
        ]
        for cap in (4, 6)
    ]
    compared = compare(*sides[0], *sides[1])
    for axis, picture in courses(compared).items():
        lines = [shape for shape in picture.shapes if isinstance(shape, Line) and shape.ink in ("s0", "s1")]
        areas = [shape for shape in picture.shapes if isinstance(shape, Area)]
        assert {shape.ink for shape in lines} == {"s0", "s1"}
        for points in [*(line.points for line in lines), *(area.points for area in areas)]:
            assert all(a[0] == b[0] or a[1] == b[1] for a, b in pairwise(points)), axis
    picture = courses(compared)["trials"]  # where every run has a value from the first trial on
    for ink in ("s0", "s1"):
        (area,) = (shape for shape in picture.shapes if isinstance(shape, Area) and shape.ink == ink)
        line = max((shape.points for shape in picture.shapes if isinstance(shape, Line) and shape.ink == ink), key=len)
        assert min(y for _, y in area.points) <= min(y for _, y in line)
        assert max(y for _, y in area.points) >= max(y for _, y in line)


def test_nothing_to_compare_is_an_error(folder, capsys):
    answer = call(capsys, "compare", folder / "nowhere")
    assert answer.code == 1
    assert "expected a study's directory" in answer.err


def test_python_compares_directories_as_well(few, more):
    compared = hpsearch.compare(str(few[0].directory), more[0])
    assert compared.text() == compare(few[0], more[0]).text()
    with pytest.raises(HpsearchError, match="expected studies, or their directories, got none"):
        hpsearch.compare()


def test_comparing_loads_neither_torch_nor_ray(folder, few):
    import subprocess

    program = (
        "import sys; from hpsearch.cli import main; main(sys.argv[1:]); "
        "sys.exit(bool({'torch', 'ray'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", program, "compare", str(few[0].directory), str(few[1].directory)]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
