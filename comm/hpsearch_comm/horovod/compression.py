"""What a tensor becomes on its way."""

from __future__ import annotations

import torch

from hpsearch_comm.errors import UsageError

__all__ = ["Compression", "Compressor", "check_compression"]


class Compressor:
    """Makes a tensor shorter before an operation, and as it was behind it. Subclass it for one of your own."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, object]:
        """Give what travels, and what `decompress` needs to know."""
        raise NotImplementedError("a Compressor must have a static method compress(tensor)")

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: object) -> torch.Tensor:
        """Give the result as the tensor was, from what has travelled."""
        raise NotImplementedError("a Compressor must have a static method decompress(tensor, ctx)")


class NoneCompressor(Compressor):
    """Leaves tensors as they are."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, object]:
        """Give the tensor itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: object) -> torch.Tensor:
        """Give the tensor itself."""
        return tensor


class FP16Compressor(Compressor):
    """Sends floating tensors as float16."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, object]:
        """Round a floating tensor to float16."""
        return tensor.to(torch.float16) if tensor.dtype.is_floating_point else tensor, tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: object) -> torch.Tensor:
        """Give the result in the dtype that the tensor had."""
        assert isinstance(ctx, torch.dtype)
        return tensor.to(ctx)


class Compression:
    """The kinds of compression, for the argument of that name."""

    none = NoneCompressor
    fp16 = FP16Compressor


def check_compression(compression: object) -> None:
    """See that tensors can be made shorter with it, before anything travels.

    Raises:
        UsageError: It has no `compress` or no `decompress`.
    """
    if not (callable(getattr(compression, "compress", None)) and callable(getattr(compression, "decompress", None))):
        raise UsageError(
            "compression must be hvd.Compression.none, hvd.Compression.fp16 or a class of your own with compress and "
            f"decompress, got {compression!r}"
        )
