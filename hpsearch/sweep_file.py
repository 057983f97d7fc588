"""Sweep files: YAML with W&B's keys and ours, read into a `Sweep`.

Every mistake is one `SweepError` with file, line, key, what was expected and what stands there. The rules
themselves live in `Sweep` and its parts; this module says which key each one came from.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

from hpsearch._sweep_checks import InvalidKey, KeyPath, boolean, integer, key_text, number, shown, text
from hpsearch._sweep_overrides import Override, apply_overrides, dotted_path
from hpsearch._sweep_parameters import read_parameters
from hpsearch._sweep_parts import Checkpoints, Hyperband, Limits, Metric, Resources, Scaling, SuccessiveHalving
from hpsearch._sweep_reader import Table, choice, duration, listed, raw, words
from hpsearch._sweep_wandb import HINTS, IGNORED, METHOD_HINT
from hpsearch._sweep_yaml import Document, read_document
from hpsearch.errors import SweepError
from hpsearch.sweep import EarlyTerminate, Sweep
from hpsearch.trial import Params

__all__ = ["load_sweep", "locate", "scaling_from_mapping", "sweep_from_mapping"]

_KEYS = (
    "metric",
    "method",
    "parameters",
    "name",
    "trainable",
    "program",
    "command",
    "early_terminate",
    "max_iter",
    "run_cap",
    "points_to_try",
    "resources",
    "scaling",
    "limits",
    "checkpoints",
    "seed",
    *IGNORED,
)
_SHARED_EARLY = ("type", "max_iter", "min_iter", "eta")
_EARLY_KEYS = {"hyperband": ("variant", "brackets"), "successive_halving": ("trials",)}

_IMPORT_PATH = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d]\w*(?:\.[^\W\d]\w*)*")


def load_sweep(path: str | Path, overrides: Sequence[str] = ()) -> Sweep:
    """Read a sweep file.

    Args:
        path: The file.
        overrides: `KEY=VALUE`, a dotted key and a value in YAML, each put in place of what the file says.

    Raises:
        SweepError: The file, or an override, isn't right; the text starts with the path.
    """
    document = read_document(Path(path))
    given = apply_overrides(document, overrides)
    try:
        return sweep_from_mapping(document.value, source=str(path), name=_default_name(Path(path)))
    except InvalidKey as error:
        raise SweepError(_located(error, document, given)) from None


def locate(path: str | Path, key: str) -> str:
    """Say where a key stands, for an error that shows up later: `"sweep.yaml:12"`.

    Gives the section around a key that isn't there, and the path alone of a file that is gone or broken.
    """
    try:
        document = read_document(Path(path))
    except SweepError:
        return str(path)
    return f"{path}:{document.mark(dotted_path(document.value, key)).line}"


def sweep_from_mapping(value: object, source: str | None = None, name: str = "sweep") -> Sweep:
    """Read a sweep as a file holds it, already parsed: the same keys, the same rules.

    Args:
        value: The mapping, of plain Python values.
        source: Kept with the sweep.
        name: Its name where the mapping names none.

    Raises:
        InvalidKey: A key is wrong: a `SweepError` that knows which.
    """
    table = Table(value, (), _KEYS, HINTS[""])
    early = _early_terminate(table) if table.has("early_terminate") else None
    parameters = table.get("parameters", read_parameters, "parameters: {lr: {min: 0.001, max: 0.1}}")
    method = table.get("method", choice(("random", "grid"), {"bayes": METHOD_HINT}), "method: random")
    return table.build(
        Sweep,
        name=table.get_or("name", text, name),
        trainable=table.get_or("trainable", _import_path, None),
        program=table.get_or("program", text, None),
        command=table.get_or("command", words, None),
        metric=table.get("metric", _metric, "metric: {name: loss, goal: minimize}"),
        method=cast(Any, method),
        parameters=parameters,
        early_terminate=early,
        max_iter=table.get_or("max_iter", integer, None),
        run_cap=table.get_or("run_cap", integer, None),
        points_to_try=table.get_or("points_to_try", _points_to_try, ()),
        resources=table.get_or("resources", _resources, Resources()),
        scaling=table.get_or("scaling", scaling_from_mapping, Scaling()),
        limits=table.get_or("limits", _limits, Limits()),
        checkpoints=table.get_or("checkpoints", _checkpoints, Checkpoints()),
        seed=table.get_or("seed", integer, 0),
        source=source,
    )


def _import_path(value: object, path: KeyPath) -> str:
    out = text(value, path)
    if not _IMPORT_PATH.fullmatch(out):
        problem = f"must be an import path such as package.module:function, got {shown(out)}"
        raise InvalidKey(path, problem, "a script of any kind is named as program" if "/" in out else "")
    return out


def _metric(value: object, path: KeyPath) -> Metric:
    table = Table(value, path, ("name", "goal"), HINTS["metric"])
    goal = table.get_or("goal", choice(("minimize", "maximize")), "minimize")
    return table.build(Metric, table.get("name", text, "name: loss"), cast(Any, goal))


def _early_terminate(top: Table) -> EarlyTerminate:
    path = (*top.path, "early_terminate")
    every_key = (*_SHARED_EARLY, *_EARLY_KEYS["hyperband"], *_EARLY_KEYS["successive_halving"])
    table = top.get("early_terminate", lambda value, path: Table(value, path, every_key, HINTS["early_terminate"]))
    kind = table.get("type", choice(tuple(_EARLY_KEYS)), "type: hyperband")
    for other, keys in _EARLY_KEYS.items():
        for key in keys if other != kind else ():
            if table.has(key):
                raise InvalidKey((*path, key), f"has no meaning for {kind}; it belongs to {other}")
    min_iter, eta = table.get_or("min_iter", integer, 1), table.get_or("eta", integer, 3)
    max_iter = table.get("max_iter", integer, f"max_iter: {_likely_max_iter(top, min_iter, eta)}")
    if kind == "successive_halving":
        return table.build(SuccessiveHalving, max_iter, min_iter, eta, table.get_or("trials", integer, None))
    variant = table.get_or("variant", choice(("paper", "table")), "paper")
    brackets = table.get_or("brackets", integer, None)
    return table.build(Hyperband, max_iter, min_iter, eta, cast(Any, variant), brackets)


def _likely_max_iter(top: Table, min_iter: int, eta: int) -> int:
    """Guess what a file that lacks it should say: what stands at the top, or three rungs above min_iter."""
    try:
        return top.get("max_iter", integer)
    except InvalidKey:
        return max(min_iter, 1) * max(eta, 2) ** 3


def _points_to_try(value: object, path: KeyPath) -> tuple[Params, ...]:
    points = []
    for place, point in enumerate(listed(value, path)):
        if not isinstance(point, Mapping):
            raise InvalidKey((*path, place), f"must be a mapping of names to values, got {shown(point)}")
        points.append(raw(point, (*path, place)))
    return cast("tuple[Params, ...]", tuple(points))


def _resources(value: object, path: KeyPath) -> Resources:
    table = Table(value, path, tuple(field.name for field in fields(Resources)))
    return table.build(
        Resources,
        workers=table.get_or("workers", integer, None),
        cpus_per_worker=table.get_or("cpus_per_worker", integer, 1),
        gpus_per_worker=table.get_or("gpus_per_worker", number, 0.0),
        workers_per_trial=table.get_or("workers_per_trial", integer, 1),
        max_workers_per_trial=table.get_or("max_workers_per_trial", integer, None),
        elastic=table.get_or("elastic", boolean, True),
        fresh_process=table.get_or("fresh_process", boolean, False),
    )


def scaling_from_mapping(value: object, path: KeyPath = ("scaling",)) -> Scaling:
    """Read the `scaling` of a sweep: the same keys, the same rules.

    Raises:
        InvalidKey: A key is wrong.
    """
    table = Table(value, path, tuple(field.name for field in fields(Scaling)))
    batch = table.get_or("batch", choice(("global", "per_worker")), "global")
    return table.build(
        Scaling,
        batch=cast(Any, batch),
        lr=cast(Any, table.get_or("lr", choice(("linear", "sqrt", "none")), None)),
        warmup_epochs=table.get_or("warmup_epochs", number, 5.0),
        max_global_batch=table.get_or("max_global_batch", integer, None),
        tolerance=table.get_or("tolerance", number, 0.1),
    )


def _limits(value: object, path: KeyPath) -> Limits:
    table = Table(value, path, ("max_time", "trial_timeout", "max_retries"))
    return table.build(
        Limits,
        max_time=table.get_or("max_time", duration, None),
        trial_timeout=table.get_or("trial_timeout", duration, None),
        max_retries=table.get_or("max_retries", integer, 0),
    )


def _checkpoints(value: object, path: KeyPath) -> Checkpoints:
    table = Table(value, path, ("keep", "every"))
    keep = table.get_or("keep", choice(("best", "all")), "best")
    return table.build(Checkpoints, cast(Any, keep), table.get_or("every", integer, None))


def _default_name(path: Path) -> str:
    """Make the file's stem fit to be a name."""
    stem = re.sub(r"[^\w .+-]", "_", path.stem).lstrip(".").strip()[:60]
    return stem or "sweep"


def _located(error: InvalidKey, document: Document, given: Sequence[Override]) -> str:
    """Write an error with file and line, or with the `--set` that it comes from."""
    key = dotted_path(document.value, error.key)
    override = next((item for item in reversed(given) if key[: len(item.path)] == item.path), None)
    if override is not None:
        place = f"{document.name}: --set {override.text}"
    else:
        place = f"{document.name}:{document.mark(key).line}"
    where = f"{key_text(key)}: " if key else ""
    lines = [f"{place}: {where}{error.problem}"]
    if error.advice:
        lines.append(f"  {error.advice}")
    if error.add is not None:
        lines.append(_line_to_add(dotted_path(document.value, error.add[0]), error.add[1], document))
    return "\n".join(lines)


def _line_to_add(section: KeyPath, line: str, document: Document) -> str:
    """Write out the line that is missing, indented as it must be."""
    if not section:
        return f"  add at the top level:\n{line}"
    mark = document.mark(section)
    where = f"{key_text(section)} (line {mark.line})"
    if mark.indent is None:
        return f"  add inside the braces of {where}: {line}"
    return f"  add under {where}:\n{' ' * mark.indent}{line}"
