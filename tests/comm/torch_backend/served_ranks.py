"""Fixtures of ranks of torch.distributed, whose process a module of tests has in common."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.comm.torch_backend.torch_ranks import TorchRanks


def served(module: str) -> Any:
    """Return a fixture of ranks that call functions of a module; its name is that of the variable it is assigned to."""

    @pytest.fixture(scope="module")
    def ranks() -> Iterator[TorchRanks]:
        with TorchRanks(module) as server:
            yield server

    return ranks
