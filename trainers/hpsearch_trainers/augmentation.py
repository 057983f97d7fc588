"""Images as they might have been: shifted and mirrored, drawn anew each time."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["mirrored", "shifted"]


def shifted(images: Tensor, most: int) -> Tensor:
    """Move each image by up to so many pixels along each side; what comes in repeats the border.

    Args:
        images: (rows, channels, height, width).
        most: Pixels.
    """
    rows, _, height, width = images.shape
    moved = torch.randint(-most, most + 1, (2, rows, 1), device=images.device)
    down = (torch.arange(height, device=images.device) + moved[0]).clamp(0, height - 1)
    right = (torch.arange(width, device=images.device) + moved[1]).clamp(0, width - 1)
    own = torch.arange(rows, device=images.device)[:, None, None]
    return images[own, :, down[:, :, None], right[:, None, :]].permute(0, 3, 1, 2)


def mirrored(images: Tensor) -> Tensor:
    """Swap left and right of every second image, by chance."""
    swap = torch.rand(len(images), 1, 1, 1, device=images.device) < 0.5
    return torch.where(swap, images.flip(3), images)
