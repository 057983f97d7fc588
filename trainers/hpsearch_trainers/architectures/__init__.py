"""Networks whose architecture is a value, such as a sweep's structures.

`network` builds the torch module, `architecture_of` returns what it was built from, `costs` its costs without building
it, `layers` its parts, and `standalone` a Python file that needs only torch. `operation` registers operations.
"""

from __future__ import annotations

from hpsearch_trainers.architectures.costs import Costs, costs
from hpsearch_trainers.architectures.errors import ArchitectureError
from hpsearch_trainers.architectures.layers import Layer, layers
from hpsearch_trainers.architectures.network import architecture_of, network, shape_after, weights_in
from hpsearch_trainers.architectures.registry import OPERATIONS, operation
from hpsearch_trainers.architectures.shapes import Shape
from hpsearch_trainers.architectures.standalone import standalone

__all__ = [
    "OPERATIONS",
    "ArchitectureError",
    "Costs",
    "Layer",
    "Shape",
    "architecture_of",
    "costs",
    "layers",
    "network",
    "operation",
    "shape_after",
    "standalone",
    "weights_in",
]
