"""A model whose layers are split: the losses of one process, and states that go on in any other way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from hpsearch_comm.errors import ConfigurationError
from tests.comm.process_ranks import Outcome, ProcessRanks
from tests.trainers.strategies.split_trainings import OPTIMIZERS, assert_alike, assert_tensors_alike, train_here
from tests.trainers.strategies.tensor_ranks import CASES
from tests.trainers.test_trainer import CLASSES, FEATURES, FakeTrial, Small


@pytest.fixture(scope="module")
def ranks() -> Iterator[ProcessRanks]:
    with ProcessRanks("tests.trainers.strategies.tensor_ranks") as server:
        yield server


Train = Callable[..., Any]


@pytest.fixture
def train(ranks: ProcessRanks, tmp_path: Path) -> Train:
    """Train a case; return the metrics, the same on all ranks, and rank 0's state."""

    def work(case: str, width: int = 1, epochs: int = 3, state: Any = None, hook: str = "") -> tuple[Any, Any]:
        if width == 1:
            return train_here(CASES[case], None, epochs, state, "")
        load, save = str(tmp_path / "load"), str(tmp_path / "save")
        torch.save(state, load)
        outcomes = ranks.call(width, "trains", case, epochs, None if state is None else load, save, hook, timeout=60.0)
        assert not any(outcome.error or outcome.code for outcome in outcomes), outcomes
        assert all(outcome.result == outcomes[0].result for outcome in outcomes)
        return outcomes[0].result, torch.load(save)

    return work


def results(outcomes: list[Outcome]) -> list[Any]:
    assert not any(outcome.error or outcome.code for outcome in outcomes), outcomes
    return [outcome.result for outcome in outcomes]


EXACT = (
    "plain",
    "deep",
    "tied",
    "in place",
    "a row in place",
    "clipped and averaged",
    "clipped where not all is split",
    "accumulated",
    "scheduled",
    "elementwise",
    "a pair",
    "a pair and the others",
    "groups",
    "dropout that is named",
    "heads normalized behind",
)
MORE = ("a layer", *(name for name in OPTIMIZERS if name not in ("lamb", "groups")))


@pytest.mark.some_cases(2)
@pytest.mark.parametrize(
    ("case", "width"),
    [(case, 2) for case in EXACT]
    + [
        pytest.param(case, width, marks=pytest.mark.exhaustive)
        for width, cases in ((2, MORE), (4, EXACT))
        for case in cases
    ],
)
def test_the_losses_of_one_process(train, case, width):
    assert_alike(train(case, width), train(case))


@pytest.mark.exhaustive
def test_a_pair_trains_to_the_bits_of_torchs_parallelize_module(ranks, tmp_path):
    assert results(ranks.call(2, "as_torch_does", str(tmp_path / "store"))) == [True, True]


def test_half_precision(train):
    assert_alike(train("half", 2), train("half"), 0.02)


def test_dropout_leaves_out_what_one_process_does(train):
    """Also between two layers, where a rank has some of the features."""
    assert_alike(train("dropout", 2), train("dropout"))


@pytest.mark.exhaustive
def test_a_state_goes_on_at_any_width_and_here_to_the_bit(train):
    whole, end = train("continued", 2, 4)
    begun, state = train("continued", 2, 2)
    again, last = train("continued", 2, 2, state)
    for found, expected in zip(begun + again, whole, strict=True):
        assert {**found, "data_wait": 0.0} == {**expected, "data_wait": 0.0}
    assert_tensors_alike(last, end, 0.0)
    alone = train("continued", 1, 4)
    assert_alike(train("continued", 1, 2, state), (alone[0][2:], alone[1]))
    assert_alike(train("continued", 4, 2, state), (alone[0][2:], alone[1]))
    _, of_one = train("continued", 1, 2)
    assert_alike(train("continued", 2, 2, of_one), (alone[0][2:], alone[1]))


def test_a_state_loaded_in_the_midst_counts(ranks, train, tmp_path):
    """Ranks but the first keep their parts of the optimizer's state, which is another one then."""
    _, state = train("adamw", 1, 1)
    torch.save(state, tmp_path / "state")
    expected, _ = train("adamw", 1, 2, state)
    for found in results(ranks.call(2, "loads_in_the_midst", str(tmp_path / "state"))):
        assert found == pytest.approx([epoch["loss"] for epoch in expected], rel=1e-4)


def test_a_rank_holds_its_parts_alone_while_it_trains(ranks):
    first, second = results(ranks.call(2, "holds"))
    whole = [[16, FEATURES], [16], [CLASSES, 16], [CLASSES]]
    for found in (first, second):
        assert found["within"] == [[8, FEATURES], [8], [CLASSES, 8], [CLASSES]] * 2
        assert found["after"] == whole
        numbers = 5 * (8 * FEATURES + 8 + CLASSES * 8 + CLASSES)  # weight, average, gradient and two moments
        assert found["bytes"] == 4 * (numbers + 4)  # and the steps of four parameters
    assert first["states"] == {str(number): shape for number, shape in enumerate(whole)}
    assert second["states"] == {"0": [8, FEATURES], "1": [8], "2": [CLASSES, 8], "3": [CLASSES]}  # rank 0 saves them


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("transformer", "takes an nn.Sequential, or a model whose layers Parts.tensor names, got Transformer"),
        ("sync", "tensor can't be used with batch_norm: every rank normalizes by all rows already"),
        ("lamb", "tensor can't be used with LAMB: its step looks at whole parameters"),
        ("custom", "got Custom: if it does, give the class an attribute"),
        ("the stem's outputs alone", "what is split must fit together, but the split model can't be computed: "),
        ("the first of a pair alone", "what is split must fit together, but the split model can't be computed: "),
        ("the second of a pair alone", "what is split must fit together, but the split model can't be computed: "),
        ("the second of a pair by its outputs", "what is split must fit together, but the split model can't be "),
    ],
)
def test_what_can_not_be_split_is_refused(ranks, case, message):
    for outcome in ranks.call(2, "trains", case, 1):
        assert outcome.error == "ConfigurationError"
        assert message in outcome.text


@pytest.mark.parametrize(
    "case", ["dropout between", "a slope between", "heads normalized between", "a weight used twice"]
)
def test_what_is_something_else_in_training_alone_is_refused(ranks, case):
    """Ranks would leave out others, or have a part of the gradient of what all of them have."""
    outcomes = ranks.call(2, "trains", case, 1)
    assert any(
        outcome.error == "ConfigurationError"
        and "what Parts.tensor names must compute what the model does in training, too" in outcome.text
        for outcome in outcomes
    )
    assert all(outcome.error in ("ConfigurationError", "PeerLost") for outcome in outcomes)


def test_styles_that_are_no_mapping_are_refused():
    with pytest.raises(ConfigurationError, match=r"tensor must be styles by the names of layers, got \['0'\]"):
        Small(FakeTrial({"tensor": ["0"]}))


def test_a_hook_may_look_but_not_compute_of_all_features(ranks, train):
    """On one rank alone, which all must learn of."""
    assert_alike(train("plain", 2, hook="look"), train("plain"))
    first, second = ranks.call(2, "trains", "plain", 1, None, None, "softmax")
    assert second.error == "ConfigurationError"
    assert second.text.startswith("a split model must compute what the model does, got another output")
    assert first.error in ("ConfigurationError", "PeerLost")


def test_a_model_put_in_place_of_another_is_split(ranks):
    found, alone = results(ranks.call(2, "changes_its_model")), results(ranks.call(1, "changes_its_model"))
    assert found[0] == pytest.approx(alone[0], rel=1e-4)
