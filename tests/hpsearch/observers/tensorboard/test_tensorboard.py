"""What TensorBoard itself reads back from the event files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import api_pb2

from hpsearch.decision import Decision, Followed
from hpsearch.events import Entry, Event, Failed, Finished, Lost, Opened, Retried, Reverted, Saved, Started
from hpsearch.objective import Metric
from hpsearch.observers.base import Observed, Record
from hpsearch.observers.tensorboard.event_file import EventFiles
from hpsearch.observers.tensorboard.hparams import HParams
from hpsearch.observers.tensorboard.observer import MOST_TRIALS, TensorBoardObserver
from hpsearch.observers.tensorboard.study_runs import (
    BUSY_TAG,
    RUNNING_TAG,
    STUDY_RUN,
    StudyRuns,
    best,
    by_tag,
    rung_tag,
)
from hpsearch.observers.tensorboard.trial_runs import (
    ITERATIONS_TAG,
    LANES_TAG,
    SECONDS_TAG,
    WIDTH_TAG,
    best_tag,
    trial_run,
)
from hpsearch.schedulers.base import RungView
from hpsearch.schedulers.pbt import PBT
from hpsearch.space import (
    Categorical,
    Constant,
    IntUniform,
    LogIntUniform,
    LogNormal,
    LogUniform,
    Normal,
    Space,
    Uniform,
)
from hpsearch.sweep.parts import Resources
from hpsearch.trial import Failure, Params, Parent, Report, Segment, Trial
from tests.hpsearch.support.scripted import sweep_of
from tests.hpsearch.support.tensorboards import Board

SPACE = Space.from_parameters(
    {
        "lr": LogUniform(1e-4, 1.0),
        "opt": {"momentum": Uniform(0.0, 0.9, step=0.1)},
        "layers": IntUniform(1, 5),
        "channels": LogIntUniform(8, 512),
        "noise": Normal(0.0, 1.0),
        "decay": LogNormal(0.0, 1.0),
        "batch": Categorical([16, 32]),
        "nesterov": Categorical([True, False]),
        "activation": Categorical(["relu", "tanh"]),
        "widths": Categorical([[8], [8, 4], None]),
        "seed": Constant(7),
    }
)
PARAMS: Params = {
    "lr": 0.25,
    "opt.momentum": 0.5,
    "layers": 3,
    "channels": 64,
    "noise": -0.5,
    "decay": 1.5,
    "batch": 32,
    "nesterov": True,
    "activation": "relu",
    "widths": [8, 4],
    "seed": 7,
}

LOGS = {"log10(lr)": math.log10(0.25), "log10(channels)": math.log10(64), "log10(decay)": math.log10(1.5)}
BEST = by_tag(best(), "iterations")
METRICS = ["accuracy", "best/accuracy", ITERATIONS_TAG, SECONDS_TAG]


def observer(directory: Path, goal="maximize", scope="last", trials_per_worker=1) -> TensorBoardObserver:
    resources = Resources(trials_per_worker=trials_per_worker)
    sweep = sweep_of(name="digits", metric=Metric("accuracy", goal, scope), parameters=SPACE, resources=resources)
    made = TensorBoardObserver(Observed(directory, sweep, created=500.0))
    made.seen()
    return made


def tell(tensorboard: TensorBoardObserver, event: Event, decisions: Sequence[Decision], when: float = 1000.0) -> None:
    tensorboard.observe(Record(1, when, event, decisions))


def started(
    trial: int, start: int, end: int | None, attempt: int = 1, params: Params = PARAMS, width: int = 1, reason: str = ""
) -> Started:
    new = Trial(trial, params, 0, "random") if attempt == 1 else None
    return Started(Segment(trial, start, end, None, attempt, width), new, reason)


def reports(trial: int, start: int, values: list[float]) -> tuple[Report, ...]:
    return tuple(Report(trial, start + i, {"accuracy": v, "loss": -v}, 0.1) for i, v in enumerate(values, 1))


def finished(trial: int, iteration: int, said: tuple[Report, ...], attempt: int = 1, cut: bool = False) -> Finished:
    return Finished(trial, attempt, iteration, None, said, cut, 0.1)


def failed(trial: int, retry: bool, said: tuple[Report, ...] = (), attempt: int = 1) -> Failed:
    return Failed(trial, attempt, Failure("raised", "ValueError: no", ""), retry, said)


def stop(trial: int) -> Decision:
    return Decision(trial, "stop", "rung 0: 2nd of 2, top 1 go on")


def curve(directory: Path, run: str, tag: str):
    """Read a scalar with both of TensorBoard's Python readers, which must agree."""
    accumulator = EventAccumulator(str(directory / "tensorboard" / run)).Reload()
    points = [(event.step, event.value) for event in accumulator.Scalars(tag)]
    assert repr(Board(directory / "tensorboard").curve(run, tag)) == repr(points)
    return [(step, pytest.approx(value)) for step, value in points]


