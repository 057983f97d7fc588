"""Which packs are still needed: one goes when all the checkpoints in it were heard of, and none of them is needed.

A checkpoint that nobody was told of, as its worker died, keeps its pack until the run ends. Were a pack let go with the
last one that was heard of so far, it might be with the first of a round, before the second one is heard of.
"""

from __future__ import annotations

from collections.abc import Iterable

from hpsearch.trainable.addresses import count_in_pack, pack_of

__all__ = ["PackUsers"]


class PackUsers:
    """The checkpoints in each pack that aren't needed any more."""

    def __init__(self) -> None:
        self._unneeded: dict[str, set[str]] = {}

    def release(self, addresses: Iterable[str]) -> list[str]:
        """Take note that checkpoints aren't needed any more, wherever they lie; give the packs in which none is."""
        unused = []
        for address in addresses:
            if (pack := pack_of(address)) is None:
                continue
            released = self._unneeded.setdefault(pack, set())
            released.add(address)
            if len(released) == count_in_pack(address):
                unused.append(pack)
                del self._unneeded[pack]
        return unused
