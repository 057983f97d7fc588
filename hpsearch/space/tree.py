"""The parameters of a space as a tree: lookup by name, order, validation of names and expressions, nested params.

In nested params, groups and branches are mappings, and copies are lists; flat names are their paths.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

from hpsearch.config.checks import InvalidKey, KeyPath, nearest, under
from hpsearch.space.cell import Cell
from hpsearch.space.choices import Categorical
from hpsearch.space.declarations import check_name
from hpsearch.space.derived import Derived
from hpsearch.space.distribution import Distribution, own_copy
from hpsearch.space.expressions import ABSENT, Expression
from hpsearch.space.parameter import END, Declared, Parameter, Position, Structure
from hpsearch.trial import Params, Value

_MOST_PARAMETERS = 10_000

_DEEPEST = 20
"""Maximum depth of nested structures."""

_MOST_NAMES = 1_000
"""Maximum number of names to search for one similar to a misspelt name."""


class MissingParameter(InvalidKey):
    """A configuration lacks an active parameter."""


@dataclass(frozen=True)
class _Node:
    """The parameter or structure of a flat name."""

    path: tuple[str, ...]
    position: Position
    declared: Declared

    @property
    def has_value(self) -> bool:
        """Whether a configuration can have a value under this name."""
        return not isinstance(self.declared.holds, Structure) or self.declared.holds.tag is not None


@dataclass(frozen=True)
class Tree:
    """The declared parameters and structures of a space, and the constraints on configurations.

    Raises:
        InvalidKey: Names clash, or an expression names an unknown parameter, or one that is not above it.
    """

    declared: tuple[Declared, ...]
    constraints: tuple[Expression, ...] = ()

    def __post_init__(self) -> None:
        if not self.declared:
            raise InvalidKey((), "must hold at least one parameter, got none")
        self._check_declared(self.declared, (), ())
        if _count(self.declared, {}) > _MOST_PARAMETERS:
            raise InvalidKey((), f"must hold at most {_MOST_PARAMETERS:,} parameters, copies counted")
        for index, constraint in enumerate(self.constraints):
            self._check_names(constraint, (), (END,), ("constraints", index))

    @cached_property
    def _nodes(self) -> dict[str, _Node | None]:
        """Parameters and structures by flat name, added on demand."""
        return {}

    @cached_property
    def _resolutions(self) -> dict[tuple[str, tuple[str, ...]], _Node | None]:
        """(name in an expression, scope) to the parameter or structure that it refers to, added on demand."""
        return {}

    @cached_property
    def _leaves(self) -> dict[tuple[str, ...], Parameter]:
        """Parameters by path, added on demand."""
        return {}

    @cached_property
    def calls(self) -> bool:
        """Whether a derived value is computed by a function, which may be slow."""
        return any(isinstance(item.holds, Derived) and item.holds.function is not None for item in self.declared)

    @cached_property
    def unbounded(self) -> tuple[str, ...] | None:
        """The path of a structure with an unbounded number of groups; None if there is none."""
        everything = self.everything()
        return next(
            (path for path, item in everything if isinstance(item.holds, Structure) and not item.holds.bounded), None
        )

    @property
    def bounded(self) -> bool:
        """Whether the number of parameters is bounded."""
        return self.unbounded is None

    @cached_property
    def conditional(self) -> bool:
        """Whether there are conditional parameters."""
        return self.unbounded is not None or len(self.always) < len(self.parameters)

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """All possible parameters in order: those of all branches and copies.

        Raises:
            InvalidKey: A structure is unbounded.
        """
        if self.unbounded is not None:
            raise InvalidKey((*self.unbounded, "max"), "is required where all parameters are to be listed")
        return tuple(leaf for leaf, _ in self._possible(self.declared, (), False))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The flat names of `parameters`.

        Raises:
            InvalidKey: A block is repeated without a bound.
        """
        return tuple(parameter.name for parameter in self.parameters)

    @cached_property
    def always(self) -> frozenset[str]:
        """Names of the parameters that are always active."""
        return frozenset(leaf.name for leaf, certain in self._possible(self.declared, (), True) if certain)

    @cached_property
    def has_priors(self) -> bool:
        """Whether a parameter has a prior."""
        return any(
            not isinstance(item.holds, Structure) and item.holds.prior is not None for _, item in self.everything()
        )

    def everything(
        self, declared: Sequence[Declared] | None = None, path: tuple[str, ...] = ()
    ) -> Iterator[tuple[tuple[str, ...], Declared]]:
        """Yield all declarations with their paths, or those of a group, nested ones included, each block once."""
        for item in self.declared if declared is None else declared:
            here = (*path, *item.path)
            yield here, item
            if isinstance(item.holds, Structure):
                for inner, inside in {
                    id(inside): (inner, inside) for inner, inside in item.holds.every_group()
                }.values():
                    yield from self.everything(inside, here + inner)

    def some_names(self) -> list[str]:
        """Return the flat names of up to 1,000 parameters; of an unbounded block, those of the first copies."""
        return [leaf.name for leaf, _ in islice(self._possible(self.declared, (), False), _MOST_NAMES)]

    def find(self, name: str) -> Parameter | None:
        """Return the parameter of a flat name; None if there is none."""
        node = self._node(name)
        return None if node is None or "*" in node.path else self._own_parameter(node.path, node.declared.holds)

    def structure(self, name: str) -> Structure | None:
        """Return the structure of a flat name; None if there is none."""
        node = self._node(name)
        return node.declared.holds if node is not None and isinstance(node.declared.holds, Structure) else None

    def position(self, name: str) -> Position:
        """Return the position of a parameter in the order of the space; unknown names are last."""
        node = self._node(name)
        return (END,) if node is None else node.position

    def resolved(self, name: str, scope: tuple[str, ...]) -> tuple[str, ...]:
        """Return the path that a name in an expression refers to."""
        node = self._resolved(name, scope)
        assert node is not None  # checked when the space was built
        return node.path

    def _resolved(self, name: str, scope: tuple[str, ...]) -> _Node | None:
        """Look a name up in the scope of the expression, then in the enclosing ones, up to the top."""
        key = (name, scope)
        if key not in self._resolutions:
            names = [".".join((*scope[:depth], name)) for depth in range(len(scope), -1, -1)]
            nodes = (node for node in map(self._node, names) if node is not None and node.has_value)
            self._resolutions[key] = next(nodes, None)
        return self._resolutions[key]

    def _node(self, name: str) -> _Node | None:
        if name not in self._nodes:
            self._nodes[name] = self._follow(tuple(name.split(".")), self.declared, (), ())
        return self._nodes[name]

    def _follow(
        self, parts: tuple[str, ...], declared: Sequence[Declared], path: tuple[str, ...], position: Position
    ) -> _Node | None:
        for index, item in enumerate(declared):
            prefix = item.parts
            if parts[: len(prefix)] != prefix:
                continue
            here, at, remaining = (*path, *item.path), (*position, index), parts[len(prefix) :]
            if not remaining:
                return _Node(here, at, item)
            entered = item.holds.enter(remaining) if isinstance(item.holds, Structure) else None
            if entered is not None:
                copy, inner, inside, used = entered
                node = self._follow(remaining[used:], inside, here + inner, (*at, copy))
                if node is not None:
                    return node
        return None

    def unnested(
        self, params: Mapping[str, object], key: KeyPath = (), path: tuple[str, ...] = ()
    ) -> Iterator[tuple[KeyPath, str, object]]:
        """Yield the key, the flat name and the value of each parameter of nested or flat params.

        Args:
            params: A group.
            key: The key of the group.
            path: The path of the group in the space.

        Raises:
            InvalidKey: A name is not in the space, or its value does not match the structure.
        """
        for word, value in params.items():
            here, inner_path = (*key, str(word)), (*path, str(word))
            name = ".".join(inner_path)
            structure = self.structure(name)
            if structure is not None:
                yield from self._unnested_structure(structure, value, here, inner_path)
            elif self.find(name) is not None:
                yield here, name, value
            elif isinstance(value, Mapping) and (value or any(n.startswith(f"{name}.") for n in self.some_names())):
                yield from self.unnested(value, here, inner_path)
            else:
                raise InvalidKey(here, "isn't a parameter", nearest(name, self.some_names()))

    def _unnested_structure(
        self, structure: Structure, value: object, key: KeyPath, path: tuple[str, ...]
    ) -> Iterator[tuple[KeyPath, str, object]]:
        with under(key):
            tag, groups = structure.unnest(value)
        if structure.tag is not None:
            yield key, ".".join(path), tag
        for inner, inside in groups.items():
            inner_key: KeyPath = tuple(int(word) if word.isdecimal() else word for word in inner)
            inner_path = path + inner
            beneath = self.structure(".".join(inner_path)) if inner else None
            if beneath is not None:
                yield from self._unnested_structure(beneath, inside, key + inner_key, inner_path)
            elif inner and self.find(".".join(inner_path)) is not None:
                yield key + inner_key, ".".join(inner_path), inside
            elif isinstance(inside, Mapping):
                yield from self.unnested(inside, key + inner_key, inner_path)
            else:
                raise InvalidKey(key + inner_key, "must be a mapping of names to values")

    def parameter(self, path: tuple[str, ...], distribution: Distribution, holder: Structure | None) -> Parameter:
        """Return the parameter of a path, the same object each time."""
        parameter = self._leaves.get(path)
        if parameter is None:
            parameter = self._leaves[path] = Parameter(path, distribution, holder)
        return parameter

    def _own_parameter(self, path: tuple[str, ...], holds: Distribution | Structure) -> Parameter | None:
        """Return the parameter of a declaration itself; None for a structure without a tag."""
        if not isinstance(holds, Structure):
            return self.parameter(path, holds, None)
        return None if holds.tag is None else self.parameter(path, holds.tag, holds)

    def _possible(
        self, declared: Sequence[Declared], path: tuple[str, ...], certain: bool
    ) -> Iterator[tuple[Parameter, bool]]:
        """Yield each possible parameter, and whether it is always active."""
        for item in declared:
            here, holds = (*path, *item.path), item.holds
            sure = certain and item.when is None
            parameter = self._own_parameter(here, holds)
            if parameter is not None:
                yield parameter, sure
            if not isinstance(holds, Structure):
                continue
            least = {inner for inner, _ in holds.certain_groups()} if sure else set()
            for inner, inside in holds.every_group():
                yield from self._possible(inside, here + inner, inner in least)

    def _check_declared(
        self, declared: Sequence[Declared], path: tuple[str, ...], position: Position, names_own: bool = False
    ) -> None:
        """Check names and expressions; of several copies, only the first and the last."""
        if len(position) > 2 * _DEEPEST:
            raise InvalidKey(path[:3], f"must not be nested deeper than {_DEEPEST} structures")
        if not names_own:
            _check_names(declared, path)
        for index, item in enumerate(declared):
            here, at = (*path, *item.path), (*position, index)
            if item.when is not None:
                self._check_names(item.when, here[:-1], at, (*here, "when"))
            if isinstance(item.holds, Derived) and item.holds.function is None:
                self._check_names(item.holds.parsed, here[:-1], at, here)
            elif isinstance(item.holds, Derived) and len(position) > 0:
                problem = "must be at the top level if it is a function: it gets all parameters above it"
                raise InvalidKey(here, problem, "move it out of the structure, and below it")
            if isinstance(item.holds, Structure):
                groups = list(enumerate(item.holds.every_group()))
                are_equal = len({id(inside) for _, (_, inside) in groups}) == 1
                for copy, (inner, inside) in groups[:: max(len(groups) - 1, 1)] if are_equal else groups:
                    self._check_declared(inside, here + inner, (*at, copy), item.holds.names_own)

    def _check_names(self, expression: Expression, scope: tuple[str, ...], position: Position, key: KeyPath) -> None:
        for name in expression.names:
            node = self._resolved(name, scope)
            if node is None:
                raise InvalidKey(key, f"must name parameters, but {name} isn't one", nearest(name, self.some_names()))
            if node.position >= position:
                problem = f"must name parameters that are above it, but {name} isn't"
                raise InvalidKey(key, problem, f"move {name} up")
        for name, value in expression.compared:
            self._check_compared(name, value, scope, key)

    def _check_compared(self, name: str, value: Value, scope: tuple[str, ...], key: KeyPath) -> None:
        """Raise an InvalidKey if a choice is compared with a value it never has: it is probably misspelt."""
        node = self._resolved(name, scope)
        assert node is not None
        parameter = self._own_parameter(node.path, node.declared.holds)
        choices = None if parameter is None else parameter.distribution
        if not isinstance(choices, Categorical):
            return
        try:
            choices.accept(value)
        except InvalidKey as error:
            texts = [choice for choice in choices.grid() if isinstance(choice, str)]
            advice = nearest(value, texts) if isinstance(value, str) and texts else ""
            raise InvalidKey(key, f"must compare {name} with what it may be: it {error.problem}", advice) from None


