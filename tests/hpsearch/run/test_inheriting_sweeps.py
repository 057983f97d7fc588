"""Evolution whose children begin with what their parents have learned: who inherits what, resumed, refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import hpsearch
from hpsearch.errors import SweepError
from hpsearch.events import Started
from hpsearch.searchers import Observation, Past, Problem, Search
from hpsearch.searchers.evolution import Evolution, InheritingEvolution
from hpsearch.space import Space
from hpsearch.trainable.running_trial import RunningTrial
from hpsearch.trial import Report, StateAt, Trial
from tests.hpsearch.searchers.test_evolution import SPACE, problem_of
from tests.hpsearch.support.merged import merged
from tests.hpsearch.support.scripted import of_kind

OPTIONS = {"population": 4, "sample": 2, "inherit": True}

Seen = dict[int, dict[str, Any]]


def learning(seen: Seen, saves: bool = True) -> Any:
    """Its state is all that it and its ancestors were trained with; it gets better with that."""

    def train(trial: RunningTrial) -> None:
        before = trial.checkpoint or trial.parent_checkpoint
        learned = [] if before is None else list(before["learned"])
        seen.setdefault(trial.number, {"parent": trial.parent, "learned": list(learned), "start": trial.start})
        for iteration in trial.iterations():
            learned.append([trial.number, iteration])
            loss = abs(trial.params["x"] - 3) + 1 / (1 + len(learned))
            trial.report({"loss": loss}, checkpoint={"learned": learned} if saves else None)

    return train


def search(place: Path, trainable: Any, **changes: Any) -> hpsearch.Study:
    given: dict[str, Any] = {
        "parameters": {"x": [0, 1, 2, 3, 4, 5], "y": list(range(20))},
        "metric": "loss",
        "method": "evolution",
        "search": {"ahead": False, "options": OPTIONS},
        "max_iter": 3,
        "run_cap": 14,
        "backend": "inline",
        "observers": [],
        "progress": False,
    }
    return hpsearch.search(trainable, directory=place, **merged(given, changes))


@pytest.mark.some_cases(1)
@pytest.mark.parametrize(
    "schedule",
    [
        {},
        {"max_iter": None, "early_terminate": hpsearch.ASHA(4, min_iter=1, eta=2)},
        {"max_iter": None, "early_terminate": hpsearch.SuccessiveHalving(4, min_iter=1, eta=2), "run_cap": 24},
        {"max_iter": None, "early_terminate": hpsearch.Hyperband(4, eta=2), "run_cap": 24},
    ],
    ids=["whole", "asha", "halving", "hyperband"],
)
def test_a_child_starts_at_iteration_0_with_what_its_parent_had_learned_by_then(tmp_path, schedule):
    seen: Seen = {}
    study = search(tmp_path / "s", learning(seen), **schedule)
    children = [row for row in study.trials if row.origin == "evolution"]
    assert len(children) >= 4
    for row in children:
        assert row.parent is not None
        known = seen[row.number]
        assert (known["start"], known["parent"]) == (0, row.parent)
        assert known["learned"][-1] == [row.parent, row.inherited]
        own = {name: value for name, value in row.params.items() if value != study.trials[row.parent].params[name]}
        assert own
    assert all(row.parent is None for row in study.trials if row.origin == "random")
    stages = study.lineage(children[-1].number)
    assert [stage.trial for stage in stages][-2:] == [children[-1].parent, children[-1].number]


@pytest.mark.exhaustive
def test_a_sweep_that_is_extended_has_the_table_of_a_whole_one(tmp_path):
    seen: Seen = {}
    whole = search(tmp_path / "whole", learning(seen))

    assert search(tmp_path / "cut", learning({}), run_cap=9).state == "finished"
    resumed = search(tmp_path / "cut", learning({}))
    assert [(r.params, r.values, r.parent, r.inherited) for r in resumed.trials] == [
        (r.params, r.values, r.parent, r.inherited) for r in whole.trials
    ]


def test_without_checkpoints_children_begin_with_nothing(tmp_path):
    seen: Seen = {}
    study = search(tmp_path / "s", learning(seen, saves=False))
    children = [row for row in study.trials if row.origin == "evolution"]
    assert children
    assert all(row.parent is not None and row.inherited is None for row in children)
    assert all(known["learned"] == [] for known in seen.values())


def test_the_checkpoints_of_the_population_are_kept_and_no_others(tmp_path):
    study = search(tmp_path / "s", learning({}), run_cap=30)
    parents = {event.new.parent.number for event in of_kind(study.directory, Started) if event.new and event.new.parent}
    assert len(parents) > 3
    left = {int(path.parts[-2]) for path in (study.directory / "trials").glob("*/*") if any(path.rglob("*.pt"))}
    assert study.best_trial.number in left
    assert len(left) <= OPTIONS["population"] + 1


def test_a_lag_is_refused_where_children_inherit(tmp_path):
    with pytest.raises(SweepError, match=r"search\.lag.*must not be given where trials are forked"):
        search(tmp_path / "s", learning({}), search={"lag": 2, "options": OPTIONS})


def test_without_the_option_nobody_inherits(tmp_path):
    study = search(tmp_path / "s", learning({}), search={"ahead": False, "options": {"population": 4, "sample": 2}})
    assert all(row.parent is None for row in study.trials)


def built(past: int = 0) -> Evolution:
    searcher = Evolution.build(problem_of(options={"population": 3, "sample": 3, "inherit": True}))
    assert isinstance(searcher, InheritingEvolution)
    if past:
        searcher.recall([Past(SPACE.draw(5, number), {2: 0.1 * number}, 2) for number in range(past)])
    return searcher


def test_the_parent_is_the_one_that_was_mutated_at_its_newest_iteration_and_is_needed():
    searcher = built()
    for number, loss in enumerate([3.0, 1.0, 2.0, 4.0]):
        trial = Trial(number, SPACE.draw(99, number), 0, "random")
        searcher.started(trial)
        reports = [Report(number, at, {"loss": loss}, 0.1) for at in range(1, 3 + number)]
        searcher.observe(Observation(trial, 2 + number, 9, reports, True))
    suggestion = searcher.suggest(4)
    assert suggestion is not None
    assert suggestion.parent == StateAt(1, 3)
    assert set(searcher.needs()) == {StateAt(1, 3), StateAt(2, 4), StateAt(3, 5)}


def test_a_trial_of_another_search_has_children_without_a_parent():
    searcher = built(past=3)
    suggestion = searcher.suggest(0)
    assert suggestion is not None
    assert (suggestion.origin, suggestion.parent, list(searcher.needs())) == ("evolution", None, [])


def test_the_option_is_read_where_a_sweep_asks_who_forks():
    assert Evolution.may_fork(Search(options={"inherit": True}))
    assert not Evolution.may_fork(Search())
    assert type(Evolution.build(Problem(Space.from_parameters({"x": [1, 2]}), problem_of().objective, 0))) is Evolution
