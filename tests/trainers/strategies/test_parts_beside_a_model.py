"""Parts of a pipeline that aren't the model's own modules: they train as it does, and keep nothing for themselves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.comm.process_ranks import ProcessRanks
from tests.trainers.strategies.parts_beside import trained


@pytest.fixture(scope="module")
def ranks() -> Iterator[ProcessRanks]:
    with ProcessRanks("tests.trainers.strategies.parts_beside") as server:
        yield server


@pytest.mark.some_cases(2)
@pytest.mark.parametrize("freezes", [None, 0, 1])
@pytest.mark.parametrize("parts", ["its own", "the same statistics"])
def test_batch_normalization_is_frozen_where_the_model_s_is(ranks, parts, freezes):
    expected = trained(None, parts, freezes)
    for outcome in ranks.call(2, "trained", parts, freezes):
        assert outcome.result == pytest.approx(expected, rel=1e-3), outcome


def test_statistics_beside_the_model_s_are_refused(ranks):
    """Nothing would save them, nor validate with them."""
    first, last = ranks.call(2, "trained", "statistics beside")
    assert last.error == "ConfigurationError"
    assert "aren't the model's own must keep nothing that training changes" in last.text
    assert " of BatchNorm1d" in last.text
    assert "must keep nothing that training changes" in first.text


def test_dropout_that_the_parts_leave_out_is_refused(ranks):
    outcomes = ranks.call(2, "trained", "its own", None, 0.5)
    assert any(outcome.error == "ConfigurationError" for outcome in outcomes)
    assert all("in training, too, what Parts.pipeline names must compute" in outcome.text for outcome in outcomes)


def test_dropout_in_the_same_place_is_taken(ranks):
    first, last = ranks.call(2, "trained", "with dropout", None, 0.5)
    assert first.result == last.result is not None, first
