"""What is found when trainers are tried holds for all of their shape, whichever they were and at whatever epoch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hpsearch_trainers.lanes import Fuser, lane_tensor
from tests.trainers.lanes.networks import LAYERS, Drawn, assert_same, made


@pytest.mark.parametrize(
    ("first", "found"),
    [
        ([{"lr": 0.0}, {"lr": 1e-20}], "1 lanes have another validation_loss than each alone"),
        ([{"lr": 0.1, "warmup": 1e12}] * 2, "1 lanes have other gradients than each alone, in the last digits"),
    ],
)
def test_gradients_that_differ_are_found_though_the_first_trainers_have_rates_at_which_nothing_changes(
    first, found, monkeypatch
):
    monkeypatch.setattr(lane_tensor, "_RULES", dict(lane_tensor._RULES))

    class Near(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: Tensor) -> Tensor:
            context.save_for_backward(x)
            return torch.square(x)

        @staticmethod
        def backward(context: Any, *gradients: Tensor) -> Any:
            return gradients[0] * 2 * context.saved_tensors[0] * (1 + 1e-6)

    @lane_tensor.rule(torch.square)
    def _near(func: Any, x: Any) -> Any:
        return lane_tensor.LaneTensor.of_stack(Near.apply(x.stack), x.generators)  # type: ignore[no-untyped-call]

    class Square(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.square(x)

    monkeypatch.setitem(LAYERS, "square", lambda _: Square())
    common = {"layers": ["square"], "optimizer": "sgd"}
    lanes = [common | lane for lane in (*first, {"lr": 0.1}, {"lr": 0.2})]
    ours, theirs, fuser = made(Drawn, lanes), made(Drawn, lanes), Fuser(fewest=2)
    stepped = [*fuser.step(ours[:2]), *fuser.step(ours)[2:]]
    of_all = "1 lanes have another validation_loss than each alone"
    for one, reason in zip(stepped, [found] * 2 + [of_all] * 2, strict=True):
        assert one.alone_because is not None
        assert one.alone_because.startswith(reason)
    metrics = [one.metrics for one in stepped]
    assert_same(metrics, [one.step() for one in theirs], ours[2:], theirs[2:])
