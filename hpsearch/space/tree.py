"""The parameters of a space as a tree: which there are at a point, where each stands, and what is said of others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

from hpsearch.config.checks import InvalidKey, KeyPath, nearest
from hpsearch.space.choices import Categorical
from hpsearch.space.declaring import check_name
from hpsearch.space.derived import Derived
from hpsearch.space.distribution import Distribution
from hpsearch.space.expressions import Expression
from hpsearch.space.parameter import END, Declared, Parameter, Place, Structure
from hpsearch.trial import Value

__all__ = ["Missing", "Tree"]

_MOST_PARAMETERS = 10_000

_DEEPEST = 20
"""Structures in each other."""

_MOST_NAMES = 1_000
"""Among which a misspelt one is looked for."""


class Missing(InvalidKey):
    """A point lacks a parameter that applies."""


@dataclass(frozen=True)
class _Found:
    """What a flat name means."""

    path: tuple[str, ...]
    place: Place
    declared: Declared

    @property
    def has_value(self) -> bool:
        """Whether a point has a value under this name."""
        return not isinstance(self.declared.holds, Structure) or self.declared.holds.tag is not None


class Tree:
    """Walks through what was declared.

    Raises:
        InvalidKey: Names clash, or an expression names what isn't there, or doesn't stand above it.
    """

    def __init__(self, declared: tuple[Declared, ...], constraints: Sequence[Expression]) -> None:
        self.declared = declared
        self._known: dict[str, _Found | None] = {}
        self._read_as: dict[tuple[str, tuple[str, ...]], _Found | None] = {}
        self._leaves: dict[tuple[str, ...], Parameter] = {}
        self._check(declared, (), ())
        if _count(declared, {}) > _MOST_PARAMETERS:
            raise InvalidKey((), f"must hold at most {_MOST_PARAMETERS:,} parameters, copies counted")
        for place, constraint in enumerate(constraints):
            self._check_names(constraint, (), (END,), ("constraints", place))

    @cached_property
    def calls(self) -> bool:
        """Whether a derived value is a function's, which may take its time."""
        return any(isinstance(one.holds, Derived) and one.holds.function is not None for one in self.declared)

    @cached_property
    def unbounded(self) -> tuple[str, ...] | None:
        """The path of a structure whose groups can't be listed; None: all parameters that there may be can."""
        return self._unbounded(self.declared, ())

    def _unbounded(self, declared: Sequence[Declared], path: tuple[str, ...]) -> tuple[str, ...] | None:
        for one in declared:
            if not isinstance(one.holds, Structure):
                continue
            here = (*path, *one.path)
            if not one.holds.bounded:
                return here
            for inner, inside in {id(inside): (inner, inside) for inner, inside in one.holds.every_group()}.values():
                found = self._unbounded(inside, here + inner)
                if found is not None:
                    return found
        return None

    @cached_property
    def conditional(self) -> bool:
        """Whether there are parameters that some points have and others don't."""
        return self.unbounded is not None or len(self.always) < len(self.parameters)

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """All that there may be, in order.

        Raises:
            InvalidKey: They have no end.
        """
        if self.unbounded is not None:
            raise InvalidKey((*self.unbounded, "max"), "is required where all parameters are to be listed")
        return tuple(leaf for leaf, _ in self._every(self.declared, (), False))

    @cached_property
    def always(self) -> frozenset[str]:
        """Names of the parameters that every point has."""
        return frozenset(leaf.name for leaf, certain in self._every(self.declared, (), True) if certain)

    @cached_property
    def has_priors(self) -> bool:
        """Whether a good value is believed to be known of some parameter."""
        return any(not isinstance(one.holds, Structure) and one.holds.prior is not None for one in self.everything())

    def everything(self) -> Iterator[Declared]:
        """Give what was declared, and what is declared inside, each block once."""
        return _everything(self.declared)

    def some_names(self) -> list[str]:
        """Give flat names of parameters, all of them where they are few."""
        return [leaf.name for leaf, _ in islice(self._every(self.declared, (), False), _MOST_NAMES)]

    def find(self, name: str) -> Parameter | None:
        """Give the parameter of a flat name."""
        found = self._found(name)
        return None if found is None or "*" in found.path else self._own(found.path, found.declared.holds)

    def structure(self, name: str) -> Structure | None:
        """Give the structure of this flat name."""
        found = self._found(name)
        return found.declared.holds if found is not None and isinstance(found.declared.holds, Structure) else None

    def is_group(self, name: str) -> bool:
        """Say whether this is the name of a group, and so the beginning of others."""
        return self._begins(tuple(name.split(".")), self.declared)

    def place(self, name: str) -> Place:
        """Give where a parameter stands in the order; what isn't one stands last."""
        found = self._found(name)
        return (END,) if found is None else found.place

    def resolved(self, name: str, scope: tuple[str, ...]) -> tuple[str, ...]:
        """Give the path of what a name means to an expression."""
        found = self._resolved(name, scope)
        assert found is not None  # checked when the space was built
        return found.path

    def _resolved(self, name: str, scope: tuple[str, ...]) -> _Found | None:
        """Find it: first beside the expression, then in what is around, up to the top."""
        known = (name, scope)
        if known not in self._read_as:
            names = [".".join((*scope[:depth], name)) for depth in range(len(scope), -1, -1)]
            found = (found for found in map(self._found, names) if found is not None and found.has_value)
            self._read_as[known] = next(found, None)
        return self._read_as[known]

    def _found(self, name: str) -> _Found | None:
        if name not in self._known:
            self._known[name] = self._follow(tuple(name.split(".")), self.declared, (), ())
        return self._known[name]

    def _follow(
        self, parts: tuple[str, ...], declared: Sequence[Declared], path: tuple[str, ...], place: Place
    ) -> _Found | None:
        for number, one in enumerate(declared):
            words = one.parts
            if parts[: len(words)] != words:
                continue
            here, at, rest = (*path, *one.path), (*place, number), parts[len(words) :]
            if not rest:
                return _Found(here, at, one)
            entered = one.holds.enter(rest) if isinstance(one.holds, Structure) else None
            if entered is not None:
                copy, inner, inside, used = entered
                found = self._follow(rest[used:], inside, here + inner, (*at, copy))
                if found is not None:
                    return found
        return None

    def _begins(self, parts: tuple[str, ...], declared: Sequence[Declared]) -> bool:
        """Say whether these are the first parts of a flat name."""
        for one in declared:
            words = one.parts
            if parts == words[: len(parts)]:
                return True
            rest = parts[len(words) :]
            entered = None
            if parts[: len(words)] == words and isinstance(one.holds, Structure):
                entered = one.holds.enter(rest)
            if entered is not None and self._begins(rest[entered[3] :], entered[2]):
                return True
        return False

    def parameter(self, path: tuple[str, ...], distribution: Distribution, holder: Structure | None) -> Parameter:
        """Give the parameter of a path, one and the same each time."""
        known = self._leaves.get(path)
        if known is None:
            known = self._leaves[path] = Parameter(path, distribution, holder)
        return known

    def _own(self, path: tuple[str, ...], holds: Distribution | Structure) -> Parameter | None:
        """Give the parameter that stands under this very name; None: a structure decides nothing first."""
        if not isinstance(holds, Structure):
            return self.parameter(path, holds, None)
        return None if holds.tag is None else self.parameter(path, holds.tag, holds)

    def _every(
        self, declared: Sequence[Declared], path: tuple[str, ...], certain: bool
    ) -> Iterator[tuple[Parameter, bool]]:
        """Give each parameter that there may be, and whether every point has it."""
        for one in declared:
            here, holds = (*path, *one.path), one.holds
            sure = certain and one.when is None
            own = self._own(here, holds)
            if own is not None:
                yield own, sure
            if not isinstance(holds, Structure):
                continue
            least = {inner for inner, _ in holds.certain_groups()} if sure else set()
            for inner, inside in holds.every_group():
                yield from self._every(inside, here + inner, inner in least)

    def _check(self, declared: Sequence[Declared], path: tuple[str, ...], place: Place, own: bool = False) -> None:
        """Check names and expressions; of many copies the first and the last."""
        if len(place) > 2 * _DEEPEST:
            raise InvalidKey(path[:3], f"must not be nested deeper than {_DEEPEST} structures")
        if not own:
            _check_names(declared, path)
        for number, one in enumerate(declared):
            here, at = (*path, *one.path), (*place, number)
            if one.when is not None:
                self._check_names(one.when, here[:-1], at, (*here, "when"))
            if isinstance(one.holds, Derived) and one.holds.function is None:
                self._check_names(one.holds.parsed, here[:-1], at, here)
            elif isinstance(one.holds, Derived) and len(place) > 0:
                problem = "must stand at the top where it is a function's: it is given all that stands above it"
                raise InvalidKey(here, problem, "move it out of what it stands in, and behind that")
            if isinstance(one.holds, Structure):
                groups = list(enumerate(one.holds.every_group()))
                alike = len({id(inside) for _, (_, inside) in groups}) == 1
                for copy, (inner, inside) in groups[:: max(len(groups) - 1, 1)] if alike else groups:
                    self._check(inside, here + inner, (*at, copy), one.holds.names_own)

    def _check_names(self, expression: Expression, scope: tuple[str, ...], place: Place, key: KeyPath) -> None:
        for name in expression.names:
            found = self._resolved(name, scope)
            if found is None:
                raise InvalidKey(key, f"must name parameters, but {name} isn't one", nearest(name, self.some_names()))
            if found.place >= place:
                problem = f"must name parameters that stand above it, but {name} doesn't"
                raise InvalidKey(key, problem, f"move {name} up")
        for name, value in expression.compared:
            self._check_compared(name, value, scope, key)

    def _check_compared(self, name: str, value: Value, scope: tuple[str, ...], key: KeyPath) -> None:
        """Refuse what a choice is said to be and never is: a misspelt value would make a condition false for ever."""
        found = self._resolved(name, scope)
        assert found is not None
        own = self._own(found.path, found.declared.holds)
        choices = None if own is None else own.distribution
        if not isinstance(choices, Categorical):
            return
        try:
            choices.accept(value)
        except InvalidKey as error:
            texts = [known for known in choices.grid() if isinstance(known, str)]
            advice = nearest(value, texts) if isinstance(value, str) and texts else ""
            raise InvalidKey(key, f"must compare {name} with what it may be: it {error.problem}", advice) from None


