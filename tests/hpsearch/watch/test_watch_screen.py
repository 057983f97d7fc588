"""The screen of `hpsearch watch`, on journals of real sweeps."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

import hpsearch
from hpsearch.events import Finished, Started, Steered
from hpsearch.journal.directory import StudyDirectory
from hpsearch.journal.journal import Journal
from hpsearch.trainable.running_trial import RunningTrial
from hpsearch.trial import TrialState
from hpsearch.watch.app import Question, TrialScreen, WatchApp
from hpsearch.watch.live_study import LiveStudy, Tail
from hpsearch.watch.trial_table import TrialTable
from tests.hpsearch.support.goals import TWO_GOALS, study_of_goals
from tests.hpsearch.support.played import Player, played
from tests.hpsearch.support.simulations import Bowl


def free(trial: RunningTrial) -> None:
    """Report what decides nothing."""
    for iteration in trial.iterations():
        trial.report({"seen": trial.params["x"] + iteration})


Script = Callable[[WatchApp, Pilot[None]], Awaitable[None]]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished study of 40 trials, some of which failed."""
    folder = tmp_path_factory.mktemp("source") / "bowl"
    study = hpsearch.search(
        Bowl,
        parameters={"x": hpsearch.Uniform(-1.0, 1.0), "kind": hpsearch.Categorical(["a", "b"]), "same": 3},
        metric="loss",
        early_terminate=hpsearch.ASHA(max_iter=9),
        run_cap=40,
        limits={"max_failures": "none"},
        backend="simulated",
        resources={"workers": 4},
        directory=folder,
        observers=[],
        progress=False,
    )
    assert study.state == "finished"
    return folder


@pytest.fixture
def live(source: Path, tmp_path: Path) -> Iterator[Player]:
    with played(source, tmp_path / "live") as player:
        yield player


def watch(directory: Path, script: Script, size: tuple[int, int] = (100, 30)) -> None:
    """Let a script use the screen."""

    async def main() -> None:
        place = StudyDirectory(directory)
        tail = Tail(place)
        app = WatchApp(place, str(directory), tail, LiveStudy(tail.look()), pause=0.05)
        async with app.run_test(size=size, notifications=True) as pilot:
            await pilot.pause()
            await script(app, pilot)

    asyncio.run(main())


async def until(pilot: Pilot[None], met: Callable[[], object]) -> None:
    while not met():
        await pilot.pause(0.02)


def lines(app: WatchApp) -> list[str]:
    """Return the lines on the screen."""
    return ["".join(segment.text for segment in strip).rstrip() for strip in app.screen._compositor.render_strips()]


def text(app: WatchApp) -> str:
    return "\n".join(lines(app))


def table(app: WatchApp) -> TrialTable:
    return app.screen_stack[0].query_one(TrialTable)


def steered(directory: Path) -> list[Any]:
    with Journal.read(StudyDirectory(directory).journal) as journal:
        return journal.all_requests()


def test_it_shows_how_the_study_stands_and_its_best_trials_first(source):
    study = hpsearch.load(source)

    async def script(app, pilot):
        assert "state       finished" in text(app)
        assert f"best        loss {study.best_value:.6g}, trial {study.best_trial.number} after" in text(app)
        assert table(app).sorted_by == "loss"
        ranked = study.sweep.objective.rank({row.number: row.score for row in study.trials})
        valued = [number for number in ranked if study.trials[number].score is not None]
        assert table(app).numbers[: len(valued)] == valued
        assert table(app).cursor == valued[0] == study.best_trial.number
        head = next(line for line in lines(app) if line.startswith("trial   state"))
        assert head.split()[:6] == ["trial", "state", "iterations", "loss", "x", "kind"]  # what is the same stays out

    watch(source, script)


