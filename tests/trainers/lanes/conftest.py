"""Lanes are fused where torch has one thread; trainers take a GPU where there is one, and it is wanted."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

# cuBLAS gives the same bits each time if it is there before CUDA is asked for anything.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def on_the_cpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no test find a GPU but those that are marked so."""
    if request.node.get_closest_marker("gpu") is None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
