"""Validation of what a trial reports and notes."""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Iterable, Mapping
from numbers import Number

from hpsearch.errors import TrainableError

_NO_STEP = "no step, as each call is the end of the next iteration"

SECONDS = "seconds"
"""The resource that is the running time of the trainable."""

_RESOURCE_KEY = "early_terminate.resource"

_LONGEST_NAME, _LONGEST_NOTE = 100, 4000
"""Most characters of a note's name, and of its text."""


def to_numbers(metrics: object, names: tuple[str, ...]) -> dict[str, float]:
    """Return the metrics of a report as plain floats.

    Args:
        metrics: The reported metrics: names to numbers, including NumPy and torch scalars.
        names: The sweep's metrics, which every report must contain.

    Raises:
        TrainableError: `metrics` is not a mapping, a value is not a number, or one of the sweep's metrics is missing.
    """
    if not isinstance(metrics, Mapping):
        raise TrainableError(
            f"a report must be a mapping of names to numbers, but is {_described(metrics)}: write {example(names)}"
        )
    numbers = {_checked_name(name): _to_number(name, value) for name, value in metrics.items()}
    missing = next((name for name in names if name not in numbers), None)
    if missing is not None:
        problem = f"every report must have {lacking(missing, numbers, 'this one has')}"
        raise TrainableError(problem, f"metric.{missing}")
    return numbers


def to_notes(notes: object) -> dict[str, str]:
    """Return the notes of a trial, which must be texts of limited length by name.

    Raises:
        TrainableError: They are not.
    """
    if not isinstance(notes, Mapping):
        raise TrainableError(f'notes must be texts by name, such as {{"commit": "4f1c"}}, but are {_described(notes)}')
    for name, text in notes.items():
        if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME:
            raise TrainableError(
                f"the name of a note must be a text of 1 to {_LONGEST_NAME} characters, got {_described(name)}"
            )
        if not isinstance(text, str):
            raise TrainableError(
                f"the note {name!r} must be a text, but is {_described(text)}: write str(...), or report a number as "
                "a metric"
            )
        if len(text) > _LONGEST_NOTE:
            raise TrainableError(
                f"the note {name!r} must have at most {_LONGEST_NOTE:,} characters, but has {len(text):,}: write it "
                "to a file in trial.directory, or print it"
            )
    return dict(notes)


def names_reported(names: tuple[str, ...], resource: str | None) -> tuple[str, ...]:
    """Return the metrics that every report must contain.

    Args:
        names: The sweep's metrics.
        resource: What rungs end by; None: iterations.
    """
    return names if resource is None or resource in (SECONDS, *names) else (*names, resource)


def cost_after(resource: str | None, before: float, metrics: Mapping[str, float], seconds: float) -> float:
    """Return the cost of a trial with a report.

    Args:
        resource: What rungs end by; None: iterations, so that nothing is counted.
        before: The cost before the report's iteration.
        metrics: The report's metrics.
        seconds: Duration of the report's iteration.

    Raises:
        TrainableError: The metric is missing, isn't finite, or falls.
    """
    if resource is None:
        return before
    if resource == SECONDS:
        return before + seconds
    if resource not in metrics:
        raise TrainableError(f"every report must have {lacking(resource, metrics, 'this one has')}", _RESOURCE_KEY)
    cost = metrics[resource]
    if not before <= cost < math.inf:
        raise TrainableError(
            f"{resource}, by which rungs end, must be a number that never falls, got {cost:g} after {before:g}: count "
            "it from the trial's start, and save the count in the checkpoint",
            _RESOURCE_KEY,
        )
    return cost


def refuse_keywords(unknown: Collection[str], names: tuple[str, ...]) -> None:
    """Check that a report has no unknown keyword arguments, such as metrics or a step, which other libraries accept.

    Args:
        unknown: Names of the unknown keyword arguments.
        names: The sweep's metrics.

    Raises:
        TrainableError: There are unknown keyword arguments.
    """
    if unknown:
        raise TrainableError(
            f"report() takes metrics as one mapping, and a checkpoint, but got {', '.join(unknown)} by keyword: "
            f"write trial.report({example(names)}); it takes {_NO_STEP}"
        )


def refuse_step(checkpoint: object) -> None:
    """Check that the checkpoint of a report is not a step number.

    Raises:
        TrainableError: The checkpoint is a number.
    """
    if isinstance(checkpoint, Number):
        raise TrainableError(
            f"a checkpoint must be a state, a path or a function, but is a number, {checkpoint!r}: report() takes "
            f"{_NO_STEP}; a state that is a number goes into a dict"
        )


def example(names: tuple[str, ...], value: str = "0.9") -> str:
    """Return an example of a minimal report."""
    return "{" + ", ".join(f'"{name}": {value}' for name in names) + "}"


def lacking(metric: str, reported: Iterable[str], lead_in: str) -> str:
    """Return a message that names the missing metric, the reported names, and the name that was probably meant.

    Args:
        metric: Name of the missing metric.
        reported: The reported names.
        lead_in: Words before the reported names, such as `this one has`.
    """
    reported = list(reported)
    names = ", ".join(map(repr, reported)) or "nothing"
    nearest = difflib.get_close_matches(metric, reported, n=1)
    hint = (
        f"did you mean {nearest[0]!r}? Rename one of the two" if nearest else "report it, or name another in the sweep"
    )
    return f"the sweep's metric {metric!r}, but {lead_in} {names}: {hint}"


def _checked_name(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise TrainableError(f"the name of a metric must be a text, but is {name!r}: rename it in the report")
    return name


def _to_number(name: object, value: object) -> float:
    if isinstance(value, (float, int)):
        number: object = value
    else:
        try:
            number = value.item()  # type: ignore[attr-defined]
        except (AttributeError, RuntimeError, TypeError, ValueError):
            if getattr(value, "shape", None) == ():
                raise  # a scalar: an asynchronous error of the GPU that surfaces here
            number = None  # not a scalar
    if not isinstance(number, float | int):
        raise TrainableError(
            f"the metric {name!r} must be a number, but is {_described(value)}: report a plain number or a "
            "NumPy or torch scalar, and leave the rest out"
        )
    try:
        return float(number)
    except OverflowError:
        raise TrainableError(
            f"the metric {name!r} must fit a float, but is beyond 1e308: report its logarithm"
        ) from None


def _described(value: object) -> str:
    kind = type(value)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple):
        return f"a {name} of shape {tuple(shape)}"
    text = repr(value)
    return f"a {name}, {text if len(text) <= 60 else text[:57] + '...'}"
