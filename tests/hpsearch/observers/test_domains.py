from __future__ import annotations

import math

from hpsearch.observers.domains import Choices, Interval, domains_of
from hpsearch.space import (
    Categorical,
    Constant,
    IntUniform,
    LogIntUniform,
    LogNormal,
    LogUniform,
    Normal,
    Space,
    Uniform,
)


def test_every_distribution_has_a_domain_under_its_flat_name():
    space = Space.from_parameters(
        {
            "opt": {"lr": LogUniform(1e-4, 1.0), "momentum": Uniform(0.0, 0.9, step=0.1)},
            "layers": IntUniform(1, 9),
            "width": LogIntUniform(8, 512),
            "noise": Normal(0.0, 1.0),
            "decay": LogNormal(0.0, 1.0),
            "activation": Categorical(["relu", None]),
            "batch": Constant(32),
        }
    )
    assert dict(domains_of(space)) == {
        "opt.lr": Interval(1e-4, 1.0),
        "opt.momentum": Interval(0.0, 0.9),
        "layers": Interval(1, 9),
        "width": Interval(8, 512),
        "noise": Interval(-math.inf, math.inf),
        "decay": Interval(0.0, math.inf),
        "activation": Choices(("relu", None)),
        "batch": Choices((32,)),
    }
    assert list(domains_of(space)) == list(space.names)