def dashboard(directory: Path):
    """Return what the HParams dashboard receives: its experiment, and its session groups by name."""
    board = Board(directory / "tensorboard")
    return board.experiment(), board.sessions()


def test_dashboard_shows_every_parameter_with_its_domain(tmp_path):
    observer(tmp_path).close()
    experiment, groups = dashboard(tmp_path)
    infos = {info.name: info for info in experiment.hparam_infos}
    assert experiment.name == "digits"
    logs = ("log10(lr)", "log10(channels)", "log10(decay)")
    assert set(infos) == {*SPACE.names, *logs, "state"}
    intervals = {"lr": (1e-4, 1.0), "opt.momentum": (0.0, 0.9), "layers": (1, 5), "channels": (8, 512)}
    intervals |= {"log10(lr)": (-4, 0), "log10(channels)": (math.log10(8), math.log10(512))}
    for name, ends in intervals.items():
        assert (infos[name].domain_interval.min_value, infos[name].domain_interval.max_value) == ends
    assert infos["noise"].WhichOneof("domain") is infos["decay"].WhichOneof("domain") is None
    assert list(infos["batch"].domain_discrete) == [16, 32]
    assert list(infos["nesterov"].domain_discrete) == [True, False]
    assert list(infos["activation"].domain_discrete) == ["relu", "tanh"]
    assert list(infos["widths"].domain_discrete) == ["[8]", "[8, 4]", "null"]
    assert list(infos["seed"].domain_discrete) == [7]
    assert {name: info.type for name, info in infos.items()} == {
        **dict.fromkeys((*intervals, *logs, "noise", "decay", "batch", "seed"), api_pb2.DATA_TYPE_FLOAT64),
        "nesterov": api_pb2.DATA_TYPE_BOOL,
        **dict.fromkeys(("activation", "widths", "state"), api_pb2.DATA_TYPE_STRING),
    }
    # The dashboard shows those first that are said to differ, sorted by name, and five at first.
    assert [name for name, info in infos.items() if info.differs] == [
        "layers",
        "log10(channels)",
        "log10(lr)",
        "noise",
        "opt.momentum",
    ]
    assert groups == {}


def test_dashboard_shows_no_param_that_a_trial_lacks(tmp_path):
    tensorboard = observer(tmp_path)
    some = {name: PARAMS[name] for name in ("layers", "activation")}
    tell(tensorboard, started(0, 0, 3, params=some), ())
    tell(tensorboard, started(1, 0, 3, params={}), ())
    tell(tensorboard, started(2, 0, 3), ())
    tensorboard.close()
    experiment, groups = dashboard(tmp_path)
    assert {info.name for info in experiment.hparam_infos} >= set(SPACE.names)
    shown = {name: set(group.hparams) for name, group in groups.items()}
    assert shown == {"000": set(some), "001": set(), "002": {*PARAMS, *LOGS}}


def test_dashboard_shows_what_a_trial_was_forked_from(tmp_path):
    sweep = sweep_of(early_terminate=PBT(6, 2, 2), method="pbt", parameters=SPACE)
    tensorboard = TensorBoardObserver(Observed(tmp_path, sweep, created=500.0))
    tensorboard.seen()
    whole, bare = Parent(0, 2, "trials/00000/1/hpsearch-checkpoint-2"), Parent(0, 2, None)
    for number, parent, start in ((0, None, 0), (1, whole, 2), (2, bare, 0)):
        trial = Trial(number, PARAMS, 0, "pbt", parent, start)
        tell(tensorboard, Started(Segment(number, start, 4, None, 1, 1), trial, ""), ())
    tensorboard.close()
    experiment, groups = dashboard(tmp_path)
    assert {info.name for info in experiment.hparam_infos} > {*SPACE.names, "parent trial", "inherited iteration"}
    shown = {name: set(group.hparams) - set(PARAMS) - set(LOGS) for name, group in groups.items()}
    assert shown == {
        trial_run(0): set(),
        trial_run(1): {"parent trial", "inherited iteration"},
        trial_run(2): {"parent trial"},
    }
    hparams = groups[trial_run(1)].hparams
    assert [hparams[name].number_value for name in ("parent trial", "inherited iteration")] == [0, 2]


