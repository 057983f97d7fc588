"""Reading of sweep files: YAML with W&B's keys and additional ones.

All mistakes are reported in one `SweepError` with file, line, key, what was expected and what was found. The rules are
those of `Sweep` and its sections. This module adds the locations.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpsearch.config.checks import InvalidKey, InvalidKeys, KeyPath, Mistakes, at_least, integer, shown, text, under
from hpsearch.config.import_paths import is_import_path, is_table
from hpsearch.config.settings import NONE, settings_fields
from hpsearch.errors import SweepError, TrainableError
from hpsearch.schedulers import KNOWN, settings_named
from hpsearch.schedulers.bands import Bands
from hpsearch.schedulers.early_terminate import EarlyTerminate
from hpsearch.searchers import searcher_named
from hpsearch.space import Space
from hpsearch.sweep.auto import AUTO
from hpsearch.sweep.document import Document, read_document
from hpsearch.sweep.overrides import Override, apply_overrides, dotted_path
from hpsearch.sweep.parameters import read_constraints, read_parameters
from hpsearch.sweep.parts import SECTIONS, Metric, Repeats
from hpsearch.sweep.reader import (
    KeyReader,
    Kind,
    bucket_url,
    command_or_line,
    listed,
    observer_names,
    or_none,
    section,
    words,
)
from hpsearch.sweep.sweep import Sweep
from hpsearch.sweep.wandb import BAND_KEYS, HINTS, IGNORED, METRIC_IGNORED, as_bands, wandb_notes
from hpsearch.trainable.macros import check_names

_REQUIRED = {"parameters": "parameters: {lr: {min: 0.001, max: 0.1}}"}
"""Required top-level keys, and the line to add."""

WRAPPER = "sweep"
"""Key under which some projects put the whole sweep."""

_TOOLS: Mapping[str, Callable[[Mapping[Any, object]], bool]] = {
    "Katib": lambda file: "kubeflow.org" in str(file.get("apiVersion")),
    "NNI": lambda file: (
        any(key in file for key in ("searchSpace", "searchSpaceFile", "trialCommand"))
        or any(isinstance(value, Mapping) and "_type" in value for value in file.values())
    ),
    "Determined": lambda file: "searcher" in file and any(key in file for key in ("entrypoint", "hyperparameters")),
    "Hydra": lambda file: "hydra" in file or isinstance(file.get("defaults"), list),
}
"""Other tools, and whether a file is one of theirs."""


class SweepFile:
    """A parsed sweep file with overrides applied.

    Args:
        document: The parsed file. The sweep is the whole file, or the value of the only key `sweep`.
        overrides: `KEY=VALUE`, a dotted key and a value in YAML, which overrides the file.

    Raises:
        SweepError: An override is wrong; the message starts with the path.
    """

    def __init__(self, document: Document, overrides: Sequence[str] = ()) -> None:
        value = document.value
        if isinstance(value, Mapping) and (inside := without_wrapper(value)) is not value:
            document.value = inside
            document.lines = {key[1:]: line for key, line in document.lines.items() if key[:1] == (WRAPPER,)}
        self._document = document
        self._overrides = apply_overrides(document, overrides)

    @classmethod
    def read(cls, path: str | Path, overrides: Sequence[str] = ()) -> SweepFile:
        """Read and parse a file.

        Raises:
            SweepError: The file can't be parsed, or an override is wrong; the message starts with the path.
        """
        return cls(read_document(Path(path)), overrides)

    def sweep(self, *, runs: bool = True) -> Sweep:
        """Return the sweep.

        Args:
            runs: The sweep must have a trainable or a script; False: it is used with ask and tell.

        Raises:
            SweepError: Keys are wrong; the message names the line of each.
        """
        document = self._document
        _refuse_other_tools(document)
        try:
            sweep = sweep_from_mapping(document.value, document.name, _default_name(Path(document.name)))
            if runs:
                sweep.check_runs()
            return sweep
        except (InvalidKey, InvalidKeys) as error:
            ordered = sorted(error.mistakes, key=lambda mistake: self._line(mistake.key))
            raise SweepError("\n".join(_located(mistake, document, self._overrides) for mistake in ordered)) from None

    def notes(self) -> list[str]:
        """Return notes on keys that have a different meaning than in W&B."""
        return wandb_notes(self._document.value)

    def locate(self, key: str) -> str:
        """Return the location of a key, or of its section if the key is missing: `"sweep.yaml:12"`."""
        return f"{self._document.name}:{self._line(key)}"

    def _line(self, key: KeyPath | str) -> int:
        return self._document.line(dotted_path(self._document.value, key))


def _refuse_other_tools(document: Document) -> None:
    """Check that a file isn't one of another tool's, each of whose keys would be a mistake.

    Raises:
        SweepError: It is. The message names the tool, and where its example is in our keys.
    """
    value = document.value
    if not isinstance(value, Mapping) or "method" in value:
        return
    for tool, is_theirs in _TOOLS.items():
        if is_theirs(value):
            raise SweepError(
                f"{document.name}: must be a sweep file, but is one for {tool}: docs/coming-from.md#{tool.lower()} has "
                "an example in its keys and in those of a sweep file"
            )


def load_sweep(path: str | Path, overrides: Sequence[str] = (), *, runs: bool = True) -> Sweep:
    """Return the sweep of a file.

    Args:
        path: The file.
        overrides: `KEY=VALUE`, a dotted key and a value in YAML, which overrides the file.
        runs: The sweep must have a trainable or a script; False: it is used with ask and tell.

    Raises:
        SweepError: The file or an override is invalid. The message starts with the path.
    """
    return SweepFile.read(path, overrides).sweep(runs=runs)


def locate(path: str | Path, key: str) -> str:
    """Return the location of a key for a later error: `"sweep.yaml:12"`.

    If the key is not in the file, this is the location of its section. If the file cannot be read, it is the path.
    """
    try:
        return SweepFile.read(path).locate(key)
    except SweepError:
        return str(path)


def without_wrapper(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the mapping under `sweep` if it is the only key except for anchors; otherwise the mapping itself."""
    inside = value.get(WRAPPER) if {key for key in value if not str(key).startswith("x-")} == {WRAPPER} else None
    return inside if isinstance(inside, Mapping) else value


