"""A study on one page."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Tree

import pytest

import hpsearch
from hpsearch.errors import HpsearchError
from hpsearch.page.brackets import brackets
from hpsearch.page.charts.picture import Line, Words
from hpsearch.page.endings import endings_of
from hpsearch.page.goals import front
from hpsearch.page.page import page_of
from hpsearch.page.params import parallel
from tests.hpsearch.support.command_line import call
from tests.hpsearch.support.pages import Reader, curve, searched


def layered(trial: hpsearch.RunningTrial) -> None:
    for _ in trial.iterations():
        trial.report({"loss": float(len(trial.params["layers"]))})


def diverging(trial: hpsearch.RunningTrial) -> None:
    for iteration in trial.iterations():
        x = trial.params["x"]
        trial.report({"loss": math.nan if x < 0.1 else math.inf if x < 0.2 else 10**300 if x < 0.3 else x / iteration})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pages")


@pytest.fixture(scope="module")
def study(folder: Path) -> hpsearch.Study:
    return searched(folder / "x & <y>", early_terminate=hpsearch.Hyperband(max_iter=27, eta=3))


@pytest.fixture(scope="module")
def read(study: hpsearch.Study) -> Reader:
    return Reader(page_of([study]).html())


def test_it_needs_nothing_else_and_its_links_lead_somewhere(study, read):
    html = page_of([study]).html()
    assert "<script" not in html
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", html)
    assert {link for link in read.links if link.startswith("#")} == set(read.links)
    assert {link[1:] for link in read.links} <= read.names


def test_it_has_a_part_for_all_that_there_is(read):
    assert read.headings == [
        "What was found",
        "How it got there",
        "Learning curves",
        "Brackets",
        "What mattered",
        "Parameters",
        "Trials",
        "Workers",
        "Failures",
        "Run it again",
    ]


def test_it_tells_the_best_why_others_ended_and_how_to_run_it_again(study, read):
    best = study.best_trial
    assert f"Trial {best.number} is best, with loss {best.value:.4g} at iteration" in read.text
    assert f"{best.params['x']:.4g}" in read.text
    stopped = [row for row in study.trials if row.state == "stopped"]
    counts = {row.iterations for row in stopped}
    assert all(f"{sum(row.iterations == count for row in stopped)} at {count}" in read.text for count in counts)
    ranked = sorted((row for row in study.trials if row.value is not None), key=lambda row: row.value or 0)
    endings = endings_of(study)
    assert all(endings.why(row) in read.text for row in ranked[:20])
    assert "ValueError: too <large> & 'wide'" in read.text
    assert study.provenance["command"] in read.text
    assert "seed3" in read.text.replace("\n", "")


def test_a_cell_of_several_words_has_room_for_them_on_a_phone(study):
    """Without it a column of reasons is one word wide there, and each row as high as it has words."""
    text = page_of([study]).html()
    assert re.search(r'<td class="words">rung \d+ \(to iteration \d+\): ', text)
    assert re.search(r"td\.words \{ min-width: \d+px \}", text)
    assert "<td>complete</td>" in text


def test_importance_goes_by_the_highest_iteration_that_20_trials_reached(study, read):
    told = re.search(r"By loss at iteration (\d+), the last one that (\d+) trials reached", read.text)
    assert told is not None
    at = int(told[1])
    reached = {i: sum(i in dict(curve) for curve in study.curves().values()) for i in range(1, 28)}
    assert at == max(i for i, count in reached.items() if count >= 20)
    assert f"By loss at iteration {at}, the last one that {reached[at]} trials reached: x " in read.text


def test_idle_time_is_what_the_workers_were_not_busy_in(study, read):
    told = re.search(r"1 worker: idle for .* of .* \((\d+)%\)", read.text)
    assert told is not None
    assert 0 <= int(told[1]) <= 100


def test_what_diverged_leaves_the_others_apart(folder):
    study = searched(folder / "diverging", diverging, max_iter=3, run_cap=30, early_terminate=None)
    reader = Reader(page_of([study]).html())
    assert "as far as 1e+300" in reader.text
    assert "nan" not in "".join(re.findall(r'points="([^"]*)"', page_of([study]).html()))


def test_several_goals_have_a_front(folder):
    metrics = hpsearch.Metric("loss"), hpsearch.Metric("ms")
    study = searched(folder / "goals", metric=metrics, max_iter=1, run_cap=8, early_terminate=None)
    reader = Reader(page_of([study]).html())
    assert reader.headings[:2] == ["What was found", "Front"]
    assert (
        f"{len(study.best_trials)} of {len([row for row in study.trials if row.values])} trials are on the front"
        in (reader.text)
    )


def test_structures_are_drawn_those_of_the_best_three_that_differ(folder):
    parameters = {
        "layers": hpsearch.Chain({"conv": {"width": [8, 16]}, "pool": {}}, min=1, max=3),
        "cell": hpsearch.Cell(["conv", "skip"], nodes=3),
        "nodes": hpsearch.Cell(["conv", "skip"], nodes=4, each="node"),
    }
    study = searched(folder / "nets", layered, parameters=parameters, max_iter=1, run_cap=6, early_terminate=None)
    reader = Reader(page_of([study]).html())
    titles = [heading for heading in reader.headings if heading.startswith("Best networks")]
    assert titles == ["Best networks: layers", "Best networks: cell", "Best networks: nodes"]
    drawn = re.findall(r"trial (\d+), loss", reader.text)
    assert drawn[::3] != drawn[1::3]
    assert drawn[:3] == drawn[3:6] == drawn[6:]
    assert drawn[0] == str(study.best_trial.number)


def test_a_study_without_a_metric_has_no_best(folder):
    sweep = {"method": "random", "run_cap": 3, "max_iter": 2, "parameters": {"x": {"min": 0.0, "max": 1.0}}}
    given: dict[str, Any] = {"backend": "inline", "observers": [], "progress": False}
    study = hpsearch.search(curve, sweep, directory=folder / "any", **given)
    reader = Reader(page_of([study]).html())
    assert "The sweep names no metric, so no trial is the best." in reader.text
    assert "Learning curves" not in reader.headings
    with pytest.raises(HpsearchError, match="expected studies with a metric to compare by"):
        page_of([study, hpsearch.search(curve, {**sweep, "seed": 4}, directory=folder / "any-2", **given)])


def test_a_study_without_a_value_says_so(folder):
    with pytest.raises(HpsearchError):
        searched(folder / "failed", lambda trial: 1 / 0, run_cap=5, max_iter=1, early_terminate=None)
    study = hpsearch.load(folder / "failed")
    reader = Reader(page_of([study]).html())
    assert "No trial has a value yet." in reader.text
    assert "ZeroDivisionError" in reader.text
    with pytest.raises(HpsearchError, match="this picture needs a trial with a value of what decides"):
        study.plot_history()


def test_of_trials_that_have_all_failed_none_is_called_the_best(folder):
    def breaking(trial: hpsearch.RunningTrial) -> None:
        for iteration in trial.iterations():
            assert iteration < 3
            trial.report({"loss": 1.0 / iteration})

    study = searched(folder / "breaking", breaking, run_cap=2, max_iter=4, early_terminate=None)
    text = Reader(page_of([study]).html()).text
    assert "No trial has a value; trial 0 went from 1 to 0.5 at iteration 2." in text
    assert "the best, went" not in text


def test_several_studies_are_compared_first(study, folder):
    other = searched(folder / "other", name="other", max_iter=2, run_cap=3, early_terminate=None)
    reader = Reader(page_of([study, other]).html())
    assert reader.headings[:8] == [
        "What each found",
        "Best at equal cost",
        "Best over trials",
        "Best over iterations",
        "Best over seconds",
        "Best trials",
        "How the sweeps differ",
        f"Better than {study.sweep.name}",
    ]
    html = page_of([study, other]).html()
    assert html.count("Side by side</") == 2  # the link, and one heading
    assert "</tr>" in html[html.index("Better than") : html.index('<h1 id="part-2">')]
    assert "A side of one study says nothing of chance" in reader.text


def test_the_command_writes_the_page_and_the_pictures(study, folder, capsys):
    page, pictures = folder / "page.html", folder / "pictures"
    answer = call(capsys, "report", study.directory, "--output", page, "--svg", pictures)
    assert answer.code == 0
    assert answer.out.splitlines()[0] == str(page)
    assert sorted(answer.out.splitlines()[1:]) == sorted(map(str, pictures.iterdir()))
    assert Reader(page.read_text(encoding="utf-8")).headings[0] == "What was found"
    names = ("how-it-got-there", "learning-curves", "brackets", "what-mattered", "parameters", "workers")
    assert {path.name for path in pictures.iterdir()} == {f"{name}.svg" for name in names}
    for path in pictures.iterdir():
        width = Tree.fromstring(path.read_text(encoding="utf-8")).get("width")
        assert width == ("490" if path.stem == "what-mattered" else "760")
    refused = call(capsys, "report", study.directory, "--output", page, "--png", pictures)
    assert refused.code == 1
    assert f"--png {pictures}: pictures are written as SVG: use --svg {pictures}" in refused.err
    assert call(capsys, "report", study.directory, "--output", folder / "no" / "where.html").code == 1
    assert call(capsys, "report", folder / "nowhere").code == 1


def test_pictures_come_one_by_one_and_a_notebook_shows_the_study(study):
    names = ("history", "curves", "parameters", "importance", "brackets", "workers")
    for name in names:
        assert getattr(study, f"plot_{name}")()._repr_svg_().startswith("<svg")
    Reader(study._repr_html_())
    with pytest.raises(HpsearchError, match="needs several goals"):
        study.plot_front()


def test_an_axis_of_choices_has_all_of_them_in_the_order_of_the_space(tmp_path):
    def train(trial: hpsearch.RunningTrial) -> None:
        trial.report({"loss": trial.params["lr"]})

    study = searched(
        tmp_path / "choices",
        train,
        parameters={"lr": hpsearch.Uniform(0, 1), "hidden": [32, 256, 64, 1024], "act": ["relu", "gelu"]},
        early_terminate=None,
        max_iter=1,
        run_cap=4,
    )
    section = parallel(study)
    assert section is not None
    assert section.picture is not None
    shown = [one.text for one in section.picture.shapes if isinstance(one, Words)]
    assert [text for text in shown if text in ("32", "256", "64", "1024")] == ["32", "256", "64", "1024"]
    assert [text for text in shown if text in ("relu", "gelu")] == ["relu", "gelu"]
    assert re.search(r"hidden (32|256|64|1024);", section.paragraphs[0])


def test_the_front_shows_no_more_than_some_trial_has(tmp_path):
    metrics = [hpsearch.Metric("gain", "maximize"), hpsearch.Metric("cost", "minimize")]

    def train(trial: hpsearch.RunningTrial) -> None:
        trial.report({"gain": trial.params["x"], "cost": trial.params["x"] ** 2})

    choices = {"x": [1.0, 2.0, 3.0]}
    study = searched(
        tmp_path / "front", train, parameters=choices, metric=metrics, method="grid", early_terminate=None, max_iter=1
    )
    section = front(study)
    assert section is not None
    assert section.picture is not None
    (line,) = (one for one in section.picture.shapes if isinstance(one, Line) and one.dashed)
    corners = list(line.points)
    # Of less gain the cost is that of a trial with more of it: from the right, first left, then down.
    assert all(x1 < x0 and y1 == y0 for (x0, y0), (x1, y1) in zip(corners[::2], corners[1::2], strict=False))


@pytest.mark.exhaustive
def test_what_is_left_out_of_the_brackets_is_said_and_the_best_tenth_is_one_of_all(tmp_path):
    def train(trial: hpsearch.RunningTrial) -> None:
        for _ in trial.iterations():
            trial.report({"loss": trial.params["x"]})

    study = searched(
        tmp_path / "many",
        train,
        parameters={"x": hpsearch.Uniform(0, 1)},
        early_terminate=hpsearch.Hyperband(max_iter=3, eta=3, brackets=30),
        limits={"max_failures": "none"},
    )
    shown = brackets(study)
    assert shown is not None
    assert "The first 12 brackets are drawn, and are in the table." in shown.paragraphs
    drawn = parallel(study)
    assert drawn is not None
    count = len(study.trials)
    assert f"The best tenth ({count // 10} of {count}) in green" in drawn.paragraphs[0]
