"""How torch's process group of NCCL, here a mock, is made: nothing of torch's own may end the process."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch import distributed as dist
from torch._C._distributed_c10d import DebugLevel, get_debug_level, set_debug_level

from hpsearch_comm.cuda.nccl import start_nccl


class Seen(dict[str, Any]):
    """A process group that notes in what surroundings it is made."""

    class Options:
        def __init__(self, is_high_priority_stream: bool) -> None:
            self.config = type("Config", (), {})()

    def __init__(self, store: Any, rank: int, size: int, options: Any) -> None:
        super().__init__({name: value for name, value in os.environ.items() if name.startswith("TORCH_NCCL")})
        self.level, self.options = get_debug_level(), options

    def eager_connect_single_device(self, device: torch.device) -> None:
        self.device = device


@pytest.mark.parametrize("level", [DebugLevel.OFF, DebugLevel.INFO, DebugLevel.DETAIL])
def test_it_is_made_without_what_ends_the_process_and_leaves_the_users_settings(monkeypatch, level):
    monkeypatch.setattr(dist, "ProcessGroupNCCL", Seen, raising=False)
    monkeypatch.setenv("TORCH_NCCL_DESYNC_DEBUG", "1")
    monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3")
    before = get_debug_level()
    set_debug_level(level)
    try:
        made = start_nccl(None, 0, 2, torch.device("cuda", 0), None, None)
        after = get_debug_level()
    finally:
        set_debug_level(before)
    assert made["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == made["TORCH_NCCL_DESYNC_DEBUG"] == "0"
    assert made.level == min(level, DebugLevel.INFO, key=int)  # DETAIL turns that debugging on, too
    assert made.options.config.blocking == 1
    assert after == level
    assert os.environ["TORCH_NCCL_DESYNC_DEBUG"] == "1"
    assert os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "3"
    assert "TORCH_NCCL_BLOCKING_WAIT" not in os.environ
