"""Simulations of trials without training: recorded tables, and models in Python.

The simulated backend runs them on a virtual clock. `hpsearch.simulation.table.Table` takes arrays.
"""

from __future__ import annotations

from hpsearch.simulation.curves import Curve, Curves
from hpsearch.simulation.simulation import Simulation, Step
from hpsearch.simulation.steps import Steps

__all__ = ["Curve", "Curves", "Simulation", "Step", "Steps"]