def test_dashboard_shows_params_that_are_no_point_of_the_space(tmp_path):
    tensorboard = observer(tmp_path)
    tell(tensorboard, started(0, 0, 3, params={"lr": "low", "nesterov": 1, "extra": 3, "more": [1]}), ())
    tensorboard.close()
    hparams = dashboard(tmp_path)[1][trial_run(0)].hparams
    assert [hparams[name].string_value for name in ("lr", "nesterov", "more")] == ["low", "1", "[1]"]
    assert hparams["extra"].number_value == 3


def test_a_failed_trial_that_is_retried_has_the_status_and_the_curve_of_its_end(tmp_path):
    """TensorBoard keeps the first status that it reads."""
    tensorboard = observer(tmp_path)
    tell(tensorboard, started(0, 0, 2), ())
    tell(tensorboard, failed(0, False, reports(0, 0, [0.25])), ())
    tensorboard.flush()
    tell(tensorboard, Retried(0), ())
    tell(tensorboard, started(0, 0, 2, attempt=2), ())
    done = finished(0, 2, reports(0, 0, [0.5, 0.75]), attempt=2)
    tell(tensorboard, done, (Decision(0, "complete", "ran its 2 iterations"),))
    tensorboard.close()
    _, groups = dashboard(tmp_path)
    assert groups[trial_run(0)].sessions[0].status == api_pb2.STATUS_SUCCESS
    assert curve(tmp_path, trial_run(0), "accuracy") == [(1, 0.5), (2, 0.75)]


def test_dashboard_shows_params_values_and_status_of_each_trial(tmp_path):
    tensorboard = observer(tmp_path)
    other = {**PARAMS, "widths": None, "nesterov": False, "activation": "tanh"}
    tell(tensorboard, started(0, 0, 3), ())
    tell(tensorboard, started(1, 0, 3, params=other), ())
    tell(tensorboard, started(2, 0, 3), ())
    tell(tensorboard, started(3, 0, 3), ())
    tell(tensorboard, finished(0, 3, reports(0, 0, [0.5, 0.875, 0.75])), ())
    tell(tensorboard, finished(1, 3, reports(1, 0, [0.25, 0.125, 0.25])), [stop(1)])
    tell(tensorboard, failed(2, retry=False, said=reports(2, 0, [0.5])), [stop(2)])
    tensorboard.report(reports(3, 0, [0.0625]))
    tell(tensorboard, started(0, 3, 4, attempt=2), ())
    tell(tensorboard, finished(0, 4, reports(0, 3, [0.625]), 2), [Decision(0, "complete", "last rung")])
    tensorboard.close()

    experiment, groups = dashboard(tmp_path)
    metrics = [(info.name.tag, info.display_name) for info in experiment.metric_infos]
    assert metrics == list(zip(METRICS, ["accuracy", "best accuracy", "iterations", "seconds"], strict=True))
    assert list(groups) == [trial_run(number) for number in range(4)]

    def values(number: int) -> list[tuple[str, float]]:
        shown = groups[trial_run(number)].metric_values
        return [(value.name.tag, value.value) for value in shown if not value.name.tag.startswith("hpsearch/")]

    def cost(number: int) -> list[Any]:
        shown = groups[trial_run(number)].metric_values
        return [pytest.approx(value.value) for value in shown if value.name.tag.startswith("hpsearch/")]

    assert values(0) == [("accuracy", 0.625), ("best/accuracy", 0.875)]
    assert values(1) == [("accuracy", 0.25), ("best/accuracy", 0.25)]
    assert values(2) == [("accuracy", 0.5), ("best/accuracy", 0.5)]
    assert values(3) == [("accuracy", 0.0625), ("best/accuracy", 0.0625)]
    assert [cost(number) for number in range(4)] == [[4, 0.4], [3, 0.3], [1, 0.1], [1, 0.1]]
    statuses = [groups[trial_run(number)].sessions[0].status for number in range(4)]
    assert statuses == [
        api_pb2.STATUS_SUCCESS,
        api_pb2.STATUS_SUCCESS,
        api_pb2.STATUS_FAILURE,
        api_pb2.STATUS_UNKNOWN,
    ]
    hparams = groups[trial_run(0)].hparams
    assert {name: hparams[name].number_value for name in (*LOGS, "lr", "layers", "noise", "batch", "seed")} == {
        **LOGS,
        "lr": 0.25,
        "layers": 3,
        "noise": -0.5,
        "batch": 32,
        "seed": 7,
    }
    assert (hparams["activation"].string_value, hparams["widths"].string_value) == ("relu", "[8, 4]")
    assert hparams["nesterov"].bool_value is True
    states = [groups[trial_run(number)].hparams["state"].string_value for number in range(4)]
    assert states == ["complete", "stopped", "stopped", ""]
    assert groups[trial_run(1)].hparams["widths"].string_value == "null"
    assert groups[trial_run(1)].hparams["nesterov"].WhichOneof("kind") == "bool_value"


