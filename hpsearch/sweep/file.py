"""Sweep files: YAML with W&B's keys and ours, read into a `Sweep`.

Every mistake is one `SweepError` with file, line, key, what was expected and what stands there. The rules
themselves live in `Sweep` and its parts; this module says which key each one came from.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpsearch.config.checks import InvalidKey, InvalidKeys, KeyPath, Mistakes, integer, key_text, plain, shown, text
from hpsearch.config.import_paths import is_import_path
from hpsearch.config.settings import settings_fields
from hpsearch.errors import SweepError, TrainableError
from hpsearch.schedulers import KNOWN, settings_named
from hpsearch.schedulers.bands import Bands
from hpsearch.schedulers.early_terminate import EarlyTerminate
from hpsearch.searchers import searcher_named
from hpsearch.space import Space
from hpsearch.sweep.document import Document, read_document
from hpsearch.sweep.overrides import Override, apply_overrides, dotted_path
from hpsearch.sweep.parameters import read_constraints, read_parameters
from hpsearch.sweep.parts import Checkpoints, Limits, Metric, Parallel, Resources, Scaling, Search
from hpsearch.sweep.reader import Kind, Table, command_or_line, listed, observer_names, or_none, section, words
from hpsearch.sweep.sweep import Sweep
from hpsearch.sweep.table_name import is_table
from hpsearch.sweep.wandb import BAND_KEYS, HINTS, IGNORED, METRIC_IGNORED, as_bands, wandb_notes
from hpsearch.trainable.macros import check_names
from hpsearch.trial import Params

__all__ = [
    "TOP_KEYS",
    "WRAPPER",
    "load_sweep",
    "locate",
    "sweep_from_mapping",
    "sweep_notes",
    "without_wrapper",
]

_REQUIRED = {
    "method": "method: random",
    "parameters": "parameters: {lr: {min: 0.001, max: 0.1}}",
}
"""Keys at the top that a file must have, and the line to add."""

WRAPPER = "sweep"
"""Key under which some projects keep the whole sweep."""

_LIKELY_SPAN = 27
"""Iterations of three rungs by 3."""

_EPOCHS = re.compile(r"(?:n_?|nb_?|num_?|max_?|total_?|train_?|training_?)*(?:epochs?|iterations?)", re.IGNORECASE)
"""Names of parameters that say how long a trial trains."""


def load_sweep(path: str | Path, overrides: Sequence[str] = (), *, runs: bool = True) -> Sweep:
    """Read a sweep file.

    Args:
        path: The file.
        overrides: `KEY=VALUE`, a dotted key and a value in YAML, each put in place of what the file says.
        runs: It must say what runs a trial; False: its trials are asked for and told of.

    Raises:
        SweepError: The file, or an override, isn't right; the text starts with the path.
    """
    document = _read(path)
    given = apply_overrides(document, overrides)
    try:
        sweep = sweep_from_mapping(document.value, source=str(path), name=_default_name(Path(path)))
        if runs:
            sweep.check_runs()
        return sweep
    except (InvalidKey, InvalidKeys) as error:
        mistakes = error.mistakes if isinstance(error, InvalidKeys) else (error,)
        ordered = sorted(mistakes, key=lambda mistake: document.mark(dotted_path(document.value, mistake.key)).line)
        raise SweepError("\n".join(_located(mistake, document, given) for mistake in ordered)) from None


def sweep_notes(path: str | Path, overrides: Sequence[str] = ()) -> list[str]:
    """Say what a file that `load_sweep` has read means otherwise here than at W&B, whose keys it has."""
    document = _read(path)
    apply_overrides(document, overrides)
    return wandb_notes(document.value)


def locate(path: str | Path, key: str) -> str:
    """Say where a key stands, for an error that shows up later: `"sweep.yaml:12"`.

    Gives the section around a key that isn't there, and the path alone of a file that is gone or broken.
    """
    try:
        document = _read(path)
    except SweepError:
        return str(path)
    return f"{path}:{document.mark(dotted_path(document.value, key)).line}"


def _read(path: str | Path) -> Document:
    """Read a sweep file, and take what stands under a lone `sweep:` for the sweep."""
    document = read_document(Path(path))
    value = document.value
    if isinstance(value, Mapping) and (inside := without_wrapper(value)) is not value:
        document.value = inside
        document.marks = {key[1:]: mark for key, mark in document.marks.items() if key[:1] == (WRAPPER,)}
    return document


def without_wrapper(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the mapping under `sweep:` where nothing stands beside it but anchors; else the mapping itself."""
    inside = value.get(WRAPPER) if {key for key in value if not str(key).startswith("x-")} == {WRAPPER} else None
    return inside if isinstance(inside, Mapping) else value


