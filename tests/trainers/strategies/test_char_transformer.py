"""The character transformer, split over ranks in each way: to the losses of one process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.comm.process_ranks import ProcessRanks
from tests.comm.torch_backend.torch_ranks import TorchRanks
from tests.trainers.strategies import char_trainings

TEXT = "the quick brown fox jumps over the lazy dog; " * 60


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "text.txt"
    path.write_text(TEXT, "utf-8")
    return str(path)


WAYS: dict[str, tuple[int, dict[str, Any]]] = {
    "two stages": (2, {"strategy": "pipeline"}),
    "two stages, one forward one backward": (2, {"strategy": "pipeline", "schedule": "1f1b", "micro_batches": 8}),
    "two parts of layers": (2, {"strategy": "tensor"}),
    "four stages": (4, {"strategy": "pipeline", "schedule": "1f1b"}),
}


@pytest.fixture(scope="module")
def ranks() -> Iterator[ProcessRanks]:
    with ProcessRanks("tests.trainers.strategies.char_trainings") as server:
        yield server


@pytest.mark.exhaustive
@pytest.mark.parametrize("way", WAYS)
def test_the_losses_of_one_process(ranks, text, way, tmp_path):
    width, parallel = WAYS[way]
    outcomes = ranks.call(width, "curve", text, parallel, str(tmp_path / "split"), timeout=60.0)
    assert not any(outcome.error or outcome.code for outcome in outcomes), outcomes
    found, expected = outcomes[0].result, char_trainings.curve(None, text, {}, str(tmp_path / "whole"))
    state, state_of_one = (torch.load(tmp_path / name) for name in ("split", "whole"))
    for one, other in zip(found, expected, strict=True):
        for name in ("loss", "validation_loss"):
            assert one[name] == pytest.approx(other[name], rel=1e-4)
    assert state["model"].keys() == state_of_one["model"].keys()
    for name, value in state_of_one["model"].items():
        if name.endswith("in_proj_bias"):
            continue  # that of the keys changes nothing: its gradient is rounding alone, which Adam makes large
        torch.testing.assert_close(state["model"][name], value, rtol=1e-2, atol=1e-3)


@pytest.mark.exhaustive
def test_the_losses_of_one_process_with_fsdp(text):
    """torch's own `fully_shard`, on our backend."""
    with TorchRanks("tests.trainers.strategies.char_trainings") as ranks:
        of_rank = ranks.call(2, "with_fsdp", text)
    expected = char_trainings.plain_losses(text)
    assert expected[-1] < expected[0]
    assert of_rank[0] == pytest.approx(expected, rel=1e-4)
    assert of_rank[1] == of_rank[0]
