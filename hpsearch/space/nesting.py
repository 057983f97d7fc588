"""Points with flat names, and as trainables see them: groups and branches as mappings, copies as lists."""

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

__all__ = ["held", "nested", "unnested"]


def nested(declared: Sequence[Declared], flat: Params, path: tuple[str, ...] = (), canonical: bool = False) -> Value:
    """Give what was declared as a trainable sees it; what the point doesn't have is left out.

    Args:
        declared: A group, or a block that is nothing but one parameter.
        flat: Flat names to values.
        path: Where the group stands.
        canonical: Cells are given in the one way that equal ones share.
    """
    out: dict[str, Value] = {}
    for one in declared:
        value = held(one, flat, path, canonical)
        if value is ABSENT:
            continue
        if not one.path:
            return value
        group = out
        for inner in one.path[:-1]:
            group = group.setdefault(inner, {})
        group[one.path[-1]] = value
    return out


def held(one: Declared, flat: Params, path: tuple[str, ...] = (), canonical: bool = False) -> Value:
    """Give the value of what was declared as a trainable sees it; `ABSENT` where the point has none."""
    here = (*path, *one.path)
    if isinstance(one.holds, Structure):
        return _structure(one.holds, here, flat, canonical)
    return own_copy(flat.get(".".join(here), ABSENT))


def _structure(holds: Structure, path: tuple[str, ...], flat: Params, canonical: bool) -> Value:
    name = ".".join(path)
    tag = flat.get(name, ABSENT) if holds.tag is not None else None
    if tag is ABSENT:
        return ABSENT
    groups = {inner: nested(inside, flat, path + inner, canonical) for inner, inside in holds.groups(tag)}
    if holds.tag is None and not any(groups.values()):
        return ABSENT  # a group or a cell has a parameter wherever it applies, unless all of them have conditions
    value = holds.nest(tag, groups)
    return holds.canonical(value) if canonical and isinstance(holds, Cell) else value


def unnested(tree: Tree, params: Mapping[str, object]) -> Iterator[tuple[KeyPath, str, object]]:
    """Give each value with where it stands and its flat name; groups and structures may be nested, or flat.

    Raises:
        InvalidKey: A name isn't in the space, or what stands there isn't such a structure.
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
            yield from _taken(tree, structure, value, here, own)
        elif tree.find(name) is not None:
            yield here, name, value
        elif isinstance(value, Mapping) and tree.is_group(name):
            yield from _unnested(tree, value, here, own)
        else:
            raise InvalidKey(here, "isn't a parameter", nearest(name, tree.some_names()))


def _taken(
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
            yield from _taken(tree, beneath, inside, key + words, own)
        elif inner and tree.find(".".join(own)) is not None:
            yield key + words, ".".join(own), inside
        elif isinstance(inside, Mapping):
            yield from _unnested(tree, inside, key + words, own)
        else:
            raise InvalidKey(key + words, "must be a mapping of names to values")
