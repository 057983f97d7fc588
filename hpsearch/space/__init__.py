"""What may be tried: distributions of single parameters, structures that hold others, and the space they make up."""

from __future__ import annotations

from hpsearch.space.cell import Cell
from hpsearch.space.choices import Categorical, Constant, Ordinal
from hpsearch.space.declaring import When
from hpsearch.space.derived import Derived
from hpsearch.space.distribution import Distribution
from hpsearch.space.from_json import distribution_from_json
from hpsearch.space.normals import LogNormal, Normal
from hpsearch.space.parameter import Declared, Parameter
from hpsearch.space.ranges import IntUniform, LogIntUniform, LogUniform, Uniform
from hpsearch.space.space import Space
from hpsearch.space.structures import Chain, Choice, Repeat
from hpsearch.space.tree import Missing
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
    "Missing",
    "Normal",
    "Ordinal",
    "Parameter",
    "Repeat",
    "Space",
    "Uniform",
    "When",
    "distribution_from_json",
]
