"""A pack has the bits of each of its trainers alone: drawn networks, settings and lanes against `Trainer.step`."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from hpsearch_trainers.lanes import NotFusible, Pack
from tests.trainers.lanes.networks import IMAGE_LAYERS, LAYERS, LOSSES, OPTIMIZERS, Drawn, assert_same, made


def check(lanes: list[dict[str, Any]], epochs: int = 4) -> None:
    ours, theirs = made(Drawn, lanes), made(Drawn, lanes)
    pack = Pack(ours)
    for _ in range(epochs):
        try:
            expected = [trainer.step() for trainer in theirs]
        except ValueError as error:  # a batch of one row can't be normalized
            with pytest.raises(ValueError, match=re.escape(str(error))):
                pack.step()
            return
        except RuntimeError:  # relu in place after relu in place has no gradient
            reject()
        try:
            metrics = pack.step()
        except NotFusible:  # in place behind a view
            reject()
        assert_same(metrics, expected, ours, theirs)


@st.composite
def packs(draw: st.DrawFn, /, layers: Any, **shared: Any) -> list[dict[str, Any]]:
    """Lanes that share their form, and differ in all that may differ."""
    common = shared | {
        "layers": draw(st.lists(st.sampled_from([*layers]), max_size=5)),
        "features": draw(st.integers(1, 12)),
        "hidden": draw(st.integers(1, 40)),
        "batch_size": draw(st.sampled_from([7, 16, 26, 53, 100])),
        "accumulate": draw(st.sampled_from([1, 1, 3])),
        "validation_batch_size": draw(st.sampled_from([5, 22, 64])),
        **draw(st.sampled_from([{}, {"average": 0.9}])),
        **draw(st.sampled_from([{}, {"freeze": 1}])),
    }
    lane = st.fixed_dictionaries(
        {
            "lr": st.sampled_from([0.01, 0.1, 0.7]),
            "dropout": st.sampled_from([0.0, 0.3, 0.5, 1.0]),
            "optimizer": st.sampled_from([*OPTIMIZERS]),
            "loss": st.sampled_from([*LOSSES]),
        },
        optional={
            "clip_norm": st.sampled_from([0.1, 1.0]),
            "warmup": st.just(1.5),
            "own data": st.integers(5, 7),
        },
    )
    return [common | settings for settings in draw(st.lists(lane, min_size=1, max_size=5))]


@given(packs(LAYERS))
@settings(max_examples=20)
def test_rows_of_features(lanes):
    check(lanes)


@given(packs(IMAGE_LAYERS, image=True))
@settings(max_examples=15)
def test_images(lanes):
    check(lanes, epochs=3)
