"""W&B's run, config and summary for a trial of a sweep."""

from __future__ import annotations

import math
import os
import sys
import time
import types
from collections import Counter
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from hpsearch.errors import HpsearchError, TrainableError
from hpsearch.trainable.current import current_trial, in_trial
from hpsearch.trainable.metrics import lacking
from hpsearch.trainable.running_trial import RunningTrial, SegmentEnd

_PATIENCE = 3
"""Number of logs with a misspelled metric name that raises an error."""

_told: set[str] = set()


def say_once(text: str) -> None:
    """Print a line to stderr, only once in this process."""
    if text not in _told:
        _told.add(text)
        print(f"hpsearch.compat.wandb: {text}", file=sys.stderr, flush=True)


def trial_here() -> RunningTrial | None:
    """Return the trial that this process runs; None outside of a sweep."""
    return current_trial() if in_trial() else None


class _Attributes(dict[str, Any]):
    """A mapping of names to values, which are also attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            kind, names = type(self).__name__.lower(), ", ".join(self) or "nothing"
            raise AttributeError(f"{kind} has no {name!r}: it holds {names}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


class Config(_Attributes):
    """The params of the sweep, which can't be changed, and further values of the script."""

    _chosen: Mapping[str, Any] = types.MappingProxyType({})

    def begin(self, defaults: object, chosen: Mapping[str, Any]) -> None:
        """Reset to the script's defaults, overridden by the trial's params."""
        vars(self)["_chosen"] = dict(chosen)
        self.clear()
        super().update({**mapping_of(defaults), **chosen})

    def __setitem__(self, name: str, value: Any) -> None:
        if name in self._chosen and value != self._chosen[name]:
            say_once(f"config.{name} is chosen by the sweep: {value!r} is not taken")
        super().__setitem__(name, self._chosen.get(name, value))

    def update(self, given: object = None, allow_val_change: bool | None = None, **more: Any) -> None:  # type: ignore[override]
        """Set several values. `given` is a mapping or argparse's namespace."""
        for name, value in {**mapping_of(given), **more}.items():
            self[name] = value

    def __ior__(self, values: object) -> Config:  # type: ignore[override,misc]
        self.update(values)
        return self

    def setdefaults(self, given: object) -> None:
        """Set missing values."""
        for name, value in mapping_of(given).items():
            self.setdefault(name, value)

    def as_dict(self) -> dict[str, Any]:
        """Return a copy as a dictionary."""
        return dict(self)


class Summary(_Attributes):
    """Values that a script sets at its run's end."""


class FailedRunError(HpsearchError):
    """The script reported that its run failed."""


