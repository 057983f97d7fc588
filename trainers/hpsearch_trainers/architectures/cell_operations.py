"""Operations of published cells, under their published names. All keep an image's shape if the stride is 1.

A convolution is always ReLU, convolution and batch normalization, in this order. NASNet: Zoph et al., CVPR 2018.
NAS-Bench-201: Dong and Yang, ICLR 2020. DARTS: Liu et al., ICLR 2019; its search has a batch normalization after each
pool, which is left out here.
"""

from __future__ import annotations

from torch import nn

from hpsearch_trainers.architectures.registry import operation
from hpsearch_trainers.architectures.shapes import Shape, image, positive_int


def relu_conv(channels: int, kernel: tuple[int, int], stride: tuple[int, int]) -> list[nn.Module]:
    """Return ReLU, convolution and batch normalization."""
    padding = (kernel[0] // 2, kernel[1] // 2)
    conv = nn.Conv2d(channels, channels, kernel, stride, padding, bias=False)
    return [nn.ReLU(), conv, nn.BatchNorm2d(channels)]


def relu_separable(channels: int, kernel: int, stride: int, dilation: int = 1) -> list[nn.Module]:
    """Return ReLU, depthwise separable convolution (Chollet, CVPR 2017) and batch normalization."""
    padding = dilation * (kernel // 2)
    return [
        nn.ReLU(),
        nn.Conv2d(channels, channels, kernel, stride, padding, dilation, groups=channels, bias=False),
        nn.Conv2d(channels, channels, 1, bias=False),
        nn.BatchNorm2d(channels),
    ]


def square_conv(shape: Shape, kernel: int, stride: int) -> nn.Module:
    """Return a convolution with a square kernel."""
    channels, _, _ = image(shape)
    positive_int("stride", stride)
    return nn.Sequential(*relu_conv(channels, (kernel, kernel), (stride, stride)))


def twice_separable(shape: Shape, kernel: int, stride: int) -> nn.Module:
    """Return NASNet's separable convolution, which is applied twice, the first time with the stride."""
    channels, _, _ = image(shape)
    positive_int("stride", stride)
    return nn.Sequential(*relu_separable(channels, kernel, stride), *relu_separable(channels, kernel, 1))


def dilated(shape: Shape, kernel: int, stride: int) -> nn.Module:
    """Return a separable convolution with dilation 2."""
    channels, _, _ = image(shape)
    positive_int("stride", stride)
    return nn.Sequential(*relu_separable(channels, kernel, stride, dilation=2))


@operation("conv_1x1", "nor_conv_1x1")
def conv_1x1(shape: Shape, stride: int = 1) -> nn.Module:
    """ReLU, 1x1 convolution, batch normalization."""
    return square_conv(shape, 1, stride)


@operation("conv_3x3", "nor_conv_3x3")
def conv_3x3(shape: Shape, stride: int = 1) -> nn.Module:
    """ReLU, 3x3 convolution, batch normalization."""
    return square_conv(shape, 3, stride)


@operation()
def conv_5x5(shape: Shape, stride: int = 1) -> nn.Module:
    """ReLU, 5x5 convolution, batch normalization."""
    return square_conv(shape, 5, stride)


def two_kernels(shape: Shape, length: int, stride: int) -> nn.Module:
    """Return NASNet's two convolutions of 1 x length and length x 1 pixels."""
    channels, _, _ = image(shape)
    positive_int("stride", stride)
    return nn.Sequential(*relu_conv(channels, (1, length), (1, stride)), *relu_conv(channels, (length, 1), (stride, 1)))


@operation("conv_1x3_3x1")
def conv_1x3_3x1(shape: Shape, stride: int = 1) -> nn.Module:
    """Convolutions of 1x3 and of 3x1."""
    return two_kernels(shape, 3, stride)


@operation("conv_1x7_7x1", "conv_7x1_1x7")
def conv_1x7_7x1(shape: Shape, stride: int = 1) -> nn.Module:
    """Convolutions of 1x7 and of 7x1."""
    return two_kernels(shape, 7, stride)


@operation("sep_3x3", "sep_conv_3x3")
def sep_3x3(shape: Shape, stride: int = 1) -> nn.Module:
    """Separable convolution of 3x3, twice."""
    return twice_separable(shape, 3, stride)


@operation("sep_5x5", "sep_conv_5x5")
def sep_5x5(shape: Shape, stride: int = 1) -> nn.Module:
    """Separable convolution of 5x5, twice."""
    return twice_separable(shape, 5, stride)


@operation("sep_7x7", "sep_conv_7x7")
def sep_7x7(shape: Shape, stride: int = 1) -> nn.Module:
    """Separable convolution of 7x7, twice."""
    return twice_separable(shape, 7, stride)


@operation("dil_3x3", "dil_conv_3x3")
def dil_3x3(shape: Shape, stride: int = 1) -> nn.Module:
    """Dilated separable convolution of 3x3, once."""
    return dilated(shape, 3, stride)


@operation("dil_5x5", "dil_conv_5x5")
def dil_5x5(shape: Shape, stride: int = 1) -> nn.Module:
    """Dilated separable convolution of 5x5, once."""
    return dilated(shape, 5, stride)


def max_of(shape: Shape, kernel: int, stride: int) -> nn.Module:
    """Return a max pool that keeps the image's size if the stride is 1."""
    image(shape)
    return nn.MaxPool2d(kernel, positive_int("stride", stride), kernel // 2)


@operation("max_3x3", "max_pool_3x3")
def max_3x3(shape: Shape, stride: int = 1) -> nn.Module:
    """Maximum of 3x3 pixels."""
    return max_of(shape, 3, stride)


@operation("max_5x5", "max_pool_5x5")
def max_5x5(shape: Shape, stride: int = 1) -> nn.Module:
    """Maximum of 5x5 pixels."""
    return max_of(shape, 5, stride)


@operation("max_7x7", "max_pool_7x7")
def max_7x7(shape: Shape, stride: int = 1) -> nn.Module:
    """Maximum of 7x7 pixels."""
    return max_of(shape, 7, stride)


@operation("avg_3x3", "avg_pool_3x3")
def avg_3x3(shape: Shape, stride: int = 1) -> nn.Module:
    """Mean of 3x3 pixels, without the padding."""
    image(shape)
    return nn.AvgPool2d(3, positive_int("stride", stride), 1, count_include_pad=False)
