"""`method: auto` chooses by the keys of the sweep alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hpsearch.config.checks import InvalidKey
from hpsearch.sweep.file import sweep_from_mapping
from hpsearch.sweep.sweep import Sweep

NUMBERS = {"lr": {"min": 0.1, "max": 1.0}, "width": {"values": [1, 2, 3]}}
CHOICES = {"net": {"choice": {"mlp": {"depth": {"values": [1, 2]}}, "cnn": {"kernel": {"values": [3, 5]}}}}}
CELL = {"cell": {"cell": ["none", "conv", "skip"], "nodes": 4}, "lr": {"min": 0.1, "max": 1.0}}
SEVERAL = [{"name": "loss"}, {"name": "seconds"}]
CASES: dict[str, list[dict[str, Any]]] = {
    "bohb": [
        {"max_iter": 9},
        {"max_iter": 9, "run_cap": 27},
        {"early_terminate": {"type": "hyperband", "max_iter": 27}},
        {"early_terminate": {"type": "asha", "max_iter": 4}, "run_cap": 30},
        {"max_iter": 27, "parameters": CHOICES},
        {"early_terminate": {"type": "median", "max_iter": 27}},
    ],
    "gp": [
        {"max_iter": 8, "run_cap": 100},
        {"run_cap": 20},
        {"max_iter": 27, "run_cap": 20, "repeats": 5},
        {"max_iter": 27, "run_cap": 26},
        {"max_iter": 27, "run_cap": 30, "search": {"lag": 2}},
    ],
    "tpe": [
        {"max_iter": 8, "run_cap": 101},
        {"max_iter": 8},
        {"max_iter": 27, "repeats": 5},
        {"run_cap": 20, "parameters": CHOICES},
        {"run_cap": 20, "parameters": CELL},
        {"max_iter": 27, "metric": SEVERAL},
        {"max_iter": 27, "outcome_constraints": "seconds <= 3"},
        {"run_cap": 20, "parameters": {"layers": {"repeat": {"values": [16, 32]}, "min": 1}}},
    ],
    "random": [
        {"metric": None},
        {"max_iter": 27, "parameters": {"lr": {"value": 0.1}}},
        {"max_iter": 27, "parameters": {"lr": {"values": [3]}}},
        {"max_iter": 27, "run_cap": 20, "repeats": {"n": 5, "racing": True}},
    ],
    "pbt": [{"early_terminate": {"type": "pbt", "max_iter": 27}}],
}


@pytest.mark.parametrize(
    ("method", "keys"), [(method, keys) for method, cases in CASES.items() for keys in cases], ids=str
)
def test_the_method_follows_from_the_keys(method, keys):
    sweep = sweep_from_mapping({"metric": {"name": "loss"}, "parameters": NUMBERS, **keys})
    assert sweep.method == method
    assert sweep.auto_reason
    named = sweep_from_mapping({"metric": {"name": "loss"}, "parameters": NUMBERS, **keys, "method": method})
    assert replace(sweep, auto_reason=None) == named
    assert not sweep.difference(named)


@pytest.mark.parametrize("keys", [{"workers": 1}, {"workers": 16, "workers_per_trial": 2}])
def test_workers_and_seeds_have_no_influence(keys):
    base = {"metric": {"name": "loss"}, "parameters": NUMBERS, "run_cap": 20}
    one, other = sweep_from_mapping(base), sweep_from_mapping({**base, "resources": keys, "seed": 7})
    assert (one.method, one.auto_reason) == (other.method, other.auto_reason)


def test_what_was_chosen_is_stored_and_stays():
    sweep = sweep_from_mapping({"metric": {"name": "loss"}, "parameters": NUMBERS, "run_cap": 20})
    assert Sweep.from_json(sweep.to_json()) == sweep
    more = replace(sweep, run_cap=500)
    assert (more.method, more.auto_reason) == ("gp", sweep.auto_reason)


def test_options_need_a_method():
    keys = {"metric": {"name": "loss"}, "parameters": NUMBERS, "search": {"options": {"population": 8}}}
    with pytest.raises(InvalidKey, match=r"search.options: must not be given with method auto: .*\n  name the method"):
        sweep_from_mapping(keys)
