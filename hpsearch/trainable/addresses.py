"""Where a checkpoint lies: at a place of its own, or in a pack, one file with the checkpoints of several trials.

The journal holds an address, relative to the study's directory. It is either the checkpoint's place,
`trials/00012/3/hpsearch-checkpoint-9`, or a pack and behind `#` the place at which the checkpoint lies once it is
written out, `trials/packs/00007-2-9.zip#trials/00012/3/hpsearch-checkpoint-9`. What lies at its place is read there,
else it is read from the pack.
"""

from __future__ import annotations

import re

__all__ = ["PACKS", "in_pack", "is_pack", "pack_beginning_with", "pack_of", "place_of"]

PACKS = "trials/packs"
"""Where packs lie, relative to the study's directory."""

_PLACE = re.compile(r"trials/(\d+)/(\d+)/hpsearch-checkpoint-(\d+)")
_PACK = re.compile(r"\d+-\d+-\d+\.zip|\.\d+-\d+-\d+\.zip\.part")
_IN_PACK = re.compile(rf"((?:.*/)?)({PACKS}/\d+-\d+-\d+\.zip)#(trials/\d+/\d+/hpsearch-checkpoint-\d+)", re.DOTALL)
"""The study's directory, where there is one in front; the pack; the place."""


def pack_beginning_with(place: str) -> str:
    """Give the path of the pack whose first checkpoint is this one's: no other pack has it, as no attempt runs twice.

    Args:
        place: Of that checkpoint, relative to the study's directory.
    """
    found = _PLACE.fullmatch(place)
    assert found is not None, "a place as an attempt's directory gives it"
    return f"{PACKS}/{'-'.join(found.groups())}.zip"


def in_pack(pack: str, place: str) -> str:
    """Give the address of a checkpoint in a pack."""
    return f"{pack}#{place}"


def pack_of(address: str) -> str | None:
    """Give the path of the pack that an address names, None where it names none; absolute if the address is."""
    found = _IN_PACK.fullmatch(address)
    return None if found is None else f"{found[1]}{found[2]}"


def place_of(address: str) -> str:
    """Give the place at which a checkpoint lies where it lies in no pack; absolute if the address is."""
    found = _IN_PACK.fullmatch(address)
    return address if found is None else f"{found[1]}{found[3]}"


def study_of(address: str) -> str:
    """Give what stands in front of the pack that an address names, up to a slash: the study's directory."""
    found = _IN_PACK.fullmatch(address)
    assert found is not None, "an address in a pack"
    return found[1]


def is_pack(name: str) -> bool:
    """Say whether a file has the name of a pack, or of one that was begun."""
    return _PACK.fullmatch(name) is not None
