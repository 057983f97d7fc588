"""Packs that may round: what a lane comes to depends on how many places there are, and not on who has the others."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from hpsearch_trainers import Trainer
from hpsearch_trainers.digits import CNN, MLP
from hpsearch_trainers.lanes import Fuser, NotFusible, Stepped, lane_tensor
from hpsearch_trainers.lanes import fuser as fuser_module
from hpsearch_trainers.lanes.bits import nearly_equal, same_bits
from hpsearch_trainers.lanes.lane_tensor import LaneTensor, rounded_rule
from tests.trainers.lanes.called import called, lanes_of
from tests.trainers.lanes.networks import IMAGE_LAYERS, LAYERS, OPTIMIZERS, Drawn, assert_same, made
from tests.trainers.lanes.ways import ALL_WAYS, Way

PLACES = 5
LANES = [{"lr": lr, "dropout": dropout, "layers": ["batch norm"]} for lr in (0.01, 0.3) for dropout in (0.0, 0.5)]


def by_themselves(trainers: Sequence[Trainer], fuser: Fuser) -> list[Stepped]:
    """Train each for an epoch as the only one in its pack."""
    return [fuser.step([trainer])[0] for trainer in trainers]


def reported(stepped: Sequence[Stepped]) -> list[dict[str, float]]:
    for one in stepped:
        if one.error is not None:
            raise one.error
    return [one.metrics for one in stepped if one.metrics is not None]


@pytest.mark.exhaustive
@ALL_WAYS
@given(
    epochs=st.lists(st.sets(st.integers(0, 6)), min_size=1, max_size=4),
    places=st.integers(2, 5),
    order=st.permutations(range(7)),
)
@settings(max_examples=15)
def test_company_and_place_change_nothing(way, epochs, places, order):
    lanes = [*LANES, *LANES[:3]]
    ours, theirs = made(Drawn, lanes), made(Drawn, lanes)
    fuser, alone = way(places), way(places)
    for present in epochs:
        numbers = [number for number in order if number in present]
        stepped = fuser.step([ours[number] for number in numbers])
        expected = reported(by_themselves([theirs[number] for number in numbers], alone))
        assert_same(reported(stepped), expected, ours, theirs)
        assert [one.alone_because for one in stepped] == [None] * len(numbers)


@st.composite
def companies(draw: st.DrawFn, /, layers: Any, **shared: Any) -> list[dict[str, Any]]:
    common = shared | {
        "layers": draw(st.lists(st.sampled_from([*layers]), max_size=4)),
        "features": draw(st.integers(1, 12)),
        "hidden": draw(st.integers(1, 20)),
        "batch_size": draw(st.sampled_from([16, 26, 53])),
        **draw(st.sampled_from([{}, {"average": 0.9}])),
    }
    lane = st.fixed_dictionaries(
        {
            "lr": st.sampled_from([0.01, 0.1, 0.7]),
            "dropout": st.sampled_from([0.0, 0.3]),
            "optimizer": st.sampled_from([*OPTIMIZERS]),
        }
    )
    return [common | settings for settings in draw(st.lists(lane, min_size=2, max_size=4))]


def check(way: Way, lanes: list[dict[str, Any]]) -> None:
    ours, theirs = made(Drawn, lanes), made(Drawn, lanes)
    fuser, alone = way(PLACES), way(PLACES)
    for _ in range(3):
        together, each = fuser.step(ours), by_themselves(theirs, alone)
        assert [str(one.error) for one in together] == [str(one.error) for one in each]
        if any(one.error is not None for one in each):
            return
        assert [one.alone_because for one in together] == [one.alone_because for one in each]
        assert_same(reported(together), reported(each), ours, theirs)


@pytest.mark.exhaustive
@ALL_WAYS
@given(lanes=companies(LAYERS))
@settings(max_examples=12)
def test_rows_of_features(way, lanes):
    check(way, lanes)


@pytest.mark.exhaustive
@ALL_WAYS
@given(lanes=companies(IMAGE_LAYERS, image=True))
@settings(max_examples=12)
def test_images(way, lanes):
    check(way, lanes)


@pytest.mark.some_cases(2)
@ALL_WAYS
@pytest.mark.parametrize(("kind", "size"), [(MLP, {"hidden": 24}), (CNN, {"channels": 4})])
def test_an_epoch_is_that_of_each_alone_but_for_rounding(kind, size, way):
    lanes = [{"lr": 0.02 * (1 + number), "batch_size": 64, **size} for number in range(3)]
    ours, theirs = made(kind, lanes), made(kind, lanes)
    stepped = way(4).step(ours)
    assert [one.alone_because for one in stepped] == [None] * 3
    for metrics, expected in zip(reported(stepped), [one.step() for one in theirs], strict=True):
        assert metrics["loss"] == pytest.approx(expected["loss"], rel=1e-3)
    pairs = [(one.model.state_dict(), other.model.state_dict()) for one, other in zip(ours, theirs, strict=True)]
    assert all(nearly_equal(dict(one), dict(other)) for one, other in pairs)
    assert kind is MLP or not all(same_bits(*pair) for pair in pairs), "convolutions of all lanes at once round"


@pytest.mark.exhaustive
@ALL_WAYS
@pytest.mark.parametrize(("kind", "size"), [(MLP, {"hidden": 24}), (CNN, {"channels": 4})])
def test_digits_have_the_same_bits_whoever_is_beside_them(kind, size, way):
    lanes = [{"lr": 0.02 * (1 + lane), "dropout": 0.3 * (lane % 2), "batch_size": 100, **size} for lane in range(4)]
    ours, theirs = made(kind, lanes), made(kind, lanes)
    fuser, alone = way(PLACES), way(PLACES)
    for present in ([0, 1, 2, 3], [3, 1], [2, 3, 1]):
        stepped = fuser.step([ours[number] for number in present])
        assert [one.alone_because for one in stepped] == [None] * len(present)
        assert_same(reported(stepped), reported(by_themselves([theirs[number] for number in present], alone)), (), ())
    assert_same((), (), ours, theirs)


@pytest.mark.some_cases(1)
@ALL_WAYS
def test_a_lane_that_is_no_number_hurts_nobody(way):
    lanes = [{**LANES[0], "lr": 1e30}, *LANES[:3]]
    ours, theirs = made(Drawn, lanes), made(Drawn, lanes)
    fuser, alone = way(PLACES), way(PLACES)
    for _ in range(3):
        assert_same(reported(fuser.step(ours)), reported(by_themselves(theirs, alone)), ours, theirs)
    metrics = fuser.step(ours)[0].metrics
    assert metrics is not None
    assert metrics["loss"] != metrics["loss"]


class Faulty(Drawn):
    """In the epoch of its parameter `at` its model or its loss does as its parameter `fault` says."""

    def build(self, params):
        parts = super().build({"batch_size": 16, **params})  # type: ignore[no-untyped-call]
        trainer = self

        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = parts.model

            def forward(self, x: Tensor) -> Any:
                out = self.inner(x)
                if params.get("fault") == "reads" and self.training and trainer.epoch == params["at"]:
                    return out * float(out.sum() < 1e30)
                return out

        def loss(output: Tensor, target: Tensor) -> Tensor:
            if params.get("fault") == "raises" and trainer.model.training and trainer.epoch == params["at"]:
                raise ArithmeticError(f"epoch {trainer.epoch}")
            return functional.cross_entropy(output, target)

        model = Model() if "fault" in params and params["fault"] == "reads" else parts.model
        return type(parts)(model, parts.optimizer, loss, parts.train, validation=parts.validation, batch_size=16)


@pytest.mark.some_cases(1)
@ALL_WAYS
def test_one_that_raises_fails_alone_and_the_others_have_what_they_would_have(way):
    lanes = [*LANES[:2], {**LANES[2], "fault": "raises", "at": 1}]
    ours, theirs = made(Faulty, lanes), made(Faulty, lanes)
    fuser, alone = way(PLACES), way(PLACES)
    assert [one.lanes for one in fuser.step(ours)] == [3, 3, 3]
    by_themselves(theirs, alone)
    stepped = fuser.step(ours)
    assert isinstance(stepped[2].error, ArithmeticError)
    assert_same(reported(stepped[:2]), reported(by_themselves(theirs[:2], alone)), ours[:2], theirs[:2])
    assert [one.lanes for one in fuser.step(ours[:2])] == [2, 2], "the others are lanes again"


@ALL_WAYS
def test_what_raises_alone_does_as_a_lane(way):
    """Two functions in place after each other have no gradient; a lane's are computed out of place."""
    lanes = [{"image": True, "layers": ["relu", "relu"], "hidden": 4}] * 2
    for stepped in way(PLACES).step(made(Drawn, lanes)):
        assert "modified by an inplace operation" in str(stepped.error)