def test_a_studys_own_folder_has_a_page_of_custom_scalars(tmp_path):
    observer(tmp_path).close()
    categories = Board(tmp_path / "tensorboard").layout()["category"]
    assert [one["title"] for one in categories] == ["best", "course"]


def test_live_reports_are_not_written_again_when_they_count(tmp_path):
    tensorboard = observer(tmp_path)
    said = reports(0, 0, [0.5, 0.25, 0.75])
    tell(tensorboard, started(0, 0, 3), ())
    tensorboard.report(said[:1])
    tensorboard.report(said[1:2])
    tensorboard.flush()
    tell(tensorboard, Saved(0, 1, 2, "c", said[:2]), ())
    tell(tensorboard, finished(0, 3, said[2:]), ())
    tensorboard.close()
    assert curve(tmp_path, trial_run(0), "accuracy") == [(1, 0.5), (2, 0.25), (3, 0.75)]
    assert curve(tmp_path, trial_run(0), "loss") == [(1, -0.5), (2, -0.25), (3, -0.75)]
    assert curve(tmp_path, trial_run(0), best_tag("accuracy")) == [(1, 0.5), (2, 0.5), (3, 0.75)]


def test_live_reports_after_a_gap_wait_for_the_event_that_brings_all(tmp_path):
    tensorboard = observer(tmp_path)
    said = reports(0, 0, [0.5, 0.25, 0.75])
    tell(tensorboard, started(0, 0, 3), ())
    tensorboard.report(said[2:])
    tell(tensorboard, finished(0, 3, said), ())
    tensorboard.close()
    assert curve(tmp_path, trial_run(0), "accuracy") == [(1, 0.5), (2, 0.25), (3, 0.75)]


@pytest.mark.parametrize("end", [Lost(0, 1, "node lost"), failed(0, retry=True)])
def test_retry_takes_back_the_steps_after_its_checkpoint(tmp_path, end):
    tensorboard = observer(tmp_path)
    said = reports(0, 0, [0.5, 0.25, 0.875, 0.125])
    tell(tensorboard, started(0, 0, 4), ())
    tensorboard.report(said)
    tell(tensorboard, Saved(0, 1, 2, "c", said[:2]), ())
    tell(tensorboard, end, ())
    tensorboard.flush()
    tensorboard.report(reports(0, 4, [1.0]))  # nothing runs: it belongs to nobody
    tell(tensorboard, started(0, 2, 4, attempt=2), ())
    tell(tensorboard, finished(0, 4, reports(0, 2, [0.75, 0.625]), 2), ())
    tensorboard.close()
    assert curve(tmp_path, trial_run(0), "accuracy") == [(1, 0.5), (2, 0.25), (3, 0.75), (4, 0.625)]
    assert curve(tmp_path, trial_run(0), best_tag("accuracy")) == [(1, 0.5), (2, 0.5), (3, 0.75), (4, 0.75)]
    _, groups = dashboard(tmp_path)
    assert groups[trial_run(0)].hparams["lr"].number_value == 0.25


def test_promotion_that_starts_from_zero_takes_back_all_steps(tmp_path):
    tensorboard = observer(tmp_path)
    tell(tensorboard, started(0, 0, 2), ())
    tell(tensorboard, finished(0, 2, reports(0, 0, [0.875, 0.5])), ())
    tell(tensorboard, started(0, 0, 3, attempt=2), ())
    tell(tensorboard, finished(0, 3, reports(0, 0, [0.25, 0.75, 0.5]), 2), [stop(0)])
    tensorboard.close()
    assert curve(tmp_path, trial_run(0), "accuracy") == [(1, 0.25), (2, 0.75), (3, 0.5)]
    assert curve(tmp_path, trial_run(0), best_tag("accuracy")) == [(1, 0.25), (2, 0.75), (3, 0.75)]
    _, groups = dashboard(tmp_path)
    assert groups[trial_run(0)].sessions[0].status == api_pb2.STATUS_SUCCESS


