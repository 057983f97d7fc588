"""Simulations of trials without training: recorded tables, and models in Python.

The simulated backend runs them on a virtual clock. To use recorded arrays, create a `hpsearch.simulation.table.Table`.
"""

from __future__ import annotations

from hpsearch.simulation.simulation import Curve, Curves, Simulation, Step, Steps

__all__ = ["Curve", "Curves", "Simulation", "Step", "Steps"]
