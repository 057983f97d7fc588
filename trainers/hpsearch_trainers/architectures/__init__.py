"""Networks whose architecture is a value, such as a sweep's structures give to a trainable.

`network` makes the torch module, `architecture_of` says what it was made from, `costs` what it costs before there is
one, `layers` what each part of it is, and `standalone` writes it down as a Python file that needs torch alone.
`operation` adds to what there is.
"""

from __future__ import annotations

from hpsearch_trainers.architectures.costs import Costs, costs
from hpsearch_trainers.architectures.errors import ArchitectureError
from hpsearch_trainers.architectures.layers import Layer, layers
from hpsearch_trainers.architectures.network import network, shape_after
from hpsearch_trainers.architectures.recorded import architecture_of, weights_in
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
