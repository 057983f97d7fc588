"""What is said of keys in a parameter that are written otherwise here."""

from __future__ import annotations

import pytest

from hpsearch.config.checks import InvalidKey
from hpsearch.sweep.distributions import read_distribution


@pytest.mark.parametrize(
    ("given", "key", "advice"),
    [
        (
            {"lr": {"min": 0.0, "max": 1.0}},
            "lr",
            "a group has its parameters under parameters: {parameters: {lr: ...}}",
        ),
        ({"parametrs": {"lr": {"value": 1}}}, "parametrs", "did you mean parameters?"),
        ({"min": 1, "max": 9, "step": 2}, "step", "q is the step here, and the values are its multiples"),
    ],
)
def test_a_key_that_other_libraries_have_in_a_parameter_is_told_how_it_is_written_here(given, key, advice):
    with pytest.raises(InvalidKey, match="isn't a known key") as caught:
        read_distribution(given, ("parameters", "opt"))
    assert caught.value.key == ("parameters", "opt", key)
    assert caught.value.advice == advice