def test_keys_sort_it_and_the_cursor_stays_on_its_trial(source):
    rows = hpsearch.load(source).trials

    async def script(app, pilot):
        await pilot.press("down", "down")
        cursor = table(app).cursor
        assert cursor == table(app).numbers[2]
        await pilot.press("s")
        assert table(app).sorted_by == "x"
        assert table(app).numbers == sorted(range(40), key=lambda number: rows[number].params["x"])
        await pilot.press("r")
        assert table(app).numbers == sorted(range(40), key=lambda number: -rows[number].params["x"])
        await pilot.press("S", "S", "S", "S")
        assert table(app).sorted_by == "trial"
        assert table(app).numbers == list(range(40))
        assert table(app).cursor == cursor
        await pilot.press("end")
        assert table(app).cursor == 39
        assert any(line.startswith("   39") for line in lines(app))
        await pilot.press("home", "pagedown")
        assert 0 < (table(app).cursor or 0) < 39

    watch(source, script, size=(100, 24))


def test_a_click_on_a_head_sorts_and_one_on_a_trial_chooses_it(source):
    async def script(app, pilot):
        row = next(y for y, line in enumerate(lines(app)) if line.startswith("trial   state"))
        await pilot.click(offset=(1, row))
        assert table(app).numbers == list(range(40))
        await pilot.click(offset=(1, row + 6))
        assert table(app).cursor == 5
        await pilot.click(offset=(1, row + 6))
        await until(pilot, lambda: isinstance(app.screen, TrialScreen))
        assert app.screen.trial == 5

    watch(source, script)


def test_a_trial_opens_on_its_page(source):
    study = hpsearch.load(source)
    stopped = next(row for row in study.trials if row.state is TrialState.STOPPED)

    async def script(app, pilot):
        table(app).cursor = stopped.number
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, TrialScreen) and "state  " in app.screen.text)
        page = app.screen.text
        assert page.splitlines()[0] == f"trial       {stopped.number} of {source}"
        assert stopped.reason in page
        assert repr(stopped.params["x"]) in page
        assert "attempt" in page  # its segments
        assert f"hpsearch logs {source} {stopped.number}" in page
        await pilot.press("escape")
        assert not isinstance(app.screen, TrialScreen)

    watch(source, script)


def test_a_row_changes_when_a_segment_is_journaled_and_so_does_the_page(live, tmp_path):
    live.play_to(lambda event: isinstance(event, Started))

    async def script(app, pilot):
        assert "running in ann@box:4711" in text(app)
        assert [row.state for row in app.study.rows] == [TrialState.RUNNING]
        assert "1 of 4 workers busy" in text(app)
        await pilot.press("enter")
        await until(pilot, lambda: "ran         0 iterations" in app.screen.text)
        event = live.play_to(lambda event: isinstance(event, Finished) and event.trial == 0)
        await until(pilot, lambda: app.study.rows[0].iterations == event.iteration)
        await until(pilot, lambda: f"ran         {event.iteration} iteration" in app.screen.text)
        await pilot.press("escape")
        (line,) = [line for line in lines(app) if line.split()[:1] == ["0"]]
        assert line.split()[1:3] == [str(app.study.rows[0].state), str(event.iteration)]
        live.play(live.left)
        await until(pilot, lambda: "state       finished" in text(app))
        assert len(table(app).numbers) == 40

    watch(tmp_path / "live", script)


@pytest.mark.exhaustive
def test_a_study_that_takes_the_place_of_another_is_shown_instead(source, tmp_path):
    place = tmp_path / "live"
    other = study_of_goals(tmp_path / "other", **TWO_GOALS, backend="inline", observers=[], progress=False)

    async def script(app, pilot):
        assert "state       killed" in text(app)
        place.rename(tmp_path / "gone")
        await until(pilot, lambda: "no news" in text(app))
        other.directory.rename(place)
        await until(pilot, lambda: "front" in text(app))
        assert "no news" not in text(app)
        assert {"loss", "acc"} <= set(next(line for line in lines(app) if line.startswith("trial   state")).split())

    with played(source, place) as player:
        player.play(30)
    watch(place, script)


