"""What studies are called where several of them are shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from hpsearch.errors import HpsearchError

__all__ = ["study_names"]


def study_names(directories: Sequence[Path]) -> list[str]:
    """Give each study's directory a name of its own: its last part, with as many before it as tell it from others.

    Raises:
        HpsearchError: One is there twice.
    """
    places = [directory.resolve() for directory in directories]
    for directory, (place, count) in zip(directories, ((place, places.count(place)) for place in places), strict=True):
        if count > 1:
            raise HpsearchError(f"{directory}: expected different studies, got {place} {count} times; name it once")
    parts = [place.parts[1:] or ("study",) for place in places]
    lengths = [1] * len(places)
    while True:
        names = ["/".join(own[-length:]) for own, length in zip(parts, lengths, strict=True)]
        counts = Counter(names)
        same = [at for at, name in enumerate(names) if counts[name] > 1 and lengths[at] < len(parts[at])]
        if not same:
            return names
        for at in same:
            lengths[at] += 1
