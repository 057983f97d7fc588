"""The search space: distributions of parameters, structures of parameters, and `Space`, which holds them."""

from __future__ import annotations

from hpsearch.space.cell import Cell
from hpsearch.space.choices import Categorical, Constant, Ordinal
from hpsearch.space.declarations import When
from hpsearch.space.derived import Derived
from hpsearch.space.distribution import Distribution
from hpsearch.space.numbers import IntUniform, LogIntUniform, LogNormal, LogUniform, Normal, Uniform, ZeroOrLogUniform
from hpsearch.space.parameter import Declared, Parameter
from hpsearch.space.space import Space, distribution_from_json
from hpsearch.space.structures import Chain, Choice, Repeat
from hpsearch.space.tree import MissingParameter
from hpsearch.space.walk import Broken

__all__ = [
    "Broken",
    "Categorical",
    "Cell",
    "Chain",
    "Choice",
    "Constant",
    "Declared",
    "Derived",
    "Distribution",
    "IntUniform",
    "LogIntUniform",
    "LogNormal",
    "LogUniform",
    "MissingParameter",
    "Normal",
    "Ordinal",
    "Parameter",
    "Repeat",
    "Space",
    "Uniform",
    "When",
    "ZeroOrLogUniform",
    "distribution_from_json",
]