@pytest.mark.parametrize(("key", "verb"), [("p", "pause"), ("x", "stop"), ("d", "prune")])
def test_a_key_leaves_a_request_which_the_running_process_answers(live, tmp_path, key, verb):
    live.play_to(lambda event: isinstance(event, Started))

    async def script(app, pilot):
        await pilot.press(key)
        if verb != "pause":
            await until(pilot, lambda: isinstance(app.screen, Question))
            assert steered(tmp_path / "live") == []  # nothing before the answer
            await pilot.press("y")
        await until(pilot, lambda: steered(tmp_path / "live"))
        (request,) = steered(tmp_path / "live")
        assert (request.verb, dict(request.details)) == (verb, {"trials": [0]} if verb == "prune" else {})
        live._journal.append([Steered(verb, request.by, request.number, request.details, "not now")])
        await until(pilot, lambda: "refused: not now" in text(app))

    watch(tmp_path / "live", script)


@pytest.mark.parametrize("answer", ["n", "escape", "enter"])
def test_anything_but_yes_stops_nothing(live, tmp_path, answer):
    live.play_to(lambda event: isinstance(event, Started))

    async def script(app, pilot):
        await pilot.press("x")
        await until(pilot, lambda: isinstance(app.screen, Question))
        await pilot.press(answer)
        await until(pilot, lambda: not isinstance(app.screen, Question))
        assert steered(tmp_path / "live") == []

    watch(tmp_path / "live", script)


@pytest.mark.parametrize("key", ["p", "x", "d"])
def test_where_no_process_runs_it_nothing_is_asked_and_it_says_what_to_do(source, key):
    async def script(app, pilot):
        await pilot.press(key)
        await until(pilot, lambda: "no process runs this study" in text(app))
        assert "it is finished" in " ".join(text(app).split())
        assert "hpsearch resume" not in text(app)  # there is nothing left to run
        assert steered(source) == []

    watch(source, script)


def test_sixty_columns_are_enough(source):
    async def script(app, pilot):
        await until(pilot, lambda: "quit" in lines(app)[-1])
        shown = lines(app)
        assert all(len(line) <= 60 for line in shown)
        head = next(line for line in shown if line.startswith("trial   state"))
        assert head.split()[:4] == ["trial", "state", "iterations", "loss"]
        assert "time" not in head
        for _ in range(5):
            await pilot.press("right")
        head = next(line for line in lines(app) if line.startswith("trial   state"))
        assert {"loss", "why"} <= set(head.split())

    watch(source, script, size=(60, 20))


def test_a_study_without_trials_and_one_without_a_metric_are_shown(source, tmp_path):
    async def empty(app, pilot):
        assert "state       not begun" in text(app)
        await pilot.press("enter", "down", "s", "r", "end", "right", "d")
        assert table(app).cursor is None

    with played(source, tmp_path / "empty"):
        pass
    watch(tmp_path / "empty", empty)

    sweep = {"method": "random", "run_cap": 3, "max_iter": 2, "parameters": {"x": {"min": 0.0, "max": 1.0}}}
    study = hpsearch.search(free, sweep, directory=tmp_path / "free", backend="inline", observers=[], progress=False)
    assert not study.sweep.objective.goals

    async def script(app, pilot):
        assert "no metric" in text(app)
        head = next(line for line in lines(app) if line.startswith("trial   state"))
        assert head.split()[:5] == ["trial", "state", "iterations", "x", "seen"]
        assert "best " not in text(app)

    watch(tmp_path / "free", script)


@pytest.mark.exhaustive
def test_thousands_of_trials_make_no_more_lines_than_are_seen(tmp_path):
    study = hpsearch.search(
        Bowl,
        parameters={"x": hpsearch.Uniform(-1.0, 1.0)},
        metric="loss",
        max_iter=1,
        run_cap=2000,
        limits={"max_failures": "none"},
        backend="simulated",
        resources={"workers": 4},
        directory=tmp_path / "many",
        observers=[],
        progress=False,
    )

    async def script(app, pilot):
        made = []
        rows = app.study.rows

        class Seen(list):
            def __getitem__(self, place: Any) -> Any:
                made.append(place)
                return super().__getitem__(place)

        table(app)._rows = Seen(rows)
        await pilot.press("pagedown")
        assert 0 < len(made) <= 200
        await pilot.press("end")
        last = table(app).cursor
        assert last is not None
        assert math.isnan(rows[last].metrics.get("loss", math.nan)) or rows[last].score is None
        assert f"{study.best_trial.number}" in text(app)

    watch(tmp_path / "many", script)
