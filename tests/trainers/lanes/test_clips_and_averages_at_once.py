"""Clipping, and moving averages, of all lanes in one call: what each has alone, but for rounding."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from hpsearch_trainers.lanes.bits import nearly_equal, same_bits
from hpsearch_trainers.lanes.lane import Lane
from hpsearch_trainers.lanes.updates import Averages, Clipping
from tests.trainers.lanes.networks import Drawn, made
from tests.trainers.lanes.ways import ALL_WAYS


@pytest.mark.some_cases(5)
@ALL_WAYS
@pytest.mark.parametrize(
    "lane", [{"clip_norm": 0.05}, {"clip_norm": 1e9}, {"average": 0.9}, {"clip_norm": 0.1, "accumulate": 2}]
)
@pytest.mark.parametrize("optimizer", ["momentum", "adam", "lamb"])
def test_epochs_are_those_of_each_alone_but_for_rounding(lane, optimizer, way):
    lanes = [
        {"lr": 0.02 * (1 + number), "layers": ["batch norm"], "optimizer": optimizer, **lane} for number in range(3)
    ]
    ours, theirs = made(Drawn, lanes), made(Drawn, lanes)
    fuser = way(4)
    for _ in range(2):
        stepped = fuser.step(ours)
        assert [one.alone_because for one in stepped] == [None] * 3
        for one, other in zip(stepped, [trainer.step() for trainer in theirs], strict=True):
            assert one.metrics is not None
            assert one.metrics["loss"] == pytest.approx(other["loss"], rel=1e-3)
    for pair in zip(ours, theirs, strict=True):
        averages = [trainer.state_dict().get("average", {}) for trainer in pair]
        assert nearly_equal(dict(averages[0]), dict(averages[1]))


def _clipped(norms: list[float | None], frozen: int | None, scale: float) -> tuple[Any, Any]:
    """Return the gradients of lanes that were clipped together, and those of each lane clipped by torch."""
    lanes: list[dict[str, Any]] = [{"layers": [], **({} if norm is None else {"clip_norm": norm})} for norm in norms]
    trainers = made(Drawn, lanes)
    if frozen is not None:
        del trainers[frozen].optimizer.param_groups[0]["params"][0]
    begun = [Lane(trainer) for trainer in trainers]
    for lane in begun:
        lane.begin()
    generator = torch.Generator().manual_seed(0)
    shapes = [one.shape for one in begun[0].trained]
    gradients = [scale * torch.randn(len(lanes) + 2, *shape, generator=generator) for shape in shapes]
    apart = [[one[place].clone() for one in gradients] for place in range(len(lanes))]
    for lane, own in zip(begun, apart, strict=True):
        lane.clip(own)
    Clipping(begun, torch.device("cpu"))(gradients)
    return [[one[place] for one in gradients] for place in range(len(lanes))], apart


@pytest.mark.parametrize("norms", [[0.5, None, 3.0, 1e9], [None, None], [1e-3]])
@pytest.mark.parametrize("frozen", [None, 0])
@pytest.mark.parametrize("scale", [1.0, 1e30, float("nan"), 0.0])
def test_gradients_are_clipped_as_by_torch(norms, frozen, scale):
    ours, theirs = _clipped(norms, frozen, scale)
    assert nearly_equal(ours, theirs)
    for own, expected, norm in zip(ours, theirs, norms, strict=True):
        assert norm is not None or same_bits(own, expected), "nothing is clipped"


def test_an_average_begins_with_the_model_and_keeps_what_has_no_average():
    trainers = made(Drawn, [{"layers": ["counting"], "average": decay} for decay in (0.5, 0.9, 0.0)])
    models: list[nn.Module] = [trainer.model for trainer in trainers]
    averages = [trainer._average for trainer in trainers]
    for number, (model, average) in enumerate(zip(models, averages, strict=True)):
        assert average is not None
        for one in model.parameters():
            one.data += 1.0
        if number == 1:
            average.update_parameters(model)
            for one in model.parameters():
                one.data += 1.0
        model.get_buffer("1.seen").fill_(7)
        model.get_buffer("1.mean").fill_(float("inf"))
        average.module.get_buffer("1.mean").fill_(float("inf"))
    lanes = [Lane(trainer) for trainer in trainers]
    of_averages, of_models = (
        [torch.stack([one.detach() for one in own]) for own in zip(*map(_tensors, given), strict=True)]
        for given in ([average.module for average in averages if average is not None], models)
    )
    together = Averages(lanes, of_averages, of_models)
    for _ in range(2):
        together()
        for average, model in zip(averages, models, strict=True):
            assert average is not None
            average.update_parameters(model)
    counted = [int(average.n_averaged) for average in averages if average is not None]
    together.end()
    assert [int(average.n_averaged) - count for average, count in zip(averages, counted, strict=True) if average] == [
        2
    ] * 3
    for place, lane in enumerate(lanes):
        assert lane.average is not None
        assert nearly_equal(
            [one[place] for one in of_averages], [*map(torch.Tensor.detach, _tensors(lane.average.module))]
        )


def _tensors(model: Any) -> list[torch.Tensor]:
    return [*model.parameters(), *model.buffers()]
