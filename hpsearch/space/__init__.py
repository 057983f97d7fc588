"""What may be tried: distributions of single parameters, and the space that they make up."""

from __future__ import annotations

from hpsearch.space.choices import Categorical, Constant
from hpsearch.space.distribution import Distribution
from hpsearch.space.former import FormerSpace
from hpsearch.space.normals import LogNormal, Normal
from hpsearch.space.ranges import IntUniform, LogIntUniform, LogUniform, Uniform
from hpsearch.space.space import Parameter, Space, distribution_from_json

__all__ = [
    "Categorical",
    "Constant",
    "Distribution",
    "FormerSpace",
    "IntUniform",
    "LogIntUniform",
    "LogNormal",
    "LogUniform",
    "Normal",
    "Parameter",
    "Space",
    "Uniform",
    "distribution_from_json",
]