def test_widths_are_a_curve_where_they_could_differ(tmp_path):
    tensorboard = observer(tmp_path)
    tell(tensorboard, started(0, 0, 2, reason="no more are free"), ())
    tell(tensorboard, finished(0, 2, reports(0, 0, [0.5, 0.5])), ())
    tell(tensorboard, started(0, 2, 6, 2, width=4, reason="nothing else can start"), ())
    tell(tensorboard, Saved(0, 2, 3, "c", reports(0, 2, [0.5])), ())
    tell(tensorboard, Lost(0, 2, "node lost"), ())
    tell(tensorboard, started(0, 3, 6, 3, width=3, reason="nothing else can start"), ())
    tell(tensorboard, finished(0, 6, reports(0, 3, [0.5, 0.5, 0.5]), 3), [stop(0)])
    tell(tensorboard, started(1, 0, 1, width=2), ())  # always two, and so no reason is given
    tell(tensorboard, finished(1, 1, reports(1, 0, [0.5])), [stop(1)])
    tell(tensorboard, started(2, 0, 1), ())
    tell(tensorboard, finished(2, 1, reports(2, 0, [0.5])), [stop(2)])
    tensorboard.close()
    assert curve(tmp_path, trial_run(0), WIDTH_TAG) == [(1, 1), (2, 1), (3, 4), (4, 3), (5, 3), (6, 3)]
    assert curve(tmp_path, trial_run(1), WIDTH_TAG) == [(1, 2)]
    assert WIDTH_TAG not in EventAccumulator(str(tmp_path / "tensorboard" / trial_run(2))).Reload().Tags()["scalars"]
    experiment, groups = dashboard(tmp_path)
    assert set(groups[trial_run(0)].hparams) == {*PARAMS, *LOGS, "state"}
    assert [info.name.tag for info in experiment.metric_infos] == METRICS


def test_where_workers_train_several_trials_those_are_counted_and_each_says_with_how_many_it_was(tmp_path):
    tensorboard = observer(tmp_path, trials_per_worker=16)
    tell(tensorboard, Opened("inline", 1, "me@here:1", "test"), ())
    for trial in range(3):
        tell(tensorboard, started(trial, 0, 2), ())
    tensorboard.report(reports(0, 0, [0.5]))
    for trial in range(3):
        lanes = replace(finished(trial, 2, reports(trial, 0, [0.5, 0.5])), lanes=3 - trial)
        tell(tensorboard, lanes, [stop(trial)], when=1002.0)
    tensorboard.close()
    assert [curve(tmp_path, trial_run(trial), LANES_TAG) for trial in range(3)] == [[(2, 3)], [(2, 2)], [(2, 1)]]
    assert curve(tmp_path, STUDY_RUN, RUNNING_TAG) == [(0, 3), (1, 3), (2, 0)]  # until it changes
    assert BUSY_TAG not in EventAccumulator(str(tmp_path / "tensorboard" / STUDY_RUN)).Reload().Tags()["scalars"]
    experiment, _ = dashboard(tmp_path)
    assert [info.name.tag for info in experiment.metric_infos] == [*METRICS, LANES_TAG]
    (course,) = (one for one in Board(tmp_path / "tensorboard").layout()["category"] if one["title"] == "course")
    assert [chart["title"] for chart in course["chart"]] == [RUNNING_TAG, "trials per rung"]


def test_a_trial_that_is_taken_back_loses_the_steps_since_at_once(tmp_path):
    tensorboard = observer(tmp_path)
    tell(tensorboard, started(0, 0, 1, reason="no more are free"), ())
    tell(tensorboard, finished(0, 1, reports(0, 0, [0.5])), ())
    tell(tensorboard, started(0, 1, 4, 2, width=4, reason="nothing else can start"), ())
    tell(tensorboard, Saved(0, 2, 2, "c", reports(0, 1, [0.875])), ())
    tensorboard.report(reports(0, 2, [0.125, math.nan]))
    tell(tensorboard, Reverted(0, 2, 1, "width 4: accuracy NaN after 0.5", 1.0), ())
    tensorboard.report(reports(0, 1, [0.75]))  # nothing runs: it belongs to nobody
    tensorboard.flush()
    assert curve(tmp_path, trial_run(0), "accuracy") == [(1, 0.5)]
    assert curve(tmp_path, trial_run(0), best_tag("accuracy")) == [(1, 0.5)]
    tell(tensorboard, started(0, 1, 4, 3, reason="it went wrong on more workers"), ())
    tell(tensorboard, finished(0, 4, reports(0, 1, [0.25, 0.5, 0.625]), 3), [stop(0)])
    tensorboard.close()
    assert curve(tmp_path, trial_run(0), "accuracy") == [(1, 0.5), (2, 0.25), (3, 0.5), (4, 0.625)]
    assert curve(tmp_path, trial_run(0), best_tag("accuracy")) == [(1, 0.5), (2, 0.5), (3, 0.5), (4, 0.625)]
    assert curve(tmp_path, trial_run(0), WIDTH_TAG) == [(1, 1), (2, 1), (3, 1), (4, 1)]
    # What was taken back had its cost, and what is run again has it once more.
    assert curve(tmp_path, STUDY_RUN, BEST) == [(1, 0.5), (2, 0.5), (4, 0.5), (5, 0.625)]


