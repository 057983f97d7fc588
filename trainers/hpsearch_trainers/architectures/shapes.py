"""Shapes of a network's tensors, without the batch: images, tokens, and rows of numbers."""

from __future__ import annotations

Shape = tuple[int, ...]
"""(channels, height, width), (tokens, features) or (features,)."""


def described(shape: Shape) -> str:
    """Return a description of a shape, such as "a row of 8 numbers"."""
    match shape:
        case (features,):
            return f"a row of {features} numbers"
        case (count, features):
            return f"{count} tokens of {features} numbers"
        case (channels, height, width):
            return f"an image of {channels} channels and {height} x {width} pixels"
    return f"a tensor of shape {tuple(shape)}"


def image(shape: Shape) -> tuple[int, int, int]:
    """Return channels, height and width of an image, or raise ValueError."""
    if len(shape) != 3:
        raise ValueError(f"needs an image (channels, height, width), but its input is {described(shape)}")
    channels, height, width = shape
    return channels, height, width


def tokens(shape: Shape) -> tuple[int, int]:
    """Return number and features of tokens, or raise ValueError."""
    if len(shape) != 2:
        hint = ": put 'tokens' before it, which turns pixels into tokens" if len(shape) == 3 else ""
        raise ValueError(f"needs tokens (tokens, features), but its input is {described(shape)}{hint}")
    count, features = shape
    return count, features


def halved(shape: Shape) -> Shape:
    """Return an image's shape after a stride of 2; sides are rounded up."""
    channels, height, width = image(shape)
    return channels, -(-height // 2), -(-width // 2)


def positive_int(name: str, value: object) -> int:
    """Return a value if it is a whole number of at least 1, or raise ValueError."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
    return value


def one_of(name: str, value: object, choices: tuple[str, ...]) -> str:
    """Return a value if it is one of the known ones, or raise ValueError."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
    return value
