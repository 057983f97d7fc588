"""Random spaces whose parameters hang on each other: structures in structures, conditions, derived values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from hpsearch.space import (
    Categorical,
    Cell,
    Chain,
    Choice,
    Derived,
    IntUniform,
    LogUniform,
    Ordinal,
    Repeat,
    Space,
    Uniform,
    When,
)

FINITE_LEAVES: list[Any] = [
    [1, 2],
    ["a", "b", "c"],
    Ordinal([8, 16, 32]),
    IntUniform(1, 3),
    5,
    Categorical([True, 1, [2]], [0.5, 0.5, 0.0]),
    Uniform(0, 1, step=0.5),
]
LEAVES = [*FINITE_LEAVES, Uniform(0.0, 1.0), LogUniform(1e-4, 1.0)]

_NUMBERS = {IntUniform, Uniform, LogUniform}


@dataclass
class _Made:
    """What stands above: names that an expression may use, from the place where it stands."""

    numbers: list[str] = field(default_factory=list)
    tags: list[tuple[str, str]] = field(default_factory=list)
    """A name and one of the texts that it may be."""
    copies: list[str] = field(default_factory=list)
    """Numbers inside of copies, as lists."""


@st.composite
def trees(
    draw: Callable[..., Any], finite: bool = False, bounded: bool = True, most: int = 4, constrained: bool = True
):
    """Spaces of up to `most` structures and leaves on each of three levels."""
    made = _Made()
    given = _group(draw, made, finite, bounded, most, 2)
    constraints = []
    if constrained and made.numbers and draw(st.booleans()):
        name = draw(st.sampled_from(made.numbers))
        constraints.append(f"{name} < {draw(st.sampled_from([0.7, 2.5, 20]))} or {name} > 2")
    if constrained and made.copies and draw(st.booleans()):
        constraints.append(f"sum({draw(st.sampled_from(made.copies))}) <= {draw(st.sampled_from([4, 40, 90]))}")
    return Space.from_parameters(given, constraints)


def _group(draw: Callable[..., Any], made: _Made, finite: bool, bounded: bool, most: int, deep: int) -> dict[str, Any]:
    """A mapping of parameters; `made` holds what an expression in it may name, by flat names as seen from here."""
    given: dict[str, Any] = {}
    for place in range(draw(st.integers(1, most))):
        name = f"p{place}"
        condition = _condition(draw, made)
        given[name] = _parameter(draw, made, name, finite, bounded, most, deep, condition is not None)
        if condition is not None:
            given[name] = When(condition, given[name])
    return given


def _condition(draw: Callable[..., Any], made: _Made) -> str | None:
    if not draw(st.integers(0, 3)) and made.numbers:
        return f"{draw(st.sampled_from(made.numbers))} > {draw(st.sampled_from([0.3, 1.5, 8]))}"
    if not draw(st.integers(0, 3)) and made.tags:
        name, text = draw(st.sampled_from(made.tags))
        return f"{name} == {text!r}"
    return None


def _parameter(
    draw: Callable[..., Any],
    made: _Made,
    name: str,
    finite: bool,
    bounded: bool,
    most: int,
    deep: int,
    conditional: bool,
) -> Any:
    kinds = ["leaf", "leaf", "derived"]
    if deep:
        kinds += ["group", "choice", "repeat", "numbers", "chain", "edges", "nodes"]
    kind = draw(st.sampled_from(kinds))
    below = max(most - 1, 1)

    def inner() -> dict[str, Any]:
        return _group(draw, _Made(), finite, bounded, below, deep - 1)

    def branches() -> dict[str, Any]:
        return {branch: inner() if draw(st.booleans()) else {} for branch in draw(st.sampled_from([["x"], ["x", "y"]]))}

    def bounds() -> dict[str, Any]:
        least = draw(st.integers(0, 2))
        return {
            "min": least,
            "max": None if not bounded and draw(st.booleans()) else max(least, 1) + draw(st.integers(0, 1)),
        }

    match kind:
        case "derived" if made.numbers:
            return Derived(f"{draw(st.sampled_from(made.numbers))} * 2")
        case "group":
            return inner()
        case "choice":
            found = branches()
            made.tags += [(name, branch) for branch in found]
            return Choice(found)
        case "repeat":
            made.numbers.append(name)
            return Repeat(inner(), **bounds())
        case "numbers":
            made.numbers.append(name)
            made.copies.append(f"{name}.*")
            return Repeat(Ordinal([8, 16, 32]), **bounds())
        case "chain":
            made.numbers.append(name)
            return Chain(draw(st.sampled_from([["a", "b"], branches()])), **bounds())
        case "edges":
            return Cell(draw(st.sampled_from([["skip", "none"], branches()])), draw(st.integers(2, 3)))
        case "nodes":
            operations = draw(st.sampled_from([["skip", "none"], branches()]))
            return Cell(operations, draw(st.integers(1, 2)), "node", draw(st.integers(1, 2)))
    leaf = draw(st.sampled_from(FINITE_LEAVES if finite else LEAVES))
    if type(leaf) in _NUMBERS or isinstance(leaf, Ordinal):
        made.numbers.append(name)
    if leaf == ["a", "b", "c"]:
        made.tags += [(name, "a"), (name, "c")]
    return leaf
