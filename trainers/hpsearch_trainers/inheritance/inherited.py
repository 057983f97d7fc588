"""The result of inheriting weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["FATES", "Inherited"]

FATES = {
    "same": "as they were",
    "padded": "with zeros around the kernel",
    "widened": "with units repeated",
    "identity": "put in so that they change nothing",
    "sliced": "of which a part fits",
    "new": "anew",
}
"""Fates of layers, from the smallest change to the largest, and their wording."""

_ORDER = list(FATES)


@dataclass(frozen=True)
class Inherited:
    """The origin of each weight and buffer of the child, and whether it computes what its parent does."""

    fates: Mapping[str, str]
    """Names in the child's `state_dict()` to one of `FATES`."""
    reasons: tuple[str, ...]
    """Why the child's outputs differ from its parent's; none: they are equal in eval mode, up to rounding."""
    by_architecture: bool = True
    """Whether both architectures are known; else names and shapes alone were compared."""

    @property
    def preserving(self) -> bool:
        """Whether outputs are the parent's in eval mode, as derived from the architectures alone."""
        return self.by_architecture and not self.reasons

    @property
    def taken(self) -> tuple[str, ...]:
        """Names of weights that are the parent's, at least in part."""
        return tuple(name for name, fate in self.fates.items() if fate not in ("new", "identity"))

    @property
    def left(self) -> tuple[str, ...]:
        """Names of weights that the child keeps as initialized."""
        return tuple(name for name, fate in self.fates.items() if fate == "new")

    @property
    def layers(self) -> dict[str, str]:
        """The fate of each module with weights or buffers: if it has several, the one that changes most."""
        fates: dict[str, str] = {}
        for name, fate in self.fates.items():
            layer = name.rpartition(".")[0]
            fates[layer] = max(fates.get(layer, fate), fate, key=_ORDER.index)
        return fates

    def __str__(self) -> str:
        if not self.by_architecture:
            summary = f"inherited {len(self.taken)} of {len(self.fates)} weights and buffers, by name and shape"
            return f"{summary} ({self.reasons[0]})" if self.reasons else summary
        counts = Counter(self.layers.values())
        fates = ", ".join(f"{counts[fate]} {wording}" for fate, wording in FATES.items() if counts[fate]) or "none"
        if self.preserving:
            return f"inherited {len(self.layers)} layers: {fates}; outputs are the parent's"
        more = f", and {len(self.reasons) - 1} more" if len(self.reasons) > 1 else ""
        return (
            f"inherited {len(self.layers)} layers: {fates}; outputs differ from the parent's: {self.reasons[0]}{more}"
        )