def test_best_ignores_nan_and_follows_the_goal(tmp_path):
    tensorboard = observer(tmp_path, goal="minimize")
    tell(tensorboard, started(0, 0, 4), ())
    tell(tensorboard, finished(0, 4, reports(0, 0, [math.nan, 0.5, 0.75, 0.25])), ())
    tensorboard.close()
    assert curve(tmp_path, trial_run(0), best_tag("accuracy")) == [(2, 0.5), (3, 0.5), (4, 0.25)]


@pytest.mark.parametrize(
    ("scope", "shown"), [("last", [(3, 0.5), (4, 0.5), (5, 0.25)]), ("best", [(3, 0.75), (4, 0.75), (5, 0.75)])]
)
def test_the_studys_best_is_of_the_trials_values_as_the_scope_has_them(tmp_path, scope, shown):
    tensorboard = observer(tmp_path, scope=scope)
    tell(tensorboard, started(0, 0, 3), ())
    tell(tensorboard, finished(0, 3, reports(0, 0, [0.25, 0.75, 0.5])), ())
    tell(tensorboard, started(0, 3, 5, attempt=2), ())
    tell(tensorboard, finished(0, 5, reports(0, 3, [math.nan, 0.25]), 2), ())
    tensorboard.close()
    assert curve(tmp_path, STUDY_RUN, BEST) == shown


def test_study_shows_its_best_its_rungs_and_its_workers_over_what_it_cost(tmp_path):
    tensorboard = observer(tmp_path)
    for number, value in enumerate([0.5, 0.25, 0.75]):
        tell(tensorboard, started(number, 0, 1), ())
        tell(tensorboard, finished(number, 1, reports(number, 0, [value])), ())
    tensorboard.rungs([RungView(0, 0, 1, 4, 3, 3), RungView(0, 1, 3, 1, 0, 0), RungView(1, 0, 3, 2, 0, 0)])
    tell(tensorboard, started(3, 0, 1), ())
    tell(tensorboard, failed(3, retry=False), ())
    tensorboard.rungs([RungView(0, 0, 1, 4, 4, 4), RungView(0, 1, 3, 1, 1, 0), RungView(1, 0, 3, 2, 0, 0)])
    tell(tensorboard, started(2, 1, 3, attempt=2), ())
    tell(tensorboard, finished(2, 2, reports(2, 1, [0.5]), 2, cut=True), ())
    tell(tensorboard, started(2, 2, 3, attempt=3), ())
    tell(tensorboard, finished(2, 3, reports(2, 2, [0.875]), 3, cut=True), ())
    tensorboard.rungs([RungView(0, 0, 1, 4, 4, 4), RungView(0, 1, 3, 1, 1, 1), RungView(1, 0, 3, 2, 2, 1)])
    tensorboard.close()
    # A segment that was cut short counts, as in tables: trial 2 had 0.5 after its second iteration.
    assert curve(tmp_path, STUDY_RUN, BEST) == [(1, 0.5), (2, 0.5), (3, 0.75), (4, 0.5), (5, 0.875)]
    assert curve(tmp_path, STUDY_RUN, by_tag(best(), "trials")) == [(1, 0.5), (2, 0.5), (3, 0.75), (4, 0.875)]
    # All of it was within the first second.
    assert curve(tmp_path, STUDY_RUN, by_tag(best(), "seconds")) == [(0, 0.875)]
    assert curve(tmp_path, STUDY_RUN, rung_tag(1)) == [(0, 4.0)]
    assert curve(tmp_path, STUDY_RUN, rung_tag(3)) == [(0, 2.0)]
    assert curve(tmp_path, STUDY_RUN, BUSY_TAG) == [(0, 0.0)]


def test_replay_clears_what_a_former_run_wrote_and_nothing_else(tmp_path):
    first = observer(tmp_path)
    tell(first, started(0, 0, 2), ())
    tell(first, started(1, 0, 2), ())
    first.report(reports(0, 0, [0.5, 0.25]) + reports(1, 0, [0.5]))
    first.close()
    (tmp_path / "tensorboard" / "notes").mkdir()
    again = observer(tmp_path)
    tell(again, Opened("inline", 1, "me@here:1", "hpsearch resume"), ())
    tell(again, started(0, 0, 2), ())
    tell(again, finished(0, 2, reports(0, 0, [0.5, 0.75])), [stop(0)])
    again.close()
    assert sorted(path.name for path in (tmp_path / "tensorboard").iterdir()) == [trial_run(0), "notes", STUDY_RUN]
    assert curve(tmp_path, trial_run(0), "accuracy") == [(1, 0.5), (2, 0.75)]