def sweep_from_mapping(
    value: object, source: str | None = None, name: str = "sweep", trainable: str | None = None
) -> Sweep:
    """Read a sweep as a file holds it, already parsed: the same keys, the same rules.

    Args:
        value: The mapping. Its sections may also be a `Space`, `Limits`, `Hyperband`, ... as Python builds them.
        source: Kept with the sweep.
        name: Its name where the mapping names none.
        trainable: Replaces the one that the mapping names.

    Raises:
        InvalidKey, InvalidKeys: Keys are wrong: a `SweepError` that knows which.
    """
    if isinstance(value, Mapping):  # anchors are kept under keys that begin with x-
        value = {key: given for key, given in without_wrapper(value).items() if not str(key).startswith("x-")}
    table = Table(value, (), TOP_KEYS, HINTS[""])
    kinds: dict[str, Kind[Any]] = {
        **_READERS,
        "early_terminate": or_none(functools.partial(_early_terminate, table)),
        "parameters": functools.partial(_parameters, table),
    }
    given = table.read(kinds, _REQUIRED)
    if "loggers" in given:
        if "observers" in given:
            both = InvalidKey(("loggers",), "is another word for observers, which stands here, too", "keep one of them")
            table.mistakes.found.append(both)
        given["observers"] = given.pop("loggers")
    if trainable is not None:
        given["trainable"] = trainable
    sweep = table.build(Sweep, **{"name": name, "source": source, **given})
    try:  # not of a study that was begun so: it goes on
        check_names(sweep.command or (), sweep.parameters.some_names())
    except TrainableError as error:
        raise InvalidKey(("command",), f"must be a command that can be run: {error}") from None
    return sweep


def _parameters(top: Table, value: object, path: KeyPath) -> Space:
    """Read the section, and the constraints that stand beside it."""
    if isinstance(value, Space):
        if top.has("constraints"):
            problem = "must not stand beside a Space, which has its own"
            raise InvalidKey(("constraints",), problem, "pass them to Space.from_parameters(..., constraints=[...])")
        return value
    return read_parameters(value, path, top.get("constraints", read_constraints) if top.has("constraints") else ())


def _import_path(value: object, path: KeyPath) -> str:
    out = text(value, path)
    if not (is_import_path(out) or is_table(out)):
        problem = f"must be an import path such as package.module:function, got {shown(out)}"
        raise InvalidKey(path, problem, "a script of any kind is named as program" if "/" in out else "")
    return out


def _metric(value: object, path: KeyPath) -> Metric | tuple[Metric, ...]:
    """Read one metric, or a list of several."""

    def read(one: object, path: KeyPath) -> Metric:
        if isinstance(one, Mapping):
            one = {key: given for key, given in one.items() if key not in METRIC_IGNORED}
        return section(Metric, one, path, HINTS["metric"], example=lambda key, table: "loss")

    if not isinstance(value, list | tuple):
        return read(value, path)
    mistakes = Mistakes()
    found: list[Metric] = []
    for place, one in enumerate(value):
        with mistakes.kept():
            found.append(read(one, (*path, place)))
    mistakes.refuse()
    return tuple(found)


def _outcome_constraints(value: object, path: KeyPath) -> tuple[str, ...]:
    """Read constraints on reported metrics: a list, or a single one."""
    given = [value] if isinstance(value, str) else listed(value, path)
    return tuple(text(one, (*path, place)) for place, one in enumerate(given))


def _method(value: object, path: KeyPath) -> str:
    name = text(value, path)
    try:
        searcher_named(name)
    except InvalidKey as error:
        raise error.under(path) from None
    return name


def _early_terminate(top: Table, value: object, path: KeyPath) -> EarlyTerminate:
    """Read the section; its `type` decides which keys it may have."""
    if isinstance(value, EarlyTerminate):
        return value
    if (bands := as_bands(value)) is not None:
        return _wandbs_hyperband(bands, path)
    keys = tuple(value) if isinstance(value, Mapping) else ("type", "max_iter", "eta")
    kind = Table(value, path, keys).get("type", text, "type: hyperband")
    try:
        settings = settings_named(kind)
    except InvalidKey as error:
        raise error.under(path) from None
    hints = dict(HINTS["early_terminate"])
    for key in {key for owner in KNOWN.values() for key in settings_fields(owner)} - settings_fields(settings).keys():
        owners = " and ".join(other for other, owner in KNOWN.items() if key in settings_fields(owner))
        hints[key] = f"it has no meaning for {kind}; it belongs to {owners}"
    return section(settings, value, path, hints, ("type",), functools.partial(_likely, top))