class Run:
    """The result of `init`. In a sweep it reports to the trial; outside of a sweep it only has W&B's attributes.

    Args:
        trial: The trial; None outside of a sweep.
        config: The run's config.
        named: Arguments of `init`: project, name, ...
    """

    def __init__(self, trial: RunningTrial | None, config: Config, named: Mapping[str, Any]) -> None:
        self.config = config
        self.summary = Summary()
        """Values that the script sets. If they include the sweep's metric, it is the last report."""
        self.id = str(named.get("id") or ("none" if trial is None else trial.number))
        self.name = str(named.get("name") or f"trial-{self.id}")
        self.project, self.entity, self.group = (named.get(key) for key in ("project", "entity", "group"))
        self.tags = tuple(named.get("tags") or ())
        self.notes = named.get("notes")
        self.sweep_id: str | None = None if trial is None else "hpsearch"
        self.url = ""
        self.step = 0
        """Number of reports so far."""
        self._trial = trial
        self._row: dict[str, Any] = {}
        """Values logged since the last report."""
        self._row_step: int | None = None
        """The row's step; None if the script logs without steps."""
        self._leading: frozenset[str] = frozenset()
        """Names in the row when it became complete: when it first had all of the sweep's metrics."""
        self._open = False
        """Whether the last log had `commit=False`."""
        self._committed: int | None = None
        """Step of the last report."""
        self._clock = self._row_time = time.perf_counter()
        """Times of the last logs to the last reported row, and to the current row."""
        self._finished = False
        self._exit_code = 0
        self._named: Counter[str] = Counter()
        """How often each number was logged so far, by name."""

    @property
    def dir(self) -> str:
        """Directory of this attempt; outside of a sweep, the working directory."""
        return os.curdir if self._trial is None else str(self._trial.directory)

    def get_url(self) -> str:
        """Return `url`; the run has no web page."""
        return self.url

    def log(self, data: Mapping[str, Any], step: int | None = None, commit: bool | None = None) -> None:
        """Add numbers to the current row. Each complete row is one report.

        A row is complete when it has all of the sweep's metrics. If the script gives steps, the next row begins with
        the first log of another step. Without steps, the next row begins when a name is logged again that was in the
        row when it became complete. `commit=True` reports a complete row at once. In a sweep without a metric, each log
        is a row, or each step if the script gives steps.

        If a name is logged several times in a row, the last value counts. Values that aren't numbers are skipped.

        Raises:
            SegmentEnd: The scheduler or the end of the sweep ends the segment.
            TrainableError: This is the third log of a name that differs from the metric's only in surrounding blanks.
        """
        if self._trial is None:
            return
        logged, names = _numbers(data), self._trial.metric_names
        self._named.update(logged.keys())
        if self.step == 0:
            self._check_names(names)
        if step is not None and step == self._committed:
            say_once(f"step {step} is reported already: what is logged to it later is not kept")
            return
        if self.is_whole and self._begins_row(logged, step):
            self._report()
        self._row_step = step if step is not None else self._row_step
        self._row.update(logged)
        self._row_time = time.perf_counter()
        if self.is_whole and not self._leading:
            self._leading = frozenset(self._row)
        self._open = commit is False
        if self.is_whole and (commit or (commit is None and step is None and not names)):
            self._report()

    def finish(self, exit_code: int | None = None, quiet: bool | None = None) -> None:
        """End the run: report the row if it is complete, and then the metric if the summary has it.

        A nonzero exit code means that the run failed. Then the summary isn't reported, and the trial fails when the
        script or function ends.

        Raises:
            TrainableError: The script logged numbers, but never the sweep's metric.
        """
        if self._finished:
            return
        if self.is_whole:
            self._report()
        self._finished = True
        self._exit_code = exit_code or 0
        if self._exit_code:
            return
        names = () if self._trial is None else self._trial.metric_names
        numbers = _numbers(self.summary)
        if names and all(name in numbers for name in names):
            self._row.update(numbers)
        if self.is_whole:
            self._report()
        elif self.step == 0 and self._named and (lacked := [name for name in names if name not in self._named]):
            problem = f"a run must log {lacking(lacked[0], self._named, 'this one logged')}"
            raise TrainableError(problem, f"metric.{lacked[0]}")
        elif self._row:
            missing = " and ".join(name for name in names if name not in self._row)
            logged = " and ".join(name for name in names if name in self._row) or ", ".join(self._row)
            say_once(f"{logged} was logged without {missing}, and is not reported: a report needs all metrics")

    def _check_names(self, names: Sequence[str]) -> None:
        """Check that no metric is repeatedly logged under a name that differs only in surrounding blanks."""
        for name in names:
            similar = [other for other in self._named if other.strip() == name.strip()]
            if name not in similar and any(self._named[other] >= _PATIENCE for other in similar):
                problem = f"a run must log {lacking(name, similar, 'this one logged')}"
                raise TrainableError(problem, f"metric.{name}")

    @property
    def is_whole(self) -> bool:
        """Whether the row can be reported: it has all of the sweep's metrics."""
        if self._trial is None or not self._row:
            return False
        return all(name in self._row for name in self._trial.metric_names)

    def _begins_row(self, row: Mapping[str, Any], step: int | None) -> bool:
        if step is not None and self._row_step is not None:
            return step != self._row_step
        return not self._open and not self._leading.isdisjoint(row)

    def _report(self) -> None:
        assert self._trial is not None, "checked"
        metrics, self._row = self._row, {}
        self._committed, self._row_step = self._row_step, None
        self._leading = frozenset()
        self._trial.took(self._row_time - self._clock)
        self._clock = self._row_time
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
        if not isinstance(error, SystemExit):
            self.finish(exit_code=int(error is not None))

    def at_end(self, error: BaseException | None) -> None:
        """End a run when its function or script ends without `finish`.

        Args:
            error: The trainable's exception; None if it returned.

        Raises:
            SegmentEnd: The segment ends with the last report.
            FailedRunError: The script reported that the run failed.
            TrainableError: See `finish`.
        """
        self.finish(exit_code=int(error is not None))
        if self._exit_code and error is None:
            raise FailedRunError(f"the script ended its run with finish(exit_code={self._exit_code})")

    def __getattr__(self, name: str) -> Any:
        if name in IDLE:
            return Nothing(f"run.{name}")
        raise AttributeError(f"hpsearch.compat.wandb's run has no {name!r}; it has log, config, summary and finish")


IDLE = frozenset(
    {"link_artifact", "link_model", "log_artifact", "log_code", "log_model", "use_artifact", "use_model"}
) | {"alert", "define_metric", "mark_preempting", "restore", "save", "unwatch", "watch"}
"""Functions of W&B that do nothing here."""


class Nothing:
    """Replaces a function or class of W&B. It accepts any call and attribute, and prints once that it does nothing.

    Args:
        name: Name of the function or class that it replaces.
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


def mapping_of(value: object) -> dict[str, Any]:
    """Return a script's config as a dictionary.

    Raises:
        TrainableError: The config is neither a mapping nor a namespace.
    """
    if value is None:
        return {}
    attributes = value if isinstance(value, Mapping) else getattr(value, "__dict__", None)
    if attributes is None:
        raise TrainableError(f"config must be a mapping, or what argparse gives, but is a {type(value).__name__}")
    return dict(attributes)


def _numbers(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the numbers in a log. Numbers in a nested mapping get W&B's dotted names."""
    out: dict[str, Any] = {}
    for name, value in data.items():
        if isinstance(value, Mapping):
            out |= _numbers(value, f"{prefix}{name}.")
        elif (number := _number(value)) is not None:
            out[f"{prefix}{name}"] = number
    return out


def _number(value: Any) -> float | None:
    """Return a number, or a scalar of NumPy's or torch's, as a float; None for anything else."""
    if isinstance(value, (str, bytes, Nothing)):
        return None
    if not isinstance(value, (int, float)):
        if math.prod(getattr(value, "shape", (2,))) != 1 or not hasattr(value, "item"):
            return None
        value = value.item()
    return float(value) if isinstance(value, (int, float)) else None
