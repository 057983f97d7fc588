"""W&B's sweep keys that have a different meaning in hpsearch, have no effect, or must be changed.

Keys with the same meaning are not listed. The rules are those of W&B's `sweeps` package and agent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from hpsearch.config.checks import is_number
from hpsearch.config.settings import settings_fields
from hpsearch.schedulers.bands import Bands
from hpsearch.sweep.parts import Limits, Resources

IGNORED: Mapping[str, str] = {
    **dict.fromkeys(("description", "project", "entity", "apiVersion", "kind", "tags", "notes", "group"), ""),
    "controller": "hpsearch is the controller",
    "count": "what bounds the trials of a sweep is run_cap",
}
"""Top-level keys that are accepted and have no effect, with the reason for a note; empty: no note is needed."""

METRIC_IGNORED: Mapping[str, str] = {
    "impute": "a failed trial always ranks last",
    "impute_while_running": "a trial is ranked when it has ended",
}
"""The same under `metric`."""

BAND_KEYS: Mapping[str, str] = {"max_iter": "last_iter", "s": "bands"}
"""Keys of W&B's hyperband to those of `Bands`, if they differ."""

_HYPERBAND = frozenset({"type", "min_iter", "max_iter", "s", "eta", "strict"})


def as_bands(early: object) -> dict[str, Any] | None:
    """Return W&B's hyperband as settings of `Bands`; None if the section is hpsearch's Hyperband.

    The section is W&B's if it lacks `max_iter`, which hpsearch requires, or has `s` or `strict`, which hpsearch doesn't
    have. As in W&B, `max_iter` with `s` takes precedence over `min_iter`, and `s` has no effect with `min_iter` alone.
    """
    if not isinstance(early, Mapping) or early.get("type") != "hyperband" or not early.keys() <= _HYPERBAND:
        return None
    settings = {key: value for key, value in early.items() if value is not None and key != "type"}
    if "max_iter" in settings and not settings.keys() & {"s", "strict"}:
        return None
    if not settings.keys() & {"min_iter", "max_iter"}:
        return None
    unused = "min_iter" if "max_iter" in settings else "s"
    return {BAND_KEYS.get(key, key): value for key, value in settings.items() if key != unused}


_EXPONENTS = ("log_uniform", "q_log_uniform", "inv_log_uniform")
"""Distributions whose bounds are exponents of e."""


def _exponents(parameters: object, path: str) -> list[str]:
    """Return notes on bounds that are read as exponents but probably meant as values, since they are not negative."""
    notes: list[str] = []
    for name, config in parameters.items() if isinstance(parameters, Mapping) else ():
        where = path if name == "parameters" else f"{path}.{name}"
        kind = config.get("distribution") if isinstance(config, Mapping) else None
        if kind in _EXPONENTS:
            low, high = config.get("min"), config.get("max")
            if not (is_number(low) and is_number(high) and low >= 0):
                continue
            if kind == "inv_log_uniform":
                low, high = -high, -low
            meaning = f"{where}: bounds of {kind} are exponents of e, as at W&B: it is drawn from"
            values = f"{math.exp(low):.5g} to {math.exp(high):.5g}"
            notes.append(f"{meaning} {values}; {kind}_values takes the bounds themselves")
        elif kind in ("log_normal", "q_log_normal"):
            if is_number(mu := config.get("mu")) and mu > 0:
                meaning = f"{where}: mu of {kind} is an exponent of e, as at W&B: the median is"
                notes.append(f"{meaning} {math.exp(min(mu, 700)):.5g}")
        else:
            notes += _exponents(config, where)
    return notes


def _unused_bands(early: Mapping[str, Any], bands: Bands) -> list[str]:
    """Return notes on keys of W&B's hyperband that another key overrides."""
    min_iter, max_iter, count = (early.get(key) for key in ("min_iter", "max_iter", "s"))
    if max_iter is None:
        return [] if count is None else ["early_terminate.s has no effect with min_iter, as at W&B"]
    notes = []
    if min_iter is not None:
        first = f"the first band is {bands.ends[0]}"
        notes.append(f"early_terminate.min_iter has no effect with max_iter and s or strict, as at W&B: {first}")
    if count is not None and count > len(bands.ends):
        notes.append(f"early_terminate.s is {count}, but below max_iter = {max_iter} there are {len(bands.ends)} bands")
    return notes