@ALL_WAYS
def test_one_whose_model_reads_values_runs_alone_and_says_why(way):
    ours, theirs = made(Faulty, [{**LANES[0], "fault": "reads", "at": 0}]), made(Faulty, LANES[:1])
    (stepped,) = way(PLACES).step(ours)
    assert stepped.alone_because is not None
    assert "reads values" in stepped.alone_because
    assert_same(reported([stepped]), [theirs[0].step()], (), ())


@pytest.fixture
def by_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a layer `sinh`, whose digits depend on the place."""
    monkeypatch.setattr(lane_tensor, "_ROUNDED_RULES", dict(lane_tensor._ROUNDED_RULES))

    @rounded_rule(torch.sinh)
    def _by_place(func: Any, x: LaneTensor) -> LaneTensor:
        lanes = len(x.generators)
        shift = torch.arange(lanes, device=x.device).view(lanes, *(1 for _ in x.shape))
        return LaneTensor.of_stack(func(x.stack) * (1 + 1e-6 * shift), x.generators)

    class Sinh(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.sinh(x)

    monkeypatch.setitem(LAYERS, "sinh", lambda _: Sinh())


PLACE = "its bits depend on its place among the lanes, or on the others"


@ALL_WAYS
def test_what_depends_on_the_place_is_refused(way, by_place):
    lanes = [{**lane, "layers": ["sinh"]} for lane in LANES[:2]]
    ours, theirs = made(Drawn, lanes), made(Drawn, lanes)
    stepped = way(PLACES).step(ours)
    for one in stepped:
        assert one.alone_because == PLACE
    assert_same(reported(stepped), [one.step() for one in theirs], ours, theirs)


@ALL_WAYS
@pytest.mark.parametrize("first", [{"lr": 1e30}, {"lr": 0.1, "zero": True}])
def test_what_depends_on_the_place_is_refused_whoever_comes_first(way, by_place, first):
    """Of numbers that are none, and of zeros, no bit differs in another place."""

    class Zero(Drawn):
        def build(self, params):
            parts = super().build(params)  # type: ignore[no-untyped-call]
            if params.get("zero"):
                with torch.no_grad():
                    for parameter in parts.model.parameters():
                        parameter.zero_()
            return parts

    lanes = [{**LANES[0], "layers": ["sinh"], **first}, {**LANES[0], "layers": ["sinh"]}]
    ours, fuser = made(Zero, lanes), way(PLACES)
    assert [fuser.step([one])[0].alone_because for one in ours] == [PLACE, PLACE]


@ALL_WAYS
def test_a_trainer_that_goes_on_is_trained_as_it_was_and_not_as_is_found_then(way):
    """Its model can't be that of lanes in its third epoch, which no try comes to; in its fourth it could be again."""
    lanes = [{**LANES[0], "fault": "reads", "at": 2}]
    (first,), verdicts = made(Faulty, lanes), dict[Trainer, str]()
    fuser = way(PLACES, verdicts=verdicts)
    assert [fuser.step([first])[0].alone_because for _ in range(2)] == [None] * 2
    assert verdicts == {first: ""}
    assert "reads values" in str(fuser.step([first])[0].alone_because)
    (second,) = made(Faulty, lanes)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    stepped = way(PLACES, verdicts={second: verdicts[first]}).step([second])
    assert stepped[0].alone_because == verdicts[first]
    assert_same(reported(stepped), [first.step()], [second], [first])


