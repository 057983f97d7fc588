"""Modules for operations that torch lacks."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional


class Zero(nn.Module):
    """Zeros of the input's shape; with a stride, of an image with fewer pixels."""

    def __init__(self, stride: int = 1) -> None:
        super().__init__()
        self.stride = stride

    def forward(self, values: Tensor) -> Tensor:
        """Return zeros."""
        if self.stride > 1:
            values = values[..., :: self.stride, :: self.stride]
        return values.new_zeros(values.shape)


class FactorizedReduction(nn.Module):
    """Halve an image's sides, rounded up: ReLU, two parallel 1x1 convolutions of stride 2, and batch normalization.

    One convolution is shifted by a pixel in both directions, as in NASNet (Zoph et al., CVPR 2018, appendix A.4). The
    outputs are concatenated.
    """

    def __init__(self, before: int, channels: int) -> None:
        super().__init__()
        self.straight = nn.Conv2d(before, channels - channels // 2, 1, stride=2, bias=False)
        self.shifted = nn.Conv2d(before, channels // 2, 1, stride=2, bias=False) if channels > 1 else None
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, images: Tensor) -> Tensor:
        """Return images with half the sides."""
        images = functional.relu(images)
        halves = [self.straight(images)]
        if self.shifted is not None:
            halves.append(self.shifted(functional.pad(images, (0, 1, 0, 1))[:, :, 1:, 1:]))
        normalized: Tensor = self.norm(torch.cat(halves, 1))
        return normalized


class ResidualReduction(nn.Module):
    """Halve an image's sides by a residual block, as between the stages of NAS-Bench-201 (Dong and Yang, ICLR 2020)."""

    def __init__(self, before: int, channels: int) -> None:
        super().__init__()
        self.block = nn.Sequential(
            nn.ReLU(),
            nn.Conv2d(before, channels, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )
        self.shortcut = nn.Sequential(
            nn.AvgPool2d(2, stride=2, ceil_mode=True), nn.Conv2d(before, channels, 1, bias=False)
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return images with half the sides."""
        summed: Tensor = self.shortcut(images) + self.block(images)
        return summed


class SelfAttention(nn.Module):
    """Multi-head self-attention (Vaswani et al., NeurIPS 2017) between tokens."""

    def __init__(self, features: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.inward = nn.Linear(features, 3 * features)
        self.outward = nn.Linear(features, features)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return as many tokens."""
        batch, count, features = tokens.shape
        split = self.inward(tokens).view(batch, count, 3, self.heads, features // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value)
        out: Tensor = self.outward(attended.transpose(1, 2).reshape(batch, count, features))
        return out


class Positions(nn.Module):
    """Add a learned vector to each token, which depends on the token's position."""

    def __init__(self, count: int, features: int) -> None:
        super().__init__()
        self.table = nn.Embedding(count, features)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return as many tokens."""
        return tokens + self.table.weight


class Tokens(nn.Module):
    """Turn the pixels of an image into tokens, and its channels into their features."""

    def forward(self, images: Tensor) -> Tensor:
        """Return height * width tokens."""
        return images.flatten(2).transpose(1, 2)


class GlobalPool(nn.Module):
    """The mean over all pixels, or over all tokens."""

    def forward(self, values: Tensor) -> Tensor:
        """Return a row of channels or features per row of the batch."""
        return values.mean(1) if values.dim() == 3 else values.mean((2, 3))


class Residual(nn.Module):
    """The sum of the input and a module's output for it (He et al., CVPR 2016)."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, values: Tensor) -> Tensor:
        """Return the sum."""
        output: Tensor = self.body(values)
        if output.shape != values.shape:  # the sum would broadcast silently
            raise ValueError(
                f"body must keep the shape {tuple(values.shape[1:])}, got one that returns {tuple(output.shape[1:])}"
            )
        return values + output


class Periodic(nn.Module):
    """Sines and cosines of each number, then a linear layer per number and a ReLU; all in one row."""

    def __init__(self, numbers: int, features: int, frequencies: int, deviation: float) -> None:
        super().__init__()
        self.frequencies = nn.Parameter(torch.randn(numbers, frequencies) * deviation)
        bound = (2 * frequencies) ** -0.5
        self.weight = nn.Parameter(torch.empty(numbers, 2 * frequencies, features).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(numbers, features).uniform_(-bound, bound))

    def forward(self, row: Tensor) -> Tensor:
        """Return a row with `features` numbers for each number of the input."""
        angles = 2 * math.pi * self.frequencies * row[:, :, None]
        waves = torch.cat([angles.sin(), angles.cos()], 2)
        return torch.relu(torch.einsum("rnw,nwf->rnf", waves, self.weight) + self.bias).flatten(1)
