"""`--set` changes values, and no parameter's kind without a word."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpsearch.errors import SweepError
from hpsearch.space import Categorical, Constant, Distribution, IntUniform, LogUniform, Uniform
from hpsearch.sweep.file import load_sweep

BASE = """\
trainable: package.module:function
metric: {name: loss}
method: random
run_cap: 5
parameters:
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write a sweep file with these parameters; return the name that errors call it by."""
    monkeypatch.chdir(tmp_path)

    def write(parameters: str) -> str:
        Path("sweep.yaml").write_text(BASE + parameters)
        return "sweep.yaml"

    return write


@pytest.mark.parametrize(
    ("written", "overrides", "distribution"),
    [
        ("{min: 0.1, max: 1}", ["min=0"], Uniform(0, 1)),
        ("{min: 0, max: 1.5}", ["max=2"], Uniform(0, 2)),
        ("{min: 0.0, max: 1.0}", ["min=1", "max=2"], Uniform(1, 2)),
        ("{min: 0, max: 1, q: 0.5}", ["q=1"], Uniform(0, 1, step=1.0)),
        ("{min: 0.5, max: 1}", ["min=0", "min=-1"], Uniform(-1, 1)),
        ("{value: 0.1}", ["value=1"], Constant(1.0)),
        ("{values: [0.1, 0.2]}", ["values.0=1"], Categorical([1.0, 0.2])),
        ("{min: 1, max: 5}", ["max=6"], IntUniform(1, 6)),
        ("{min: 1, max: 5}", ["max=5.5", "distribution=uniform"], Uniform(1, 5.5)),
        ("{min: 1, max: 5}", ["distribution=log_uniform_values", "min=0.5"], LogUniform(0.5, 5)),
        ("{min: 1}", ["max=5.5"], Uniform(1, 5.5)),
        ("{min: 0.1, max: 1.0}", ["={min: 1, max: 5}"], IntUniform(1, 5)),
        ("{value: {min: 1, max: 2}}", ["value.min=0.5"], Constant({"min": 0.5, "max": 2})),
    ],
)
def test_an_override_keeps_the_kind_of_a_parameter(write, written, overrides, distribution: Distribution):
    path = write(f"  x: {written}\n")
    given = [f"parameters.x{'' if text.startswith('=') else '.'}{text}" for text in overrides]
    got = load_sweep(path, given).parameters.parameters[0].distribution
    assert repr(got) == repr(distribution)


@pytest.mark.parametrize(
    ("override", "got"), [("max=5.5", "max: must be an integer"), ("min=0.5", "min: must"), ("q=0.5", "q: must")]
)
def test_a_float_in_a_range_of_integers_is_no_silent_range_of_floats(write, override, got):
    text = "  x: {min: 1, max: 5}\n  g:\n    parameters:\n      x: {min: 1, max: 5}\n"
    for name, key in (("x", "x"), ("g.x", "g.parameters.x")):
        with pytest.raises(SweepError) as caught:
            load_sweep(write(text), [f"parameters.{name}.{override}"])
        message = str(caught.value)
        assert message.startswith(f"sweep.yaml: --set parameters.{name}.{override}: parameters.{key}.{got}")
        assert message.endswith(f"for a range of floats add --set parameters.{key}.distribution=uniform")
        advice = message.rsplit("--set ", 1)[1]
        assert load_sweep("sweep.yaml", [f"parameters.{name}.{override}", advice])