def test_no_file_stays_open_and_each_trial_that_runs_has_one(tmp_path):
    def files() -> list[Path]:
        return [path for path in tmp_path.rglob("*") if path.is_file()]

    tensorboard = observer(tmp_path)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for number in range(300):
        tell(tensorboard, started(number, 0, 1), ())
        tensorboard.flush()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert len(files()) == 301
    for number in range(300):
        tell(tensorboard, finished(number, 1, reports(number, 0, [0.5])), [stop(number)])
    tensorboard.close()
    assert len(files()) == 101
    assert curve(tmp_path, trial_run(99), "accuracy") == [(1, 0.5)]


def test_reports_of_an_ended_trial_are_left_out(tmp_path):
    tensorboard = observer(tmp_path)
    for number in range(50):
        tell(tensorboard, started(number, 0, 1), ())
        tell(tensorboard, finished(number, 1, reports(number, 0, [0.5])), [stop(number)])
    tensorboard.flush()
    tensorboard.report(reports(7, 1, [0.25]))  # of a trial that has ended: nowhere to go
    tensorboard.close()
    assert curve(tmp_path, trial_run(7), "accuracy") == [(1, 0.5)]


def test_a_trial_that_failed_is_no_longer_the_studys_best(tmp_path):
    tensorboard = observer(tmp_path)
    for number, value in enumerate([0.5, 0.75]):
        tell(tensorboard, started(number, 0, 1), ())
        tell(tensorboard, finished(number, 1, reports(number, 0, [value])), ())
    tell(tensorboard, started(1, 1, 3, attempt=2), ())
    tell(tensorboard, failed(1, False, reports(1, 1, [0.875]), attempt=2), ())
    tell(tensorboard, started(0, 1, 3, attempt=2), ())
    tell(tensorboard, finished(0, 3, reports(0, 1, [0.625, 0.25]), 2), [stop(0)])
    tensorboard.close()
    assert curve(tmp_path, STUDY_RUN, BEST) == [(1, 0.5), (2, 0.75), (3, 0.5), (4, 0.5), (5, 0.25)]


def test_when_all_have_failed_there_is_no_best(tmp_path):
    tensorboard = observer(tmp_path)
    tell(tensorboard, started(0, 0, 1), ())
    tell(tensorboard, finished(0, 1, reports(0, 0, [0.5])), ())
    tell(tensorboard, started(0, 1, 3, attempt=2), ())
    tell(tensorboard, failed(0, False, attempt=2), ())
    tensorboard.close()
    accumulator = EventAccumulator(str(tmp_path / "tensorboard" / STUDY_RUN)).Reload()
    (event,) = accumulator.Scalars(BEST)
    assert math.isnan(event.value)


def wall_times(directory: Path) -> dict[str, list[tuple[str, int, float]]]:
    """Read run to (tag, step, wall time) of all scalars."""
    told = {}
    for folder in sorted((directory / "tensorboard").iterdir()):
        accumulator = EventAccumulator(str(folder)).Reload()
        tags = accumulator.Tags()["scalars"]
        told[folder.name] = [(tag, e.step, e.wall_time) for tag in tags for e in accumulator.Scalars(tag)]
    return told


def test_live_and_rebuilt_files_tell_the_same_times_and_they_are_the_journals(tmp_path):
    said = reports(0, 0, [0.5, 0.25, 0.75])
    history: list[tuple[float, Event, Sequence[Decision]]] = [
        (1000.0, started(0, 0, 3), ()),
        (1010.0, Saved(0, 1, 2, "c", said[:2]), ()),
        (1020.0, Lost(0, 1, "node lost"), ()),
        (1100.0, started(0, 2, 3, attempt=2), ()),
        (1110.0, finished(0, 3, said[2:], 2), [stop(0)]),
    ]
    for name in ("live", "rebuilt"):
        tensorboard = observer(tmp_path / name)
        for when, event, decisions in history:
            tell(tensorboard, event, decisions, when)
            if name == "live" and isinstance(event, Started):
                tensorboard.report(said[event.segment.start :])
        tensorboard.rungs([RungView(0, 0, 3, 1, 1, 1)])
        tensorboard.close()
    live = wall_times(tmp_path / "live")
    assert live == wall_times(tmp_path / "rebuilt")
    times = {(tag, step): when for tag, step, when in live[trial_run(0)]}
    assert [times["accuracy", step] for step in (1, 2, 3)] == pytest.approx([1000.1, 1000.2, 1100.1])
    # What had been saved is the best until the trial ends; it was so at its iteration until the next attempt began.
    assert {when for _, _, when in live[STUDY_RUN]} == {1100.0, 1110.0}
    _, groups = dashboard(tmp_path / "rebuilt")
    (session,) = groups[trial_run(0)].sessions
    assert (session.start_time_secs, session.end_time_secs) == (1000.0, 1110.0)


