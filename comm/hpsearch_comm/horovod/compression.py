"""Compression of tensors before they are sent."""

from __future__ import annotations

import torch

from hpsearch_comm.errors import UsageError


class Compressor:
    """Compresses a tensor before an operation and decompresses the result. Subclass it to write your own."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, object]:
        """Return the compressed tensor, and the context that `decompress` needs."""
        raise NotImplementedError("a Compressor must have a static method compress(tensor)")

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: object) -> torch.Tensor:
        """Return the result in the tensor's original form."""
        raise NotImplementedError("a Compressor must have a static method decompress(tensor, ctx)")


class NoneCompressor(Compressor):
    """Sends tensors unchanged."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, object]:
        """Return the tensor itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: object) -> torch.Tensor:
        """Return the tensor itself."""
        return tensor


class FP16Compressor(Compressor):
    """Sends floating-point tensors as float16."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, object]:
        """Round a floating-point tensor to float16; return other tensors unchanged."""
        return tensor.to(torch.float16) if tensor.dtype.is_floating_point else tensor, tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: object) -> torch.Tensor:
        """Return the result in the tensor's original dtype."""
        assert isinstance(ctx, torch.dtype)
        return tensor.to(ctx)


class Compression:
    """Values for the argument `compression`."""

    none = NoneCompressor
    fp16 = FP16Compressor


def check_compression(compression: object) -> None:
    """Check a `compression` argument before anything is sent.

    Raises:
        UsageError: The argument has no `compress` or no `decompress`.
    """
    if not (callable(getattr(compression, "compress", None)) and callable(getattr(compression, "decompress", None))):
        raise UsageError(
            "compression must be hvd.Compression.none, hvd.Compression.fp16 or a class of your own with compress and "
            f"decompress, got {compression!r}"
        )
