"""Shapes of what goes through a network, without the batch: images, rows of tokens, and rows of numbers."""

from __future__ import annotations

__all__ = ["Shape", "described", "halved", "image", "one_of", "tokens", "whole"]

Shape = tuple[int, ...]
"""(channels, height, width), (tokens, features) or (features,)."""


def described(shape: Shape) -> str:
    """Say what has such a shape."""
    match shape:
        case (features,):
            return f"a row of {features} numbers"
        case (count, features):
            return f"{count} tokens of {features} numbers"
        case (channels, height, width):
            return f"an image of {channels} channels and {height} x {width} pixels"
    return f"a tensor of shape {tuple(shape)}"


def image(shape: Shape) -> tuple[int, int, int]:
    """Give channels, height and width of what must be an image."""
    if len(shape) != 3:
        raise ValueError(f"needs an image (channels, height, width), but what comes is {described(shape)}")
    channels, height, width = shape
    return channels, height, width


def tokens(shape: Shape) -> tuple[int, int]:
    """Give number and features of what must be tokens."""
    if len(shape) != 2:
        hint = ": put 'tokens' before it, which takes pixels for tokens" if len(shape) == 3 else ""
        raise ValueError(f"needs tokens (tokens, features), but what comes is {described(shape)}{hint}")
    count, features = shape
    return count, features


def halved(shape: Shape) -> Shape:
    """Give an image's shape after a stride of 2: sides are rounded up."""
    channels, height, width = image(shape)
    return channels, -(-height // 2), -(-width // 2)


def whole(name: str, value: object) -> int:
    """Check a number that counts something."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
    return value


def one_of(name: str, value: object, known: tuple[str, ...]) -> str:
    """Check a text that is one of a few."""
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}")
    return value