def _wandbs_hyperband(bands: dict[str, Any], path: KeyPath) -> Bands:
    """Read what W&B calls hyperband; mistakes name the keys that stand there."""
    there = {ours: wandbs for wandbs, ours in BAND_KEYS.items()}
    try:
        return section(Bands, bands, path)
    except (InvalidKey, InvalidKeys) as error:
        mistakes = error.mistakes if isinstance(error, InvalidKeys) else (error,)
        raise InvalidKeys(
            [
                InvalidKey((*one.key[:-1], there.get(str(one.key[-1]), one.key[-1])), one.problem, one.advice)
                for one in mistakes
            ]
        ) from None


def _likely(top: Table, key: str, table: Table) -> str:
    """Guess what a file should say that lacks a setting: as long as its own parameters or `max_iter` say.

    Where none of them does, it is three rungs above min_iter.
    """
    if key != "max_iter":
        return "..."
    if (epochs := _epochs(top.value.get("parameters"))) is not None:
        return str(epochs)
    for place, wanted in ((top, "max_iter"), (table, "min_iter")):
        given = place.value.get(wanted)
        if isinstance(given, int) and given >= 1:
            return str(given if place is top else given * _LIKELY_SPAN)
    return str(_LIKELY_SPAN)


def _epochs(parameters: object) -> int | None:
    """Give the most epochs that the parameters may ask for; None where none of them is called so."""
    if not isinstance(parameters, Mapping):
        return None
    for name, given in parameters.items():
        if not isinstance(given, Mapping):
            continue
        if "parameters" in given and (inside := _epochs(given["parameters"])) is not None:
            return inside
        values = given.get("values")
        found = [given.get("value"), given.get("max"), *(values if isinstance(values, list) else [])]
        numbers = [one for one in found if isinstance(one, int) and not isinstance(one, bool) and one >= 1]
        if numbers and _EPOCHS.fullmatch(str(name).rsplit(".", 1)[-1].replace("-", "_")):
            return max(numbers)
    return None


def _points_to_try(value: object, path: KeyPath) -> tuple[Params, ...]:
    points: list[Params] = []
    for place, point in enumerate(listed(value, path)):
        if not isinstance(point, Mapping):
            raise InvalidKey((*path, place), f"must be a mapping of names to values, got {shown(point)}")
        points.append(plain(point, (*path, place)))
    return tuple(points)


_READERS: Mapping[str, Kind[Any]] = {
    "metric": _metric,
    "outcome_constraints": _outcome_constraints,
    "method": _method,
    "name": text,
    "trainable": _import_path,
    "program": text,
    "command": words,
    "max_iter": or_none(integer),
    "run_cap": or_none(integer),
    "points_to_try": _points_to_try,
    "resources": functools.partial(section, Resources),
    "search": functools.partial(section, Search),
    "scaling": functools.partial(section, Scaling),
    "parallel": functools.partial(section, Parallel),
    "limits": functools.partial(section, Limits),
    "checkpoints": functools.partial(section, Checkpoints),
    "seed": integer,
    "observers": observer_names,
    "loggers": observer_names,
    "on_end": command_or_line,
}
"""How each key at the top is read that says all by itself."""

_TOGETHER = ("parameters", "constraints", "early_terminate")
"""Those that hang on others."""

TOP_KEYS = tuple(dict.fromkeys(("metric", "method", *_TOGETHER, *_READERS, *IGNORED)))
"""All that may stand at the top, but for those that begin with `x-`."""


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
    told = f"{place}: {InvalidKey(key, error.problem, error.advice)}"
    if error.add is None:
        return told
    return f"{told}\n{_line_to_add(dotted_path(document.value, error.add[0]), error.add[1], document)}"


def _line_to_add(section: KeyPath, line: str, document: Document) -> str:
    """Write out the line that is missing, indented as it must be."""
    if not section:
        return f"  add at the top level:\n{' ' * (document.mark(()).indent or 0)}{line}"
    mark = document.mark(section)
    where = f"{key_text(section)} (line {mark.line})"
    if mark.indent is None:
        return f"  add inside the braces of {where}: {line}"
    return f"  add under {where}:\n{' ' * mark.indent}{line}"