@ALL_WAYS
def test_a_lane_that_goes_on_is_one_whatever_its_model_would_look_like_now(way, monkeypatch):
    (trainer,) = made(Drawn, LANES[:1])
    monkeypatch.setattr(fuser_module, "check_lanes", refused)
    assert way(PLACES).step([trainer])[0].alone_because == "it looks otherwise"
    assert way(PLACES, verdicts={trainer: ""}).step([trainer])[0].alone_because is None


def refused(*_: Any) -> None:
    raise NotFusible("it looks otherwise")


@ALL_WAYS
def test_where_there_is_no_memory_for_all_places_a_trainer_fails_and_is_as_it_was(way):
    """Alone there might be enough of it, but then memory would decide what comes of a trial."""

    @contextlib.contextmanager
    def without_memory():
        yield
        raise MemoryError("for a pack")

    ours, theirs = made(Drawn, LANES[:2]), made(Drawn, LANES[:2])
    stepped = way(PLACES, around_pack=without_memory).step(ours)
    assert [type(one.error) for one in stepped] == [MemoryError, MemoryError]
    assert_same((), (), ours, theirs)


@given(
    st.sampled_from(["1d", "2d"]),
    *(st.integers(1, 3) for _ in range(4)),
    *(st.integers(1, 2) for _ in range(3)),
    st.booleans(),
    st.booleans(),
    st.integers(0, 99),
)
@settings(max_examples=40)
def test_convolutions(kind, rows, inputs, outputs, kernel, stride, dilation, groups, biased, no_number, seed):
    dims = int(kind[0])
    size, window = (9,) * dims, (kernel,) * dims
    shapes = [(rows, groups * inputs, *size), (groups * outputs, inputs, *window), (groups * outputs,)]
    convolve = getattr(functional, f"conv{kind}")

    def function(x: Tensor, weight: Tensor, bias: Tensor | None) -> Any:
        return convolve(x, weight, bias if biased else None, stride, 1, dilation, groups)

    if biased:
        called(function, shapes, seed, no_number)
    else:
        called(lambda x, weight: function(x, weight, None), shapes[:2], seed, no_number)


