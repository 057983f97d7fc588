"""The import path that designed networks had here: they are `hpsearch.design.designed_network`."""

from __future__ import annotations

from hpsearch.design.designed_network import DesignedNetwork, flops, parameter_count

__all__ = ["DesignedNetwork", "flops", "parameter_count"]
