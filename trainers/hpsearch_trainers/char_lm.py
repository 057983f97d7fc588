"""Train a small transformer to predict the next character of any text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor, nn
from torch.nn import functional

from hpsearch_comm.errors import ConfigurationError
from hpsearch_trainers.cache import cached
from hpsearch_trainers.parts import Parts
from hpsearch_trainers.schedules import warmup
from hpsearch_trainers.trainer import Trainer

_HELD_BACK = 10
"""The last 1 / _HELD_BACK of the characters are held out for validation."""


class Text:
    """A tokenized text file; each character is a token.

    The tokens are computed once, stored in the user's cache (see `cached`) and memory-mapped, so the processes of a
    host share one copy.

    Args:
        path: The file, in UTF-8.
        length: Number of characters of a row.

    Attributes:
        vocabulary: The characters of the text, sorted.
        train: Inputs and targets, int32 of shape (rows, length). The target of a character is the next character.
            Read-only.
        validation: Inputs and targets from the last tenth of the text. Read-only.

    Raises:
        ConfigurationError: The file can't be read, or is too short.
    """

    def __init__(self, path: str | Path, length: int) -> None:
        file = Path(path)
        try:
            numbers = cached(file, ".tokens", lambda target: _number(file.read_text(encoding="utf-8"), target))
            stored = torch.load(numbers, mmap=True, weights_only=True)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"expected a text in UTF-8 at {path}, which can't be read: {error}") from error
        self.vocabulary = list(stored["vocabulary"])
        tokens = stored["tokens"]
        cut = len(tokens) - len(tokens) // _HELD_BACK
        self.train, self.validation = _rows(tokens[:cut], length), _rows(tokens[cut:], length)
        if len(self.train[0]) == 0 or len(self.validation[0]) == 0:
            raise ConfigurationError(
                f"expected {path} to have at least {_HELD_BACK * (length + 1)} characters for rows of {length}, got "
                f"{len(tokens)}: name a longer text, or lower `length`"
            )


class CharLM(Trainer):
    """A decoder-only transformer.

    Parameters: `data` (the file's path, without a default), `length` (128), `layers` (2), `heads` (4), `features`
    (128), `dropout` (0.0), `lr` (1e-3), `weight_decay` (0.01), `warmup_epochs` (0.1), `batch_size` (32).
    """

    def build(self, params: Mapping[str, Any]) -> Parts:
        """Return the parts; the optimizer is AdamW."""
        if "data" not in params:
            raise ConfigurationError("char_lm must have a parameter `data`, the path of a text file; got none")
        text = Text(params["data"], int(params.get("length", 128)))
        model = _Transformer(
            len(text.vocabulary),
            int(params.get("length", 128)),
            int(params.get("layers", 2)),
            int(params.get("heads", 4)),
            int(params.get("features", 128)),
            float(params.get("dropout", 0.0)),
        )
        optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=float(params.get("lr", 1e-3)),
            weight_decay=float(params.get("weight_decay", 0.01)),
            fused=True,
        )
        return Parts(
            model,
            optimizer,
            _loss,
            text.train,
            text.validation,
            metrics={"accuracy": _accuracy},
            batch_size=int(params.get("batch_size", 32)),
            validation_batch_size=64,
            schedule=warmup(float(params.get("warmup_epochs", 0.1))),
            clip_norm=1.0,
            pipeline=model.parts(),
            tensor=model.split(),
        )


class _Transformer(nn.Module):
    def __init__(self, characters: int, length: int, layers: int, heads: int, features: int, dropout: float) -> None:
        super().__init__()
        if features % heads:
            raise ConfigurationError(f"`features` must be a multiple of `heads`, got {features} and {heads}")
        self.characters = nn.Embedding(characters, features)
        self.places = nn.Embedding(length, features)
        layer = nn.TransformerEncoderLayer(
            features, heads, 4 * features, dropout, "gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, nn.LayerNorm(features), enable_nested_tensor=False)
        self.head = nn.Linear(features, characters)

    def forward(self, tokens: Tensor) -> Any:
        """Return the logits, of shape (rows, length, characters), from tokens of shape (rows, length)."""
        features = _embedded(tokens, self.characters, self.places)
        return self.head(self.layers(features, mask=_mask(features), is_causal=True))

    def parts(self) -> list[nn.Module]:
        """Return modules with the same weights that compute the same function when called in sequence."""
        layers: Any = self.layers
        return [_Embedding(self.characters, self.places), *map(_Layer, layers.layers), layers.norm, self.head]

    def split(self) -> dict[str, str]:
        """Return how to split the feed-forward layers, which have most of the weights; see `Parts.tensor`."""
        layers: Any = self.layers
        styles = {"linear1": "colwise", "dropout": "dropout", "linear2": "rowwise"}
        return {
            f"layers.layers.{number}.{name}": style
            for number in range(len(layers.layers))
            for name, style in styles.items()
        }


class _Embedding(nn.Module):
    def __init__(self, characters: nn.Embedding, positions: nn.Embedding) -> None:
        super().__init__()
        self.characters, self.places = characters, positions

    def forward(self, tokens: Tensor) -> Tensor:
        """Return features, of shape (rows, length, features)."""
        return _embedded(tokens, self.characters, self.places)


class _Layer(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, features: Tensor) -> Any:
        """Return features of the same shape."""
        return self.layer(features, src_mask=_mask(features), is_causal=True)


def _embedded(tokens: Tensor, characters: nn.Embedding, positions: nn.Embedding) -> Tensor:
    features: Tensor = characters(tokens) + positions(torch.arange(tokens.shape[1], device=tokens.device))
    return features


def _mask(features: Tensor) -> Tensor:
    """Return the causal mask: a character doesn't attend to later ones."""
    return nn.Transformer.generate_square_subsequent_mask(features.shape[1], device=features.device)


def _number(text: str, target: BinaryIO) -> None:
    vocabulary = sorted(set(text))
    number = {character: index for index, character in enumerate(vocabulary)}
    tokens = torch.tensor([number[character] for character in text], dtype=torch.int32)
    torch.save({"vocabulary": "".join(vocabulary), "tokens": tokens}, target)


def _rows(tokens: Tensor, length: int) -> tuple[Tensor, Tensor]:
    count = max(0, (len(tokens) - 1) // length)
    return tokens[: count * length].view(count, length), tokens[1 : count * length + 1].view(count, length)


def _loss(output: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(output.flatten(0, 1), target.flatten().long())


def _accuracy(output: Tensor, target: Tensor) -> Tensor:
    return (output.argmax(-1) == target).float().mean(1)
