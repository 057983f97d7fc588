"""What W&B's sweep keys mean here, where that isn't the same: what runs otherwise, what has no effect, what to change.

Keys that both know mean the same and aren't listed. The rules are those of W&B's `sweeps` package and of its agent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeGuard

from hpsearch.schedulers.bands import Bands
from hpsearch.settings import settings_fields
from hpsearch.sweep.parts import Limits, Resources

__all__ = ["BAND_KEYS", "HINTS", "IGNORED", "METRIC_IGNORED", "REFUSED_DISTRIBUTIONS", "as_bands", "wandb_notes"]

IGNORED: Mapping[str, str] = {
    **dict.fromkeys(("description", "project", "entity", "apiVersion", "kind", "tags", "notes", "group"), ""),
    "controller": "hpsearch is the controller",
    "count": "what bounds the trials of a sweep is run_cap",
}
"""Top-level keys that are accepted and have no effect, to why that should be said; empty where it needn't."""

METRIC_IGNORED: Mapping[str, str] = {
    "impute": "a failed trial always ranks last",
    "impute_while_running": "a trial is ranked when it has ended",
}
"""Likewise under `metric`."""

BAND_KEYS: Mapping[str, str] = {"max_iter": "last_iter", "s": "bands"}
"""Keys of W&B's hyperband to those of `Bands`, where they are called otherwise."""

_HYPERBAND = frozenset({"type", "min_iter", "max_iter", "s", "eta", "strict"})


def as_bands(early: object) -> dict[str, Any] | None:
    """Give W&B's hyperband as the settings of `Bands`; None where the section is ours.

    It is W&B's where `max_iter` is missing, which ours needs, or where `s` or `strict` stands, which ours doesn't have.
    As there, `max_iter` with `s` comes before `min_iter`, which else leaves `s` without a meaning.
    """
    if not isinstance(early, Mapping) or early.get("type") != "hyperband" or not early.keys() <= _HYPERBAND:
        return None
    given = {key: value for key, value in early.items() if value is not None and key != "type"}
    if "max_iter" in given and not given.keys() & {"s", "strict"}:
        return None
    if not given.keys() & {"min_iter", "max_iter"}:
        return None
    unused = "min_iter" if "max_iter" in given else "s"
    return {BAND_KEYS.get(key, key): value for key, value in given.items() if key != unused}


def _has_both_ends(early: object) -> bool:
    """Say whether a hyperband has `min_iter` and `max_iter`: W&B takes the one, or the other with `s`."""
    return isinstance(early, Mapping) and early.get("type") == "hyperband" and {"min_iter", "max_iter"} <= early.keys()


_EXPONENTS = ("log_uniform", "q_log_uniform", "inv_log_uniform")
"""Distributions whose bounds are exponents of e."""


def _exponents(parameters: object, path: str) -> list[str]:
    """Return notes on exponents that may be meant as values: those of a logarithmic range are never negative."""
    notes: list[str] = []
    for name, given in parameters.items() if isinstance(parameters, Mapping) else ():
        where = path if name == "parameters" else f"{path}.{name}"
        kind = given.get("distribution") if isinstance(given, Mapping) else None
        if kind in _EXPONENTS:
            low, high = given.get("min"), given.get("max")
            if not (_is_number(low) and _is_number(high) and low >= 0):
                continue
            if kind == "inv_log_uniform":
                low, high = -high, -low
            told = f"{where}: bounds of {kind} are exponents of e, as at W&B: it is drawn from"
            values = f"{math.exp(low):.5g} to {math.exp(high):.5g}"
            notes.append(f"{told} {values}; {kind}_values takes the bounds themselves")
        elif kind in ("log_normal", "q_log_normal"):
            if _is_number(mu := given.get("mu")) and mu > 0:
                told = f"{where}: mu of {kind} is an exponent of e, as at W&B: the median is"
                notes.append(f"{told} {math.exp(min(mu, 700)):.5g}")
        else:
            notes += _exponents(given, where)
    return notes


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def wandb_notes(value: object) -> list[str]:
    """Say what of a sweep that was read without an error means something else here than a reader of W&B's may expect.

    Args:
        value: The mapping, of plain Python values.
    """
    if not isinstance(value, Mapping):
        return []
    notes = [f"{key} has no effect: {why}" for key, why in IGNORED.items() if why and key in value]
    metrics = value.get("metric")
    for metric in metrics if isinstance(metrics, list) else [metrics]:
        if isinstance(metric, Mapping):
            notes += [f"metric.{key} has no effect: {why}" for key, why in METRIC_IGNORED.items() if key in metric]
    if metrics is None:
        notes.append("metric isn't given: trials are run and shown, and none of them is the best")
    notes += _exponents(value.get("parameters"), "parameters")
    if value.get("method") == "bayes":
        notes.append("method bayes is W&B's and runs as tpe; gp is a Gaussian process, as W&B's is")
    early = value.get("early_terminate")
    if (bands := as_bands(early)) is not None:
        assert isinstance(early, Mapping)
        notes.append(f"early_terminate of type hyperband is W&B's and runs as type bands: {Bands(**bands).summary()}")
        if "s" in early and "max_iter" not in early:
            notes.append("early_terminate.s has no effect beside min_iter, as at W&B")
    elif "program" in value and _has_both_ends(early):
        told = "early_terminate of type hyperband has min_iter and max_iter, and runs as the paper's Hyperband"
        notes.append(f"{told}: without max_iter it is W&B's")
    return notes


HINTS: Mapping[str, Mapping[str, str]] = {
    "": {
        "job": "hpsearch launches no W&B jobs: name the script as program, or a function as trainable",
        "image_uri": "hpsearch launches no images: name the script as program, or a function as trainable",
        "sweep": "the keys of a sweep stand at the top, or all of them under sweep, with nothing beside it",
        "scheduler": "early_terminate says how far trials go: remove it",
        "metrics": "write metric, with its name and goal, or a list of several",
        "s": "it stands under early_terminate, and is called brackets here",
        **dict.fromkeys(
            ("type", "min_iter", "eta", "brackets", "variant", "rungs", "every", "min_trials"),
            "it stands under early_terminate",
        ),
        **dict.fromkeys(settings_fields(Resources), "it stands under resources"),
        **dict.fromkeys(("warmup_epochs", "max_global_batch"), "it stands under scaling"),
        "strategy": "it stands under parallel",
        **dict.fromkeys(settings_fields(Limits), "it stands under limits"),
        **dict.fromkeys(("goal", "target"), "it stands under metric"),
    },
    "metric": {},
    "early_terminate": {
        "s": "the rungs follow from min_iter, max_iter and eta; how many brackets run is called brackets: remove s",
        "strict": "rungs always keep the best 1/eta, which is W&B's strict: remove the line",
    },
}
"""By section, then key: what to do about a key of W&B's that we don't have."""

REFUSED_DISTRIBUTIONS: Mapping[str, str] = {
    "beta": "take uniform or normal, or list values with probabilities",
    "q_beta": "take q_uniform or q_normal, or list values with probabilities",
}
"""W&B's distributions that we don't have, and what to take."""
