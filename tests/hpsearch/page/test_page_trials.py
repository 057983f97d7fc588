"""The table of trials: what all have alike is said once, and only that."""

from __future__ import annotations

from typing import Any

import pytest

import hpsearch
from hpsearch.page.html import Section
from hpsearch.page.trials import trials
from tests.hpsearch.support.pages import simulated


def shown(values: list[Any], **more: Any) -> Section:
    section = trials(
        simulated(
            lambda params, seed: hpsearch.Curve({"loss": [1.0]}),
            parameters={"p": values, **more},
            method="grid",
            max_iter=1,
        )
    )
    assert section is not None
    assert section.table is not None
    return section


def test_what_all_trials_have_alike_is_said_above_the_table():
    section = shown([1, 2], c=3, d="x")
    assert "The same in all of these: c = 3, d = x." in section.paragraphs
    assert section.table is not None
    assert section.table.head == ("trial", "state", "iterations", "loss", "p", "why it ended")


@pytest.mark.parametrize("values", [[0.12341, 0.12342], [1, True], [1, "1"], [1e-9 + 1, 1.0]])
def test_values_that_only_read_alike_are_not_said_to_be_the_same(values):
    section = shown(values)
    assert not [words for words in section.paragraphs if "The same in all" in words]
    assert section.table is not None
    assert section.table.head[-2] == "p"


def test_a_trial_alone_shows_all_that_it_has():
    section = shown([1], c=3)
    assert section.table is not None
    assert section.table.head[-3:-1] == ("p", "c")


def test_the_best_twenty_stand_there_the_best_first():
    section = trials(simulated(lambda params, seed: hpsearch.Curve({"loss": [params["x"]]}), max_iter=1, run_cap=25))
    assert section is not None
    assert section.table is not None
    losses = [float(row[3]) for row in section.table.rows]
    assert len(losses) == 20
    assert losses == sorted(losses)
    assert section.paragraphs[0] == "The 20 best of 25."


@pytest.mark.parametrize(("count", "words"), [(25, "The first 20 of 25; none has a value."), (3, "All trials.")])
def test_of_trials_without_a_value_none_is_called_the_best(count, words):
    study = simulated(lambda params, seed: hpsearch.Curve({"loss": []}, 1.0, "no"), max_iter=1, run_cap=count)
    section = trials(study)
    assert section is not None
    assert section.paragraphs[0] == words


def test_what_a_trial_gave_and_its_parameters_stand_before_why_it_ended():
    section = shown([1, 2])
    assert section.table is not None
    assert list(section.table.head).index("p") < list(section.table.head).index("why it ended")