def sweep_from_mapping(
    value: object, source: str | None = None, name: str = "sweep", trainable: str | None = None
) -> Sweep:
    """Return the sweep of a mapping with the keys of a sweep file.

    Args:
        value: The mapping. Its sections may also be a `Space`, `Limits`, `Hyperband`, ... as Python builds them.
        source: Path of the file, kept with the sweep.
        name: Default of the sweep's name.
        trainable: Replaces the trainable of the mapping.

    Raises:
        InvalidKey, InvalidKeys: Keys are wrong. Both are `SweepError`s that contain the keys.
    """
    if isinstance(value, Mapping):  # keys with the prefix x- are for anchors
        value = {key: item for key, item in without_wrapper(value).items() if not str(key).startswith("x-")}
    table = KeyReader(value, (), TOP_KEYS, HINTS[""])
    values = table.read({**_READERS, "parameters": functools.partial(_parameters, table)}, _REQUIRED)
    if "loggers" in values:
        if "observers" in values:
            both = InvalidKey(("loggers",), "is another word for observers, which is here, too", "keep one of them")
            table.mistakes.errors.append(both)
        values["observers"] = values.pop("loggers")
    if trainable is not None:
        values["trainable"] = trainable
    sweep = table.build(Sweep, **{"name": name, "source": source, "method": AUTO, **values})
    try:  # not in Sweep, so that an existing study can be resumed
        check_names(sweep.command or (), sweep.parameters.some_names())
    except TrainableError as error:
        raise InvalidKey(("command",), f"must be a command that can be run: {error}") from None
    return sweep


def _parameters(top: KeyReader, value: object, path: KeyPath) -> Space:
    """Read the section `parameters`, with the section `constraints`."""
    if isinstance(value, Space):
        if top.has("constraints"):
            problem = "must not be given with a Space, which has its own"
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

    def read(metric: object, path: KeyPath) -> Metric:
        if isinstance(metric, Mapping):
            metric = {key: item for key, item in metric.items() if key not in METRIC_IGNORED}
        return section(Metric, metric, path, HINTS["metric"], example="loss")

    if not isinstance(value, list | tuple):
        return read(value, path)
    mistakes = Mistakes()
    metrics: list[Metric] = []
    for index, metric in enumerate(value):
        with mistakes.collect():
            metrics.append(read(metric, (*path, index)))
    mistakes.raise_collected()
    return tuple(metrics)


