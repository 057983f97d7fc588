"""In which ways packs that may round are computed: each is tried by the very same tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from hpsearch_trainers.lanes import RoundingFuser

Way = Callable[..., RoundingFuser]
"""Makes what steps trainers, given the number of places."""


def _as_on_a_processor(places: int, **given: Any) -> RoundingFuser:
    return RoundingFuser(places, **given)


def _in_few_calls(places: int, **given: Any) -> RoundingFuser:
    return RoundingFuser(places, at_once=lambda device: True, **given)


def _on_a_gpu(places: int, **given: Any) -> RoundingFuser:
    def is_gpu(device: torch.device) -> bool:
        assert device.type == "cuda"
        return True

    return RoundingFuser(places, at_once=is_gpu, **given)


_NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU and a torch built for CUDA")
_DEAR = (
    pytest.param(_in_few_calls, id="in few calls"),
    pytest.param(_on_a_gpu, id="on a GPU", marks=[pytest.mark.gpu, _NEEDS_GPU]),
)
FEW_CALLS = pytest.mark.parametrize("way", _DEAR)
"""Those where a call costs more than what it computes."""
ALL_WAYS = pytest.mark.parametrize("way", [pytest.param(_as_on_a_processor, id="as on a processor"), *_DEAR])
