"""Operations on rows, on tokens, and on inputs of any shape."""

from __future__ import annotations

import math

from torch import nn

from hpsearch_trainers.architectures.convolutions import activation_of
from hpsearch_trainers.architectures.modules import (
    FactorizedReduction,
    GlobalPool,
    Periodic,
    Positions,
    Residual,
    SelfAttention,
    Tokens,
    Zero,
)
from hpsearch_trainers.architectures.registry import operation
from hpsearch_trainers.architectures.shapes import Shape, described, image, positive_int, tokens


@operation("skip", "skip_connect", "identity")
def skip(shape: Shape, stride: int = 1) -> nn.Module:
    """Identity; at an input of a reduction cell, a factorized reduction, as in DARTS."""
    if positive_int("stride", stride) == 1:
        return nn.Identity()
    if stride != 2:
        raise ValueError(f"stride must be 1 or 2, got {stride}")
    channels, _, _ = image(shape)
    return FactorizedReduction(channels, channels)


@operation("zero", "none")
def zero(shape: Shape, stride: int = 1) -> nn.Module:
    """Zeros: a missing edge."""
    if positive_int("stride", stride) > 1:
        image(shape)
    return Zero(stride)


def numbers(shape: Shape) -> int:
    """Return the number of features of a row or of tokens, or raise ValueError."""
    if len(shape) > 2:
        raise ValueError(
            f"needs a row or tokens, but its input is {described(shape)}: put 'flatten', 'global_pool' or 'tokens' "
            "before it"
        )
    return shape[-1]


@operation()
def dense(shape: Shape, features: int | None = None, activation: str = "relu", dropout: float = 0.0) -> nn.Module:
    """Linear layer, activation and dropout, of a row or of each token."""
    before = numbers(shape)
    linear = nn.Linear(before, before if features is None else positive_int("features", features))
    return nn.Sequential(linear, activation_of(activation), nn.Dropout(dropout))


@operation()
def periodic(shape: Shape, features: int = 8, frequencies: int = 8, deviation: float = 0.1) -> nn.Module:
    """Turn each number of a row into `features` numbers, by sines and cosines of learned frequencies.

    A perceptron after it can fit functions with jumps, as trees do (Gorishniy et al., NeurIPS 2022, "PLR").
    """
    if len(shape) != 1:
        raise ValueError(f"needs a row, but its input is {described(shape)}")
    if not isinstance(deviation, int | float) or not 0 < deviation < math.inf:
        raise ValueError(f"deviation must be a number above 0, got {deviation!r}")
    numbers_of_each, waves = positive_int("features", features), positive_int("frequencies", frequencies)
    return Periodic(shape[0], numbers_of_each, waves, float(deviation))


@operation()
def attention(shape: Shape, heads: int = 4) -> nn.Module:
    """Multi-head self-attention (Vaswani et al., NeurIPS 2017) between tokens, without norm and shortcut."""
    _, features = tokens(shape)
    if features % positive_int("heads", heads):
        raise ValueError(f"heads must divide the {features} features, got {heads}")
    return SelfAttention(features, heads)


@operation()
def positions(shape: Shape) -> nn.Module:
    """Add a learned vector to each token, since attention ignores a token's position."""
    return Positions(*tokens(shape))


@operation("tokens", "pixels")
def pixels(shape: Shape) -> nn.Module:
    """Turn an image's pixels into tokens."""
    image(shape)
    return Tokens()


@operation()
def flatten(shape: Shape) -> nn.Module:
    """Make a row of all numbers."""
    return nn.Flatten()


@operation()
def global_pool(shape: Shape) -> nn.Module:
    """Mean over all pixels or all tokens: a row of the channels or features."""
    if len(shape) == 1:
        raise ValueError(f"needs an image or tokens, but its input is {described(shape)}")
    return GlobalPool()


@operation()
def residual(shape: Shape, body: nn.Module) -> nn.Module:
    """Sum of the input and the output of `body`, an architecture that keeps the shape."""
    return Residual(body)


@operation()
def dropout(shape: Shape, p: float = 0.5) -> nn.Module:
    """Dropout of single numbers, with probability p."""
    return nn.Dropout(p)


@operation()
def batch_norm(shape: Shape) -> nn.Module:
    """Batch normalization of an image's channels or a row's numbers."""
    if len(shape) == 2:
        raise ValueError(f"needs an image or a row, but its input is {described(shape)}: use 'layer_norm'")
    return nn.BatchNorm2d(shape[0]) if len(shape) == 3 else nn.BatchNorm1d(shape[0])


@operation()
def layer_norm(shape: Shape) -> nn.Module:
    """Layer normalization of a row, of each token, or of a whole image with weights per channel."""
    return grouped(shape, 1) if len(shape) == 3 else nn.LayerNorm(shape[-1])


@operation()
def group_norm(shape: Shape, groups: int) -> nn.Module:
    """Group normalization of an image's channels."""
    return grouped(shape, positive_int("groups", groups))


def grouped(shape: Shape, groups: int) -> nn.Module:
    """Return a group normalization. torch refuses one for a single row if a group has one number."""
    channels, height, width = image(shape)
    if channels % groups:
        raise ValueError(f"groups must divide the {channels} channels, got {groups}")
    if channels * height * width == groups:
        raise ValueError(f"needs more than one number in a group, but its input is {described(shape)}")
    return nn.GroupNorm(groups, channels)


@operation()
def activation(shape: Shape, kind: str = "relu") -> nn.Module:
    """Activation by its name."""
    return activation_of(kind)


@operation()
def relu(shape: Shape) -> nn.Module:
    """ReLU."""
    return nn.ReLU()


@operation()
def gelu(shape: Shape) -> nn.Module:
    """GELU."""
    return nn.GELU()


@operation()
def silu(shape: Shape) -> nn.Module:
    """SiLU, also called swish."""
    return nn.SiLU()


@operation()
def tanh(shape: Shape) -> nn.Module:
    """Hyperbolic tangent."""
    return nn.Tanh()


@operation()
def projection(shape: Shape, channels: int) -> nn.Module:
    """ReLU, 1x1 convolution and batch normalization of an image; a linear layer of a row or of tokens.

    It adapts an input of a cell to the cell's channels, as in NASNet.
    """
    positive_int("channels", channels)
    if len(shape) < 3:
        return nn.Linear(shape[-1], channels)
    return nn.Sequential(nn.ReLU(), nn.Conv2d(shape[0], channels, 1, bias=False), nn.BatchNorm2d(channels))
