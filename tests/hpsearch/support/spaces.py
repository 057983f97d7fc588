"""Random spaces, of all distributions that there are."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from hpsearch.space import (
    Categorical,
    Distribution,
    IntUniform,
    LogIntUniform,
    LogNormal,
    LogUniform,
    Normal,
    Ordinal,
    Space,
    Uniform,
)

VALUES: list[Any] = [True, 1, 1.0, "1", None, [1, 2], [1, 2.0], {"a": [1]}, -0.0, 0.0, "ä", 2**60, False]

_floats = st.floats(allow_nan=False, allow_infinity=False)
_places = st.floats(-100.0, 100.0)


@st.composite
def _ordered(draw, values) -> tuple[Any, Any]:
    low, high = draw(st.tuples(values, values).filter(lambda pair: pair[0] != pair[1]).map(sorted))
    return low, high


@st.composite
def _stepped(draw) -> Uniform:
    step = draw(st.sampled_from([0.1, 0.25, 0.7, 1e-3, 3]))
    first, count = draw(st.integers(-(10**7), 10**7)), draw(st.integers(0, 40))
    before, after = draw(st.floats(0.0, 0.9)), draw(st.floats(0.01, 0.9))
    least = (first - before) * step
    # Dust above the first multiple would leave it out.
    return Uniform(min(least, float(Decimal(str(step)) * first)), (first + count + after) * step, step=step)


@st.composite
def _choices(draw) -> Categorical:
    values = draw(st.lists(st.sampled_from(VALUES), min_size=1, max_size=5))
    if draw(st.booleans()):
        return Categorical(values)
    weights = draw(st.lists(st.integers(0, 3), min_size=len(values), max_size=len(values)).filter(any))
    return Categorical(values, [weight / sum(weights) for weight in weights])


_LENGTHS = st.integers(1, 10) | st.integers(1, 2**62 - 1)  # with an end of 2**62 they still fit 64 bits

FINITE = st.one_of(
    _choices(),
    st.builds(lambda low, n: IntUniform(low, low + n), st.integers(-(2**62), 2**62), st.integers(1, 4)),
    st.builds(lambda low, n: LogIntUniform(low, low + n), st.integers(1, 2**62), st.integers(1, 4)),
    st.builds(lambda first: Uniform(first * 0.1, first * 0.1 + 0.25, step=0.1), st.integers(-50, 50)),
    st.just(IntUniform(1, 2, step=2)),
    st.just(Normal(0.0, 0.1, step=1)),
    st.just(LogNormal(0.0, 0.1, step=2)),
)
"""Of few values; many draws give one that was drawn before."""


def distributions() -> st.SearchStrategy[Distribution]:
    """Any distribution of one parameter."""
    positive = st.floats(1e-300, 1e300)
    return st.one_of(
        FINITE,
        _ordered(_floats).map(lambda ends: Uniform(*ends)),
        _ordered(_places).map(lambda ends: Uniform(*ends)),
        _ordered(positive).filter(lambda ends: ends[1] > 2 * ends[0]).map(lambda ends: LogUniform(*ends)),
        st.just(LogUniform(0.05, 7.3, step=0.1)),
        _stepped(),
        st.builds(lambda low, n: IntUniform(low, low + n), st.integers(-(2**62), 2**62), _LENGTHS),
        st.builds(
            lambda low, n: IntUniform(low * 3 - 1, low * 3 + n, step=3), st.integers(-99, 99), st.integers(2, 99)
        ),
        st.builds(lambda low, n: LogIntUniform(low, low + n), st.integers(1, 2**62), _LENGTHS),
        st.just(LogIntUniform(17, 500, step=16)),
        st.just(LogIntUniform(1, 2**41, step=3)),
        st.builds(Normal, _places, st.floats(1e-3, 1e3), st.none() | st.sampled_from([0.1, 1])),
        st.builds(LogNormal, st.floats(-5.0, 5.0), st.floats(0.1, 3.0), st.none() | st.sampled_from([0.1, 1])),
    )


@st.composite
def spaces(draw, of: st.SearchStrategy[Distribution] | None = None, most: int = 5) -> Space:
    """Spaces with a constant and a nested group; at least two of their parameters are numbers that move."""
    drawn = draw(st.lists(of if of is not None else distributions(), max_size=most - 1))
    numbers = {"n": IntUniform(0, 2), "u": Uniform(0.0, 0.5, step=0.25)}
    found = {f"p{place}": one for place, one in enumerate(drawn)}
    return Space.from_parameters({**found, "constant": 3, "group": {**numbers, "inner": {"deep": [1, True]}}})


def in_order(space: Space) -> Space:
    """The same space, whose choices have an order: for who takes no others."""

    def ordered(known: Any) -> Any:
        return Ordinal(known.grid()) if type(known) is Categorical else known

    return Space(tuple(replace(one, holds=ordered(one.holds)) for one in space.declared), space.constraints)
