"""Configurations with a text for each structure. A column for each value in a structure would be too many."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from hpsearch.config.masking import MASK, looks_secret
from hpsearch.space import Space
from hpsearch.space.parameter import Structure
from hpsearch.tables.formats import param_cell
from hpsearch.trial import Params, TrialRow, Value


def outlined(rows: Sequence[TrialRow], space: Space) -> tuple[list[TrialRow], tuple[str, ...]]:
    """Return the rows with a text in place of each structure, and the names of their params, in order."""
    # Fast path for thousands of trials: without structures all values stay unchanged.
    flat = not any(isinstance(declared.holds, Structure) for declared in space.declared)
    written = list(rows) if flat else [replace(row, params=outline(row.params, space)) for row in rows]
    names = [".".join(declared.path) for declared in space.declared]
    return written, tuple(dict.fromkeys([*names, *(name for row in written for name in row.params)]))


def constants_of(names: Iterable[str], spaces: Sequence[Space]) -> tuple[str, ...]:
    """Return the names of params that are constant in all spaces of a study that have them, with the same value."""
    found = {
        name: [known.distribution for space in spaces if (known := space.find(name)) is not None] for name in names
    }
    return tuple(
        name
        for name, known in found.items()
        if known and not known[0].searched and all(one.to_json() == known[0].to_json() for one in known)
    )


def outline(params: Params, space: Space) -> dict[str, Value]:
    """Return a configuration with a text for each structure, such as `[conv(channels=32 kernel=3) pool]`.

    A constant is masked if its name looks like a secret's.
    """
    return {
        name: MASK if _is_secret(name, space) else written(value) if is_structure else value
        for name, value, is_structure in space.top_level(params)
    }


def _is_secret(name: str, space: Space) -> bool:
    return looks_secret(name) and name in constants_of([name], [space])


def written(value: Value) -> str:
    """Format a structure, or a part of one, as text."""
    match value:
        case list():
            return f"[{' '.join(map(written, value))}]"
        case {"from": source, "operation": operation} if len(value) == 2:
            return f"{written(operation)}~{source}"
        case dict() if len(value) == 1 and all(isinstance(settings, dict) for settings in value.values()):
            ((name, settings),) = value.items()
            return f"{name}({_settings(settings)})" if settings else name
        case dict():
            return _settings(value)
    return param_cell(value)


def _settings(settings: Mapping[str, Value]) -> str:
    """Format names and values as text."""
    return " ".join(f"{name}={written(value)}" for name, value in settings.items())