@given(st.integers(2, 4), st.integers(1, 5), st.booleans(), st.booleans(), st.integers(0, 99))
@settings(max_examples=25)
def test_layer_norms_and_small_linear_layers(rows, features, biased, no_number, seed):
    shapes = [(rows, 3, features), (features,), (features,)]
    if biased:
        called(lambda x, w, b: functional.layer_norm(x, (features,), w, b), shapes, seed, no_number)
        called(functional.linear, [(rows, features), (2, features), (2,)], seed, no_number)
    else:
        called(lambda x, w: functional.layer_norm(x, (features,), w), shapes[:2], seed, no_number)
        called(functional.linear, [(rows, features), (2, features)], seed, no_number)


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 6), st.booleans(), st.booleans(), st.integers(0, 99))
@settings(max_examples=25)
def test_attention(rows, heads, length, causal, no_number, seed):
    shapes = [(rows, heads, length, 4)] * 3
    attend = functional.scaled_dot_product_attention
    called(lambda q, k, v: attend(q, k, v, is_causal=causal), shapes, seed, no_number)


@pytest.mark.parametrize("size", [(2,), (3, 2)])
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_keeps_the_statistics_of_each_lane(size, training):
    torch.manual_seed(0)
    norms = [(nn.BatchNorm1d, nn.BatchNorm2d)[len(size) - 1](3).train(training) for _ in range(3)]
    inputs = [torch.randn(4, 3, *size) for _ in norms]
    with torch.no_grad():
        for norm in norms:
            for kept in (*norm.parameters(), norm.running_mean, norm.running_var):
                assert kept is not None
                kept.uniform_(1, 2)
    names = ("running_mean", "running_var", "weight", "bias")
    ours = {name: lanes_of([getattr(norm, name).detach().clone() for norm in norms], wanted=False) for name in names}
    made = functional.batch_norm(lanes_of(inputs, wanted=False), **ours, training=training)  # type: ignore[arg-type]
    assert isinstance(made, LaneTensor)
    assert made.is_stack
    for lane, norm in enumerate(norms):
        assert nearly_equal(made.stack[lane], norm(inputs[lane]).detach())
        for name in names[:2]:
            assert nearly_equal(ours[name].stack[lane], getattr(norm, name))
