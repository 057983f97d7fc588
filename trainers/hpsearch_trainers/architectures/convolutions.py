"""Operations on images: convolutions, pools and reductions.

With stride s, a side of n pixels becomes n / s pixels, rounded up, for any kernel.
"""

from __future__ import annotations

from torch import nn

from hpsearch_trainers.architectures.modules import FactorizedReduction, ResidualReduction
from hpsearch_trainers.architectures.registry import operation
from hpsearch_trainers.architectures.shapes import Shape, image, one_of, positive_int

_ACTIVATIONS = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "elu": nn.ELU,
    "leaky_relu": nn.LeakyReLU,
    "hardswish": nn.Hardswish,
    "none": nn.Identity,
}


def activation_of(kind: str) -> nn.Module:
    """Return an activation; "none" is the identity."""
    activation: nn.Module = _ACTIVATIONS[one_of("activation", kind, tuple(_ACTIVATIONS))]()
    return activation


def image_norm(kind: str, channels: int) -> nn.Module:
    """Return a normalization for images, "batch" or "none"."""
    return nn.BatchNorm2d(channels) if one_of("norm", kind, ("batch", "none")) == "batch" else nn.Identity()


def odd(name: str, kernel: object) -> int:
    """Return a kernel's size if it is odd, or raise ValueError."""
    if positive_int(name, kernel) % 2 == 0:
        raise ValueError(f"{name} must be odd, got {kernel}")
    return positive_int(name, kernel)


def channels_of(shape: Shape, channels: int | None) -> tuple[int, int]:
    """Return the input and output channels of an operation; `channels=None` keeps their number."""
    before, _, _ = image(shape)
    return before, before if channels is None else positive_int("channels", channels)


@operation()
def conv(
    shape: Shape,
    channels: int | None = None,
    kernel: int = 3,
    stride: int = 1,
    dilation: int = 1,
    groups: int = 1,
    norm: str = "batch",
    activation: str = "relu",
) -> nn.Module:
    """Convolution, normalization and activation."""
    before, after = channels_of(shape, channels)
    if before % positive_int("groups", groups) or after % groups:
        raise ValueError(f"groups must divide the {before} input and {after} output channels, got {groups}")
    padding = positive_int("dilation", dilation) * (odd("kernel", kernel) // 2)
    convolution = nn.Conv2d(
        before,
        after,
        kernel,
        positive_int("stride", stride),
        padding,
        dilation,
        groups,
        bias=norm == "none",
    )
    return nn.Sequential(convolution, image_norm(norm, after), activation_of(activation))


@operation()
def separable(
    shape: Shape,
    channels: int | None = None,
    kernel: int = 3,
    stride: int = 1,
    dilation: int = 1,
    norm: str = "batch",
    activation: str = "relu",
) -> nn.Module:
    """Depthwise separable convolution (Chollet, CVPR 2017): one per channel, then 1x1; the rest as in `conv`."""
    before, after = channels_of(shape, channels)
    padding = positive_int("dilation", dilation) * (odd("kernel", kernel) // 2)
    return nn.Sequential(
        nn.Conv2d(before, before, kernel, positive_int("stride", stride), padding, dilation, groups=before, bias=False),
        nn.Conv2d(before, after, 1, bias=norm == "none"),
        image_norm(norm, after),
        activation_of(activation),
    )


@operation()
def mbconv(
    shape: Shape, channels: int | None = None, kernel: int = 3, stride: int = 1, expansion: int = 6
) -> nn.Module:
    """Inverted bottleneck of MobileNetV2 (Sandler et al., CVPR 2018), without its shortcut: see `residual`."""
    before, after = channels_of(shape, channels)
    wide = before * positive_int("expansion", expansion)
    padding = odd("kernel", kernel) // 2
    return nn.Sequential(
        nn.Conv2d(before, wide, 1, bias=False),
        nn.BatchNorm2d(wide),
        nn.ReLU6(),
        nn.Conv2d(wide, wide, kernel, positive_int("stride", stride), padding, groups=wide, bias=False),
        nn.BatchNorm2d(wide),
        nn.ReLU6(),
        nn.Conv2d(wide, after, 1, bias=False),
        nn.BatchNorm2d(after),
    )


def _padding(kernel: int, stride: int) -> int:
    """Return the padding of a pool: none if the stride is the kernel's size."""
    if positive_int("kernel", kernel) == positive_int("stride", stride):
        return 0
    if kernel % 2 == 0:
        raise ValueError(f"kernel must be odd, or the stride, got a kernel of {kernel} and a stride of {stride}")
    return kernel // 2


@operation("max_pool", "pool")
def max_pool(shape: Shape, kernel: int = 2, stride: int | None = None) -> nn.Module:
    """Maximum over windows. The stride defaults to the kernel's size. A single pixel is kept."""
    image(shape)
    stride = kernel if stride is None else stride
    return nn.MaxPool2d(kernel, stride, _padding(kernel, stride), ceil_mode=kernel == stride)


@operation()
def avg_pool(shape: Shape, kernel: int = 2, stride: int | None = None) -> nn.Module:
    """Mean over windows, without the padding; the rest as in `max_pool`."""
    image(shape)
    stride = kernel if stride is None else stride
    padding = _padding(kernel, stride)
    return nn.AvgPool2d(kernel, stride, padding, ceil_mode=kernel == stride, count_include_pad=False)


@operation()
def adaptive_pool(shape: Shape, side: int = 1) -> nn.Module:
    """Mean over windows, so that the output has side x side pixels."""
    image(shape)
    return nn.AdaptiveAvgPool2d(positive_int("side", side))


@operation("reduction", "factorized_reduction")
def reduction(shape: Shape, channels: int | None = None) -> nn.Module:
    """NASNet's factorized reduction: halves the sides, and doubles the channels by default."""
    before, after = channels_of(shape, channels)
    return FactorizedReduction(before, after if channels is not None else 2 * before)


@operation()
def residual_reduction(shape: Shape, channels: int | None = None) -> nn.Module:
    """NAS-Bench-201's residual block: halves the sides, and doubles the channels by default."""
    before, after = channels_of(shape, channels)
    return ResidualReduction(before, after if channels is not None else 2 * before)
