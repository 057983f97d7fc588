"""Where a checkpoint lies: at a place of its own, or in a pack, one file with the checkpoints of several trials.

The journal holds an address, relative to the study's directory. It is either the checkpoint's place,
`trials/00012/3/hpsearch-checkpoint-9`, or a pack and behind `#` the place at which the checkpoint lies once it is
written out, `trials/packs/00007-2-9x16.zip#trials/00012/3/hpsearch-checkpoint-9`. What lies at its place is read there,
else it is read from the pack.

A pack's name says which checkpoint is its first and how many it holds, so that whoever has heard of some of them knows
whether there are others.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["PACKS", "count_in_pack", "in_pack", "is_pack", "pack_of", "pack_of_all", "place_of", "study_of"]

PACKS = "trials/packs"
"""Where packs lie, relative to the study's directory."""

_PLACE = re.compile(r"trials/(\d+)/(\d+)/hpsearch-checkpoint-(\d+)")
_NAME = r"\d+-\d+-\d+x(\d+)\.zip"
_PACK = re.compile(rf"{_NAME}|\.{_NAME}\.part")
_IN_PACK = re.compile(rf"(|.*/)({PACKS}/{_NAME})#(trials/\d+/\d+/hpsearch-checkpoint-\d+)", re.DOTALL)
"""The study's directory, where there is one in front; the pack; how many it holds; the place."""


def pack_of_all(places: Sequence[str]) -> str:
    """Give the path of the pack that holds these checkpoints: no other has it, as no attempt runs twice.

    Args:
        places: Of the checkpoints, relative to the study's directory.
    """
    first = _PLACE.fullmatch(places[0])
    assert first is not None, "a place as an attempt's directory gives it"
    return f"{PACKS}/{'-'.join(first.groups())}x{len(places)}.zip"


def in_pack(pack: str, place: str) -> str:
    """Give the address of a checkpoint in a pack."""
    return f"{pack}#{place}"


def pack_of(address: str) -> str | None:
    """Give the path of the pack that an address names, None where it names none; absolute if the address is."""
    found = _parse(address)
    return None if found is None else f"{found[1]}{found[2]}"


def count_in_pack(address: str) -> int:
    """Give how many checkpoints lie in the pack that an address names."""
    found = _parse(address)
    assert found is not None, "an address in a pack"
    return int(found[3])


def place_of(address: str) -> str:
    """Give the place at which a checkpoint lies where it lies in no pack; absolute if the address is."""
    found = _parse(address)
    return address if found is None else f"{found[1]}{found[4]}"


def study_of(address: str) -> str:
    """Give what stands in front of the pack that an address names, up to a slash: the study's directory."""
    found = _parse(address)
    assert found is not None, "an address in a pack"
    return found[1]


def is_pack(name: str) -> bool:
    """Say whether a file has the name of a pack, or of one that was begun."""
    return _PACK.fullmatch(name) is not None


def _parse(address: str) -> re.Match[str] | None:
    return _IN_PACK.fullmatch(address) if "#" in address else None  # a large study has a hundred thousand of them
