"""Conversion between flat names and nested params: groups and branches are mappings, copies are lists."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from hpsearch.config.checks import InvalidKey, KeyPath, nearest
from hpsearch.space.cell import Cell
from hpsearch.space.distribution import own_copy
from hpsearch.space.expressions import ABSENT
from hpsearch.space.parameter import Declared, Structure
from hpsearch.trial import Params, Value

if TYPE_CHECKING:
    from hpsearch.space.tree import Tree

__all__ = ["nested", "nested_value", "unnested"]


def nested(declared: Sequence[Declared], flat: Params, path: tuple[str, ...] = (), canonical: bool = False) -> Value:
    """Return params as a trainable gets them, without inactive parameters.

    Args:
        declared: A group, or a block of one unnamed parameter.
        flat: Flat names to values.
        path: Path of the group.
        canonical: Return cells in canonical form.
    """
    out: dict[str, Value] = {}
    for one in declared:
        value = nested_value(one, flat, path, canonical)
        if value is ABSENT:
            continue
        if not one.path:
            return value
        group = out
        for inner in one.path[:-1]:
            group = group.setdefault(inner, {})
        group[one.path[-1]] = value
    return out


def nested_value(declared: Declared, flat: Params, path: tuple[str, ...] = (), canonical: bool = False) -> Value:
    """Return the value of a parameter or structure as a trainable gets it; `ABSENT` if it is inactive."""
    here = (*path, *declared.path)
    if isinstance(declared.holds, Structure):
        return _structure(declared.holds, here, flat, canonical)
    return own_copy(flat.get(".".join(here), ABSENT))


def _structure(holds: Structure, path: tuple[str, ...], flat: Params, canonical: bool) -> Value:
    name = ".".join(path)
    tag = flat.get(name, ABSENT) if holds.tag is not None else None
    if tag is ABSENT:
        return ABSENT
    groups = {inner: nested(inside, flat, path + inner, canonical) for inner, inside in holds.groups(tag)}
    if holds.tag is None and not any(groups.values()):
        return ABSENT  # an active group or cell has a parameter, unless all of them are conditional
    value = holds.nest(tag, groups)
    return holds.canonical(value) if canonical and isinstance(holds, Cell) else value


def unnested(tree: Tree, params: Mapping[str, object]) -> Iterator[tuple[KeyPath, str, object]]:
    """Yield the key, the flat name and the value of each parameter of nested or flat params.

    Raises:
        InvalidKey: A name is not in the space, or its value does not match the structure.
    """
    yield from _unnested(tree, params, (), ())


def _unnested(
    tree: Tree, params: Mapping[str, object], key: KeyPath, path: tuple[str, ...]
) -> Iterator[tuple[KeyPath, str, object]]:
    for word, value in params.items():
        here, own = (*key, str(word)), (*path, str(word))
        name = ".".join(own)
        structure = tree.structure(name)
        if structure is not None:
            yield from _unnested_structure(tree, structure, value, here, own)
        elif tree.find(name) is not None:
            yield here, name, value
        elif isinstance(value, Mapping) and tree.is_group(name):
            yield from _unnested(tree, value, here, own)
        else:
            raise InvalidKey(here, "isn't a parameter", nearest(name, tree.some_names()))


def _unnested_structure(
    tree: Tree, structure: Structure, value: object, key: KeyPath, path: tuple[str, ...]
) -> Iterator[tuple[KeyPath, str, object]]:
    try:
        tag, groups = structure.unnest(value)
    except InvalidKey as error:
        raise error.under(key) from None
    if structure.tag is not None:
        yield key, ".".join(path), tag
    for inner, inside in groups.items():
        words: KeyPath = tuple(int(word) if word.isdecimal() else word for word in inner)
        own = path + inner
        beneath = tree.structure(".".join(own)) if inner else None
        if beneath is not None:
            yield from _unnested_structure(tree, beneath, inside, key + words, own)
        elif inner and tree.find(".".join(own)) is not None:
            yield key + words, ".".join(own), inside
        elif isinstance(inside, Mapping):
            yield from _unnested(tree, inside, key + words, own)
        else:
            raise InvalidKey(key + words, "must be a mapping of names to values")
