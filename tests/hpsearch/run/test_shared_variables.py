"""A sweep whose trials put something where there is one for all says so, and has the table of one at a time later."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import hpsearch
from hpsearch.cli import main
from hpsearch.results.study import Study
from tests.hpsearch.support import lane_sweeps, sharing_trainables
from tests.hpsearch.support.lane_sweeps import results, table

BUILDING = "what trials train with must be their own where a worker trains several, but building trial"


@pytest.fixture(autouse=True)
def anew() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    sharing_trainables.begin_anew()
    yield
    sharing_trainables.begin_anew()
    torch.set_num_threads(threads)


def search(directory: Path, puts: tuple[str, ...], **options: Any) -> Study:
    given = {
        "trainable": "tests.hpsearch.support.sharing_trainables:Sharing",
        "parameters": {"scale": hpsearch.Uniform(0.5, 2.0), "puts": hpsearch.Categorical(puts)},
    }
    return lane_sweeps.search(directory, **(given | options))


@pytest.mark.exhaustive
@pytest.mark.parametrize("puts", ["forward", "loss"])
def test_it_ends_at_once_and_goes_on_with_one_trial_at_a_time_to_the_table_of_that(puts, tmp_path):
    bound: dict[str, Any] = {
        "early_terminate": hpsearch.Hyperband(max_iter=9, eta=3),
        "limits": {"max_failures": "auto"},
    }
    one = search(tmp_path / "one", (puts,), resources={"trials_per_worker": 1}, **bound)
    with pytest.raises(hpsearch.TrainableError, match=f"{BUILDING} [0-9]+ changed .*IN_{puts.upper()}"):
        search(tmp_path / "many", (puts,), resources={"trials_per_worker": 4}, **bound)
    many = search(tmp_path / "many", (puts,), resources={"trials_per_worker": 1}, **bound)
    assert many.state == one.state == "finished"
    assert (table(many), results(many)) == (table(one), results(one))


def test_where_others_came_through_those_that_failed_are_retried_one_at_a_time(tmp_path):
    # With this seed the first two put nothing: a sweep whose first trials all break its contract ends.
    bound: dict[str, Any] = {"early_terminate": None, "max_iter": 2, "run_cap": 8, "seed": 2}
    kinds = ("nothing", "loss")
    one = search(tmp_path / "one", kinds, resources={"trials_per_worker": 1}, **bound)
    many = search(tmp_path / "many", kinds, resources={"trials_per_worker": 2}, **bound)
    failed = [row for row in many.trials if row.failure is not None]
    assert "loss" in {row.params["puts"] for row in failed}  # and whoever was trained beside such a one
    assert 0 < len(failed) < len(many.trials)
    for row in failed:
        assert row.failure is not None
        assert (row.failure.kind, row.failure.message[: len(BUILDING)]) == ("contract", BUILDING)
    main(["retry", str(tmp_path / "many"), "--set", "resources.trials_per_worker=1", "--backend", "inline"])
    assert results(hpsearch.load(tmp_path / "many")) == results(one)
