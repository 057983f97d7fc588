"""W&B's run, its config and its summary, as a trial of a sweep has them."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from types import TracebackType
from typing import Any

from hpsearch.errors import TrainableError
from hpsearch.trainable.current import current_trial
from hpsearch.trainable.metrics import lacking
from hpsearch.trainable.running_trial import RunningTrial, SegmentEnd

__all__ = ["Config", "Nothing", "Run", "Summary", "mapping_of", "say_once", "trial_here"]

_told: set[str] = set()


def say_once(text: str) -> None:
    """Print a line to the error stream, once in this process."""
    if text not in _told:
        _told.add(text)
        print(f"hpsearch.compat.wandb: {text}", file=sys.stderr, flush=True)


def trial_here() -> RunningTrial | None:
    """Give the trial that this process runs; None outside of a sweep."""
    try:
        return current_trial()
    except TrainableError:
        if "HPSEARCH_TRIAL" in os.environ:
            raise
        return None


class Config(MutableMapping[str, Any]):
    """Names to values, as items and as attributes; what the sweep chose stays, whatever is set."""

    def __init__(self) -> None:
        object.__setattr__(self, "_values", {})
        object.__setattr__(self, "_chosen", {})

    _values: dict[str, Any]
    _chosen: dict[str, Any]

    def begin(self, defaults: object, chosen: Mapping[str, Any]) -> None:
        """Begin anew with a script's defaults, and with the params of a trial, which come before them."""
        self._values.clear()
        self._chosen.clear()
        self._chosen.update(chosen)
        self._values.update(mapping_of(defaults))
        self._values.update(chosen)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __setitem__(self, name: str, value: Any) -> None:
        if name in self._chosen:
            if value != self._chosen[name]:
                say_once(f"config.{name} is chosen by the sweep: {value!r} is not taken")
            return
        self._values[name] = value

    def __delitem__(self, name: str) -> None:
        del self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __getattr__(self, name: str) -> Any:
        if name in ("_values", "_chosen") or name.startswith("__"):  # of a copy that isn't filled yet
            raise AttributeError(name)
        try:
            return self._values[name]
        except KeyError:
            raise AttributeError(f"config has no {name!r}: it holds {', '.join(self._values) or 'nothing'}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def update(self, given: object = None, allow_val_change: bool | None = None, **more: Any) -> None:  # type: ignore[override]
        """Set several; `given` is a mapping or what argparse gave."""
        for name, value in {**mapping_of(given), **more}.items():
            self[name] = value

    def setdefaults(self, given: object) -> None:
        """Set those that aren't there."""
        for name, value in mapping_of(given).items():
            self.setdefault(name, value)

    def as_dict(self) -> dict[str, Any]:
        """Give a copy."""
        return dict(self._values)


class Summary(dict[str, Any]):
    """Names to values, as items and as attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"summary has no {name!r}: it holds {', '.join(self) or 'nothing'}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


class Run:
    """What `init` gives: a trial of a sweep, or nothing but names outside of one.

    Args:
        trial: None outside of a sweep.
        config: Begun for this run.
        named: What the script called it: project, name, ...
    """

    def __init__(self, trial: RunningTrial | None, config: Config, named: Mapping[str, Any]) -> None:
        self.config = config
        self.summary = Summary()
        """What the script puts here; where it holds the sweep's metric, that is the last report."""
        self.id = str(named.get("id") or ("none" if trial is None else trial.number))
        self.name = str(named.get("name") or f"trial-{self.id}")
        self.project, self.entity, self.group = (named.get(key) for key in ("project", "entity", "group"))
        self.tags = tuple(named.get("tags") or ())
        self.notes = named.get("notes")
        self.sweep_id: str | None = None if trial is None else "hpsearch"
        self.url = ""
        self.step = 0
        """Reports so far."""
        self._trial = trial
        self._waiting: dict[str, Any] = {}
        """What was logged since the last report, and awaits the next."""
        self._logged: int | None = None
        """The step of the last log, where the script names steps."""
        self._reported: int | None = None
        """That of the last report."""
        self._finished = False
        self._named: dict[str, None] = {}
        """All numbers that were logged so far."""

    @property
    def dir(self) -> str:
        """A directory of this attempt's own; outside of a sweep the working directory."""
        return os.curdir if self._trial is None else str(self._trial.directory)

    def get_url(self) -> str:
        """There is no page of it."""
        return self.url

    def log(self, data: Mapping[str, Any], step: int | None = None, commit: bool | None = None) -> None:
        """Report, once all of the sweep's metrics were logged since the last report, by this log or by those before.

        Of a name that was logged several times the last value counts. What is no number is left out. Several logs of
        one `step` are one report, and what comes after the metric in it goes with the next one. Where the sweep names
        no metric, each log is a report, or of those with a `step` each step.

        Raises:
            SegmentEnd: The trial ends here, as its scheduler or the sweep's end has it.
        """
        if self._trial is None:
            return
        given, names = _numbers(data), self._trial.metric_names
        self._named |= dict.fromkeys(given)
        if step is not None and step == self._reported:
            self._waiting.update({name: number for name, number in given.items() if name not in names})
            return
        if not names and self._logged not in (None, step):
            self._report()  # the step before is whole
        self._logged = step
        self._waiting.update(given)
        if commit is None:
            commit = step is None or bool(names)
        if commit and self._is_whole:
            self._reported = step
            self._report()

    def finish(self, exit_code: int | None = None, quiet: bool | None = None) -> None:
        """End the run; what was logged and not committed, and a metric that stands in the summary, is reported last.

        Nothing is where an exit code other than 0 says that the run has failed.

        Raises:
            TrainableError: Numbers were logged, but the sweep's metric never was.
        """
        if self._finished:
            return
        self._finished = True
        if exit_code:
            say_once(
                f"finish(exit_code={exit_code}): what was reported stays; raise an error where the trial has failed"
            )
            return
        names = () if self._trial is None else self._trial.metric_names
        given = _numbers(self.summary)
        if names and all(name in given for name in names):
            self._waiting.update(given)
        if self._is_whole:
            self._report()
        elif self.step == 0 and self._named and (lacked := [name for name in names if name not in self._named]):
            raise TrainableError(f"a run must log {lacking(lacked[0], self._named, 'this one logged')}")
        elif known := [name for name in names if name in self._waiting]:
            missing = " and ".join(name for name in names if name not in self._waiting)
            say_once(f"{' and '.join(known)} was logged without {missing}, and is not reported: a report needs all")

    def abandon(self) -> None:
        """End the run of a script that has failed: nothing more is reported."""
        self._finished = True

    @property
    def _is_whole(self) -> bool:
        """Whether there is something to report, with all that the sweep wants to know."""
        if self._trial is None or not self._waiting:
            return False
        return all(name in self._waiting for name in self._trial.metric_names)

    def _report(self) -> None:
        assert self._trial is not None, "checked"
        self._logged = None
        metrics, self._waiting = self._waiting, {}
        self.step += 1
        try:
            self._trial.report(metrics)
        except SegmentEnd:
            self._finished = True
            raise

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.finish()

    def at_exit(self) -> None:
        """End a run that its script didn't end."""
        try:
            self.finish()
        except SegmentEnd:
            return
        except TrainableError as error:  # nobody else tells of what is raised here
            sys.excepthook(type(error), error, error.__traceback__)

    def __getattr__(self, name: str) -> Any:
        if name in IDLE:
            return Nothing(f"run.{name}")
        raise AttributeError(f"hpsearch.compat.wandb's run has no {name!r}; it has log, config, summary and finish")


IDLE = frozenset(
    [
        "alert",
        "define_metric",
        "link_artifact",
        "link_model",
        "log_artifact",
        "log_code",
        "log_model",
        "mark_preempting",
        "restore",
        "save",
        "unwatch",
        "use_artifact",
        "use_model",
        "watch",
    ]
)
"""Functions that do nothing here."""


class Nothing:
    """Takes any call and any attribute, and says once that it does nothing.

    Args:
        name: Of what it stands for.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *args: Any, **kwargs: Any) -> Nothing:
        """Do nothing."""
        say_once(f"{self._name}(...) does nothing here")
        return self

    def __getattr__(self, name: str) -> Nothing:
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing(f"{self._name}.{name}")


def mapping_of(given: object) -> dict[str, Any]:
    """Give a script's config as a dictionary.

    Raises:
        TrainableError: It is neither a mapping nor what argparse gives.
    """
    if given is None:
        return {}
    found = given if isinstance(given, Mapping) else getattr(given, "__dict__", None)
    if found is None:
        raise TrainableError(f"config must be a mapping, or what argparse gives, but is a {type(given).__name__}")
    return dict(found)


def _numbers(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Give the numbers of what is logged; those in a mapping inside are named as W&B names them, with a dot."""
    out: dict[str, Any] = {}
    for name, value in data.items():
        if isinstance(value, Mapping):
            out |= _numbers(value, f"{prefix}{name}.")
        elif (number := _number(value)) is not None:
            out[f"{prefix}{name}"] = number
    return out


def _number(value: Any) -> float | None:
    """Give a number, or a scalar of NumPy's or torch's, as a float; None for anything else."""
    if isinstance(value, (str, bytes, Nothing)):
        return None
    if not isinstance(value, (int, float)):
        if math.prod(getattr(value, "shape", (2,))) != 1 or not hasattr(value, "item"):
            return None
        value = value.item()
    return float(value) if isinstance(value, (int, float)) else None
