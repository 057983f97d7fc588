"""The section `search`, and methods that can't search a space: what is wrong is said by its key."""

from __future__ import annotations

from typing import Any

import pytest

import hpsearch
from hpsearch.errors import SweepError
from hpsearch.searchers import Search
from hpsearch.searchers.base import Searcher, SearcherCapabilities, Suggestion
from hpsearch.space import Categorical, IntUniform, Ordinal, Space, Uniform
from hpsearch.sweep.sweep import Sweep
from tests.hpsearch.support.climbing import Climbing
from tests.hpsearch.support.steady import sweep_over

NUMBERS = Space.from_parameters({"x": Uniform(0.0, 1.0), "y": Uniform(0.0, 1.0)})
ONE_NUMBER = Space.from_parameters({"x": Uniform(0.0, 1.0), "y": IntUniform(1, 2, step=2), "c": ["a", "b"]})
IN_ORDER = Space.from_parameters({"x": Uniform(0.0, 1.0), "y": IntUniform(1, 2, step=2), "c": Ordinal([[1]])})
CONSTANT = Space.from_parameters({"a": 3, "b": {"c": "x"}})
ONE_VALUED = Space.from_parameters({"a": Categorical([5, 5]), "b": IntUniform(1, 2, step=2)})


def learning(method: str = "tpe", space: Space = NUMBERS, options: object = None, **changes: Any) -> Sweep:
    search = Search(options=options)  # type: ignore[arg-type]
    given = {"parameters": space, "early_terminate": None, "max_iter": 3, "run_cap": 9, "search": search}
    return sweep_over(method, **{**given, **changes})


class Deaf(Searcher):
    """A searcher that says that it learns, and doesn't."""

    kind = "deaf"
    capabilities = SearcherCapabilities(learns=True)

    def suggest(self, number: int) -> Suggestion:
        return Suggestion(self.problem.space.draw(self.problem.seed, number), "deaf")


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: learning("random", search=Search(ahead=False)), r"search: must not be given with method random"),
        (lambda: learning("qmc", search=Search(startup=3)), r"search: must not be given with method qmc"),
        (lambda: learning("random", options={"gamma": 1}), r"search: must not be given with method random"),
        (lambda: learning("grid", options={"gamma": 1}), r"search: must not be given with method grid"),
        (lambda: learning("qmc", options={"gamma": 1}), r"search: must not be given with method qmc"),
        (
            lambda: learning(Climbing.kind, options={"step": 1}),
            r"search\.options: must not be given with method \S+Climbing, which takes none",
        ),
        (lambda: learning(options={"gama": 1}), r"search\.options: must be arguments .* sampler of tpe .*gama"),
        (lambda: learning(options={"seed": 1}), r"search\.options: must be arguments .*seed"),
        (lambda: learning(options={"n_ei_candidates": "many"}), r"search\.options: must be arguments .*many"),
        (lambda: learning(options={"gamma": 3}), r"search\.options: must be arguments .*gamma"),
        (lambda: learning("cmaes", options={"sigma0": "wide"}), r"search\.options: must be arguments .*wide"),
        (lambda: learning("optuna.samplers:NSGAIISampler", options={"population_size": 1}), r"search\.options: must"),
        (lambda: learning("optuna.samplers:GridSampler"), r"search\.options: must be arguments .*search_space"),
        (
            lambda: learning(f"{__name__}:Deaf"),
            r"method: must define `observe`, as its `capabilities\.learns` is true, but \S+Deaf",
        ),
        (lambda: learning(options=[1]), r"options: must be a mapping of names to values, got a list of 1"),
        (lambda: Search(startup=-1), r"startup: must be at least 0, got -1"),
        (lambda: Search(startup=1.5), r"startup: must be"),  # type: ignore[arg-type]
        (lambda: Search(lag=0), r"lag: must be at least 1, got 0"),
        (lambda: Search(ahead="no"), r"ahead: must be"),  # type: ignore[arg-type]
        (lambda: learning("bohb", max_iter=None), r"max_iter: or early_terminate is required where method is bohb"),
        (
            lambda: learning("cmaes", ONE_NUMBER),
            r"method: must be another one than cmaes, which moves numbers, where c is a choi",
        ),
        (lambda: learning("cmaes", IN_ORDER), r"method: must be another one where fewer than two parameters"),
        (lambda: learning("tpe", CONSTANT), r"parameters: must hold a parameter that isn't constant"),
        (lambda: learning("tpe", ONE_VALUED), r"parameters: must hold a parameter that isn't constant"),
        (lambda: learning("optuna.samplers:BaseSampler"), r"search\.options: must be arguments"),
    ],
)
def test_a_wrong_combination_is_said_by_its_key(make, told):
    with pytest.raises(SweepError, match=told):
        make()


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("tpe", {"n_ei_candidates": 8, "prior_weight": 0.5}),
        ("cmaes", {"sigma0": 0.2}),
        ("optuna.samplers:NSGAIISampler", {"population_size": 6, "seed": 3}),
    ],
)
def test_options_of_the_sampler_are_taken_and_kept(method, options):
    sweep = learning(method, options=options)
    assert Sweep.from_json(sweep.to_json()) == sweep
    assert sweep.search.options == options


def test_bohb_is_over_asha_where_nothing_else_is_named():
    sweep = learning("bohb", max_iter=27)
    assert sweep.early_terminate is not None
    assert (sweep.early_terminate.kind, sweep.early_terminate.max_iter, sweep.max_iter) == ("asha", 27, None)
    assert Sweep.from_json(sweep.to_json()) == sweep


def test_a_sweep_that_was_stored_without_the_section_is_read_back():
    kept = learning("random", search=Search()).to_json()
    del kept["search"]
    assert Sweep.from_json(kept).search == Search()


def test_a_study_of_a_method_that_was_removed_is_read_and_not_resumed(tmp_path):
    def train(trial: hpsearch.RunningTrial) -> None:
        trial.report({"loss": trial.params["x"]})

    sweep = learning("random", run_cap=2, metric=hpsearch.Metric("loss"))
    old = Sweep.from_json({**sweep.to_json(), "method": "curves"})
    assert old.method == "curves"
    with pytest.raises(SweepError, match=r"method: must be another method than curves.*\n  write bohb"):
        hpsearch.search(train, old, directory=tmp_path / "study", backend="inline")


@pytest.mark.parametrize("change", [{"startup": 5}, {"lag": 2}, {"ahead": False}, {"options": {"n_ei_candidates": 3}}])
def test_another_search_is_another_sweep_and_refused_on_resume(tmp_path, change):
    def train(trial: hpsearch.RunningTrial) -> None:
        trial.report({"loss": trial.params["x"]})

    def search(suggestions: dict[str, Any]) -> hpsearch.Study:
        return hpsearch.search(
            train,
            parameters={"x": Uniform(0.0, 1.0), "y": Uniform(0.0, 1.0)},
            metric="loss",
            method="tpe",
            search=suggestions,
            max_iter=1,
            run_cap=2,
            directory=tmp_path / "study",
            backend="inline",
            observers=[],
            progress=False,
        )

    assert search({}).state == "finished"
    with pytest.raises(SweepError, match=rf"search\.{next(iter(change))}"):
        search(change)
    assert search({}).state == "finished"
