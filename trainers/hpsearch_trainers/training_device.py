"""Where a trial trains."""

from __future__ import annotations

import torch

__all__ = ["training_device"]


def training_device() -> torch.device:
    """Return the GPU that is torch's current one, or the CPU where none is seen."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