def test_a_trial_that_is_retried_after_its_failure_was_told_goes_on_from_what_it_had(tmp_path):
    """As where a study is retried while somebody looks at it."""
    files = EventFiles(tmp_path / "tensorboard")
    sweep = sweep_of(metric=Metric("accuracy", "maximize"), parameters=SPACE)
    runs = StudyRuns(files, sweep, HParams([SPACE]))
    first, later = reports(0, 0, [0.875, 0.25]), reports(0, 2, [0.5])
    withdrawn = Followed((Decision(0, "withdraw", "retried"),))
    history: list[tuple[Event, Followed]] = [
        (started(0, 0, 3), Followed()),
        (Saved(0, 1, 2, "c", first), Followed()),
        (failed(0, retry=False), Followed()),
        (Retried(0), withdrawn),
        (started(0, 2, 3, attempt=2), Followed()),
        (finished(0, 3, later, 2), Followed([Decision(0, "complete", "ran its 3 iterations")])),
    ]
    for event, followed in history:
        runs.take(Entry(1000.0, event, followed))
        if isinstance(event, Failed):
            runs.settle()
        runs.flush()
    files.flush()
    assert curve(tmp_path, trial_run(0), "accuracy") == [(1, 0.875), (2, 0.25), (3, 0.5)]
    assert curve(tmp_path, trial_run(0), best_tag("accuracy")) == [(1, 0.875), (2, 0.875), (3, 0.875)]
    assert curve(tmp_path, trial_run(0), SECONDS_TAG) == [(1, 0.1), (2, 0.2), (3, 0.3)]
    _, groups = dashboard(tmp_path)
    assert groups[trial_run(0)].sessions[0].status == api_pb2.STATUS_FAILURE  # TensorBoard keeps the first one


def complete(trial: int) -> Decision:
    return Decision(trial, "complete", "it ran to its end")


@pytest.mark.parametrize("goal", ["maximize", "minimize"])
def test_best_hundred_trials_and_those_that_run_have_a_run(tmp_path, goal):
    tensorboard = observer(tmp_path, goal)
    count = 2 * MOST_TRIALS + 30
    values = {trial: (trial * 37 % count) / count for trial in range(count)}
    for trial, value in values.items():
        tell(tensorboard, started(trial, 0, 1), ())
        tell(tensorboard, finished(trial, 1, reports(trial, 0, [value])), [complete(trial)])
        if trial % 50 == 0:
            tensorboard.flush()
    tell(tensorboard, started(count, 0, 3), ())
    tensorboard.flush()
    ranked = sorted(values, key=lambda trial: values[trial], reverse=goal == "maximize")
    shown = {trial_run(trial) for trial in [*ranked[:MOST_TRIALS], count]}
    assert set(Board(tmp_path / "tensorboard").runs) == {STUDY_RUN, *shown}
    assert {path.name for path in (tmp_path / "tensorboard").iterdir()} == {STUDY_RUN, *shown}
    assert curve(tmp_path, trial_run(ranked[0]), "accuracy") == [(1, pytest.approx(values[ranked[0]]))]


def test_trial_that_waits_below_the_best_is_shown_whole_when_it_runs_again(tmp_path):
    tensorboard = observer(tmp_path)
    tell(tensorboard, started(0, 0, 1), ())
    tell(tensorboard, finished(0, 1, reports(0, 0, [0.1])), ())
    tensorboard.flush()
    for trial in range(1, MOST_TRIALS + 1):
        tell(tensorboard, started(trial, 0, 1), ())
        tell(tensorboard, finished(trial, 1, reports(trial, 0, [0.5])), [complete(trial)])
    tensorboard.flush()
    assert trial_run(0) not in Board(tmp_path / "tensorboard").runs
    tell(tensorboard, started(0, 1, 3, attempt=2), ())
    tensorboard.report(reports(0, 1, [0.2]))
    tensorboard.flush()
    assert curve(tmp_path, trial_run(0), "accuracy") == [(1, pytest.approx(0.1)), (2, pytest.approx(0.2))]
