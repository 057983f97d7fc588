"""Train on Fashion-MNIST: 70,000 grayscale images of 28 x 28 pixels in ten classes of clothes (Xiao et al. 2017).

The parameter `data` is the folder with the four IDX files, which may be gzipped. Debian's package dataset-fashion-mnist
installs them in /usr/share/datasets/fashion-mnist.

IDX is the file format of MNIST. The files are memory-mapped, so the processes of a host share one copy. A file consists
of two zero bytes, the type of its elements, the number of dimensions, the size of each dimension (32 bits, big endian),
and the elements in row-major order. Only unsigned bytes (type 8) are supported, the type of MNIST and Fashion-MNIST.
"""

from __future__ import annotations

import gzip
import math
import os
import shutil
import struct
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor, nn
from torch.nn import functional

from hpsearch_comm.errors import ConfigurationError
from hpsearch_trainers.cache import cached
from hpsearch_trainers.parts import Parts
from hpsearch_trainers.trainer import Trainer
from hpsearch_trainers.weight_decay import decay_groups

_UNSIGNED_BYTES = 8
_MOST_DIMENSIONS = 8


def map_idx(path: str | os.PathLike[str]) -> torch.Tensor:
    """Memory-map an IDX file.

    A file that ends in `.gz` is unpacked once into the user's cache (see `cached`).

    Returns:
        A read-only tensor of the file's shape, uint8.

    Raises:
        ConfigurationError: The file doesn't exist, or is not an IDX file of bytes.
    """
    file = Path(path)
    try:
        file = _unpacked(file) if file.suffix == ".gz" else file
        with file.open("rb") as stream:
            shape, start = _read_head(stream.read(4 + 4 * _MOST_DIMENSIONS), Path(path))
        size = file.stat().st_size
    except (OSError, EOFError) as error:
        raise ConfigurationError(f"expected an IDX file at {path}, which can't be read: {error}") from error
    count = math.prod(shape)
    if size != start + count:
        raise ConfigurationError(
            f"expected {path} to hold {count} numbers, as its head says (shape {list(shape)}), got {size - start}: "
            "fetch it again"
        )
    everything = torch.from_file(str(file), shared=False, size=size, dtype=torch.uint8)
    return everything[start:].view(shape)


def _read_head(head: bytes, path: Path) -> tuple[tuple[int, ...], int]:
    """Return the shape, and the byte offset of the elements."""
    if len(head) < 4 or head[:2] != b"\0\0" or not 1 <= head[3] <= _MOST_DIMENSIONS or len(head) < 4 + 4 * head[3]:
        raise ConfigurationError(f"expected {path} to be an IDX file, got one that begins with {head[:4].hex(' ')}")
    if head[2] != _UNSIGNED_BYTES:
        raise ConfigurationError(f"expected {path} to hold unsigned bytes (type 08), got type {head[2]:02x}")
    start = 4 + 4 * head[3]
    return struct.unpack(f">{head[3]}I", head[4:start]), start


def _unpacked(path: Path) -> Path:
    def unpack(target: BinaryIO) -> None:
        with gzip.open(path) as source:
            shutil.copyfileobj(source, target)

    return cached(path, ".idx", unpack)


_FOLDER = "/usr/share/datasets/fashion-mnist"


def fashion_mnist(folder: str | Path = _FOLDER) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return the data, memory-mapped.

    Returns:
        Images of shape (60,000, 1, 28, 28) and labels for training, and 10,000 of each for validation. All are uint8
        and read-only. Convert them batch by batch, because the processes of a host share the mapped memory.

    Raises:
        ConfigurationError: The files don't exist, or have other contents.
    """
    return _pair(Path(folder), "train"), _pair(Path(folder), "t10k")


class _Clothes(Trainer):
    """Parameters of both networks: `data`, `lr` (0.1), `momentum` (0.9), `weight_decay` (1e-4), `batch_size` (128)."""

    @abstractmethod
    def network(self, params: Mapping[str, Any]) -> nn.Module:
        """Return the network. Its inputs are images with pixels from 0 to 1."""

    def build(self, params: Mapping[str, Any]) -> Parts:
        """Return the parts; the optimizer is SGD as in Goyal et al. 2017."""
        train, validation = fashion_mnist(params.get("data", _FOLDER))
        model = nn.Sequential(_Scale(), self.network(params))
        optimizer = torch.optim.SGD(
            decay_groups(model, float(params.get("weight_decay", 1e-4))),
            lr=float(params.get("lr", 0.1)),
            momentum=float(params.get("momentum", 0.9)),
            fused=True,
        )
        return Parts(
            model,
            optimizer,
            _loss,
            train,
            validation,
            metrics={"accuracy": _correct},
            batch_size=int(params.get("batch_size", 128)),
            batch_norm=str(params.get("batch_norm", "local")),
        )


class MLP(_Clothes):
    """A perceptron with one hidden layer; parameter `hidden` (256)."""

    def network(self, params: Mapping[str, Any]) -> nn.Module:
        """Return the network."""
        hidden = int(params.get("hidden", 256))
        return nn.Sequential(nn.Flatten(), nn.Linear(784, hidden), nn.ReLU(), nn.Linear(hidden, 10))


class CNN(_Clothes):
    """Three convolutions with batch normalization; parameters `channels` (16), `batch_norm` (local)."""

    def network(self, params: Mapping[str, Any]) -> nn.Module:
        """Return the network."""
        channels = int(params.get("channels", 16))
        layers: list[nn.Module] = []
        before = 1
        for times in (1, 2, 4):
            layers += [nn.Conv2d(before, times * channels, 3, padding=1, bias=False)]
            layers += [nn.BatchNorm2d(times * channels), nn.ReLU(), nn.MaxPool2d(2)]
            before = times * channels
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(9 * before, 10))


class _Scale(nn.Module):
    """Converts bytes to floating-point numbers from 0 to 1."""

    def forward(self, images: Tensor) -> Tensor:
        return images.float() / 255


def _pair(folder: Path, kind: str) -> tuple[Tensor, Tensor]:
    images, labels = _map(folder, f"{kind}-images-idx3-ubyte"), _map(folder, f"{kind}-labels-idx1-ubyte")
    if images.dim() != 3 or labels.dim() != 1 or len(images) != len(labels):
        raise ConfigurationError(
            f"expected a label for each of the {kind} images in {folder}, got images of shape {list(images.shape)} and "
            f"labels of shape {list(labels.shape)}"
        )
    return images.unsqueeze(1), labels


def _map(folder: Path, name: str) -> Tensor:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.exists():
            return map_idx(path)
    raise ConfigurationError(
        f"expected {name} or {name}.gz in {folder}, got neither: install Debian's package dataset-fashion-mnist, or "
        "set the parameter `data` to the folder that has them"
    )


def _loss(output: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(output, target.long())


def _correct(output: Tensor, target: Tensor) -> Tensor:
    return (output.argmax(1) == target).float()