def _everything(declared: Sequence[Declared]) -> Iterator[Declared]:
    """Give what was declared, and what is declared inside, each block once."""
    for one in declared:
        yield one
        if isinstance(one.holds, Structure):
            for inside in {id(inside): inside for _, inside in one.holds.every_group()}.values():
                yield from _everything(inside)


def _count(declared: Sequence[Declared], known: dict[int, int]) -> int:
    """Count the parameters that there may be; of an unbounded block a copy more than there are at least."""
    if id(declared) not in known:
        count = 0
        for one in declared:
            holds = one.holds
            count += not isinstance(holds, Structure) or holds.tag is not None
            if isinstance(holds, Structure):
                count += sum(_count(inside, known) for _, inside in holds.every_group())
        known[id(declared)] = count
    return known[id(declared)]


def _check_names(declared: Sequence[Declared], path: tuple[str, ...]) -> None:
    seen: dict[str, Declared] = {}
    for one in declared:
        for name in one.path:
            check_name(name, (*path, *one.path))
        name = ".".join(one.path)
        other = seen.setdefault(name, one)
        if other is not one:
            raise InvalidKey(
                (*path, *one.path),
                f"has the same flat name ({'.'.join((*path, *one.path))}) as another parameter",
                "rename one: a dot in a name and a nested group can't be told apart in tables",
            )
    groups = {one.path[:depth] for one in declared for depth in range(1, len(one.path))}
    for one in declared:
        if one.path in groups:
            raise InvalidKey((*path, *one.path), "can't be a parameter and a group at once")
        if isinstance(one.holds, Structure):
            inside = next((name for name in seen if name.startswith(f"{'.'.join(one.path)}.")), None)
            if inside is not None and one.path:
                problem = f"has the name of what {'.'.join(one.path)} holds ({inside})"
                raise InvalidKey((*path, *seen[inside].path), problem, "rename one")