def _arguments(value: Mapping[str, Any]) -> list[str]:
    """Return notes on parameters that the command of a sweep does not pass to the script."""
    command, names = value.get("command"), _names(value.get("parameters"), "")
    if not isinstance(command, list):
        return []
    text = " ".join(map(str, command))
    if "${args" not in text and not any(f"${{{name}}}" in text for name in names):
        reads = "wandb.config, hpsearch.current_trial() or $HPSEARCH_PARAMS"
        return [f"command passes no parameters: add ${{args}}, unless the script reads them from {reads}"]
    flags = [name for name, config in names.items() if config.get("value") is False or False in _booleans(config)]
    if "${args_no_boolean_flags}" not in text or not flags:
        return []
    problem = f"command: ${{args_no_boolean_flags}} leaves out {', '.join(flags)} where false"
    return [f"{problem}: the script must have false as its default, or it trains with true"]


def _names(parameters: object, path: str) -> dict[str, Mapping[str, Any]]:
    """Return the parameters and groups of a sweep file by flat name."""
    configs: dict[str, Mapping[str, Any]] = {}
    for name, config in parameters.items() if isinstance(parameters, Mapping) else ():
        if isinstance(config, Mapping):
            configs[f"{path}{name}"] = config
            configs |= _names(config.get("parameters"), f"{path}{name}.")
    return configs


def _booleans(config: Mapping[str, Any]) -> list[bool]:
    values = config.get("values")
    return [value for value in values if isinstance(value, bool)] if isinstance(values, list) else []


def wandb_notes(value: object) -> list[str]:
    """Return notes on keys of a valid sweep file whose effect may surprise users of W&B.

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
    notes += _arguments(value)
    early = value.get("early_terminate")
    if (bands := as_bands(early)) is not None:
        assert isinstance(early, Mapping)
        notes.append(f"early_terminate of type hyperband is W&B's and runs as type bands: {Bands(**bands).summary()}")
        notes += _unused_bands(early, Bands(**bands))
    elif (
        "program" in value
        and isinstance(early, Mapping)
        and early.get("type") == "hyperband"
        and {"min_iter", "max_iter"} <= early.keys()  # W&B uses one of them
    ):
        meaning = "early_terminate of type hyperband has min_iter and max_iter, and runs as the paper's Hyperband"
        notes.append(f"{meaning}: without max_iter it is W&B's")
    return notes


HINTS: Mapping[str, Mapping[str, str]] = {
    "": {
        "job": "hpsearch launches no W&B jobs: name the script as program, or a function as trainable",
        "image_uri": "hpsearch launches no images: name the script as program, or a function as trainable",
        "sweep": "put the keys of the sweep at the top level, or all of them under sweep and nothing else",
        "scheduler": "early_terminate says how far trials go: remove it",
        "metrics": "write metric, with its name and goal, or a list of several",
        "s": "it belongs under early_terminate, and is called brackets here",
        **dict.fromkeys(
            ("type", "min_iter", "eta", "brackets", "variant", "rungs", "every", "min_trials"),
            "it belongs under early_terminate",
        ),
        **dict.fromkeys(settings_fields(Resources), "it belongs under resources"),
        **dict.fromkeys(("warmup_epochs", "max_global_batch"), "it belongs under scaling"),
        "strategy": "it belongs under parallel",
        **dict.fromkeys(settings_fields(Limits), "it belongs under limits"),
        **dict.fromkeys(("goal", "target"), "it belongs under metric"),
    },
    "metric": {},
    "early_terminate": {
        "s": "the rungs follow from min_iter, max_iter and eta; how many brackets run is called brackets: remove s",
        "strict": "rungs always keep the best 1/eta, which is W&B's strict: remove the line",
    },
}
"""Section to advice for its unknown keys."""

REFUSED_DISTRIBUTIONS: Mapping[str, str] = {
    "beta": "take uniform or normal, or list values with probabilities",
    "q_beta": "take q_uniform or q_normal, or list values with probabilities",
}
"""W&B's distributions that are not supported, with alternatives."""