def _count(declared: Sequence[Declared], counts: dict[int, int]) -> int:
    """Count the possible parameters; of an unbounded block, one copy more than the minimum."""
    if id(declared) not in counts:
        count = 0
        for item in declared:
            holds = item.holds
            count += not isinstance(holds, Structure) or holds.tag is not None
            if isinstance(holds, Structure):
                count += sum(_count(inside, counts) for _, inside in holds.every_group())
        counts[id(declared)] = count
    return counts[id(declared)]


def _check_names(declared: Sequence[Declared], path: tuple[str, ...]) -> None:
    by_name: dict[str, Declared] = {}
    for item in declared:
        for name in item.path:
            check_name(name, (*path, *item.path))
        name = ".".join(item.path)
        other = by_name.setdefault(name, item)
        if other is not item:
            raise InvalidKey(
                (*path, *item.path),
                f"has the same flat name ({'.'.join((*path, *item.path))}) as another parameter",
                "rename one: a dot in a name and a nested group can't be told apart in tables",
            )
    groups = {item.path[:depth] for item in declared for depth in range(1, len(item.path))}
    for item in declared:
        if item.path in groups:
            raise InvalidKey((*path, *item.path), "can't be a parameter and a group at once")
        if isinstance(item.holds, Structure):
            inside = next((name for name in by_name if name.startswith(f"{'.'.join(item.path)}.")), None)
            if inside is not None and item.path:
                problem = f"has the name of what {'.'.join(item.path)} holds ({inside})"
                raise InvalidKey((*path, *by_name[inside].path), problem, "rename one")


def nested(declared: Sequence[Declared], flat: Params, path: tuple[str, ...] = (), canonical: bool = False) -> Value:
    """Return params as a trainable gets them, without inactive parameters.

    Args:
        declared: A group, or a block of one unnamed parameter.
        flat: Flat names to values.
        path: Path of the group.
        canonical: Return cells in canonical form.
    """
    out: dict[str, Value] = {}
    for item in declared:
        value = nested_value(item, flat, path, canonical)
        if value is ABSENT:
            continue
        if not item.path:
            return value
        group = out
        for inner in item.path[:-1]:
            group = group.setdefault(inner, {})
        group[item.path[-1]] = value
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