def _outcome_constraints(value: object, path: KeyPath) -> tuple[str, ...]:
    """Read constraints on reported metrics: a list, or a single one."""
    constraints = [value] if isinstance(value, str) else listed(value, path)
    return tuple(text(constraint, (*path, index)) for index, constraint in enumerate(constraints))


def _method(value: object, path: KeyPath) -> str:
    name = text(value, path)
    if name != AUTO:
        with under(path):
            searcher_named(name)
    return name


def _early_terminate(value: object, path: KeyPath) -> EarlyTerminate:
    """Read the section `early_terminate`; its `type` determines the other keys."""
    if isinstance(value, EarlyTerminate):
        return value
    if (bands := as_bands(value)) is not None:
        return _wandbs_hyperband(bands, path)
    keys = tuple(value) if isinstance(value, Mapping) else ("type", "max_iter", "eta")
    kind = KeyReader(value, path, keys).get("type", text, "type: hyperband")
    with under(path):
        settings = settings_named(kind)
    hints = dict(HINTS["early_terminate"])
    for key in {key for owner in KNOWN.values() for key in settings_fields(owner)} - settings_fields(settings).keys():
        owners = " and ".join(other for other, owner in KNOWN.items() if key in settings_fields(owner))
        hints[key] = f"it has no meaning for {kind}; it belongs to {owners}"
    return section(settings, value, path, hints, ("type",), "27")


def _wandbs_hyperband(bands: dict[str, Any], path: KeyPath) -> Bands:
    """Read W&B's hyperband as `Bands`. Mistakes name W&B's keys."""
    wandbs_keys = {ours: wandbs for wandbs, ours in BAND_KEYS.items()}
    try:
        return section(Bands, bands, path)
    except (InvalidKey, InvalidKeys) as error:
        raise InvalidKeys(
            [
                InvalidKey((*section_path, wandbs_keys.get(str(key), key)), mistake.problem, mistake.advice)
                for mistake in error.mistakes
                for *section_path, key in [mistake.key]
            ]
        ) from None


def _repeats(value: object, path: KeyPath) -> Repeats:
    """Read the section `repeats`, or its number `n` alone."""
    if value == NONE:
        return Repeats()
    if isinstance(value, Mapping | Repeats):
        return section(Repeats, value, path)
    return section(Repeats, {"n": at_least(1, integer, value, path)}, path)


_READERS: Mapping[str, Kind[Any]] = {
    "metric": _metric,
    "outcome_constraints": _outcome_constraints,
    "method": _method,
    "early_terminate": or_none(_early_terminate),
    "name": text,
    "trainable": _import_path,
    "program": text,
    "command": words,
    "max_iter": or_none(integer),
    "run_cap": or_none(integer),
    "points_to_try": listed,
    **{
        name: functools.partial(section, SECTIONS[name])
        for name in ("resources", "search", "scaling", "parallel", "limits", "checkpoints")
    },
    "repeats": _repeats,
    "seed": integer,
    "observers": observer_names,
    "loggers": observer_names,
    "on_end": command_or_line,
    "storage": or_none(bucket_url),
}
"""Readers of the top-level keys that do not depend on other keys."""

TOP_KEYS = tuple(dict.fromkeys(("metric", "method", "parameters", "constraints", *_READERS, *IGNORED)))
"""All top-level keys, except those with the prefix `x-`."""


def _default_name(path: Path) -> str:
    """Return the stem of the file name, as a valid name of a sweep."""
    stem = re.sub(r"[^\w .+-]", "_", path.stem).lstrip(".").strip()[:60]
    return stem or "sweep"


def _located(error: InvalidKey, document: Document, overrides: Sequence[Override]) -> str:
    """Return the text of an error with file and line, or with the `--set` that caused it."""
    key = dotted_path(document.value, error.key)
    override = next((item for item in reversed(overrides) if key[: len(item.path)] == item.path), None)
    if override is not None:
        location = f"{document.name}: --set {override.text}"
    else:
        location = f"{document.name}:{document.line(key)}"
    add = None if error.add is None else (dotted_path(document.value, error.add[0]), error.add[1])
    return f"{location}: {InvalidKey(key, error.problem, error.advice, add)}"
