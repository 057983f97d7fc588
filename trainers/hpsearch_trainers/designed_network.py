"""Former import path of `hpsearch.design.designed_network`."""

from __future__ import annotations

from hpsearch.design.designed_network import DesignedNetwork, flops, parameter_count

__all__ = ["DesignedNetwork", "flops", "parameter_count"]
