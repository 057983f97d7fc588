"""Records for TensorBoard's HParams dashboard: parameters, metrics, and each trial's start and end."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams import api_pb2, metadata
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo, SessionStartInfo

from hpsearch.space import (
    Categorical,
    Constant,
    Distribution,
    IntUniform,
    LogIntUniform,
    LogNormal,
    LogUniform,
    Space,
    Uniform,
    ZeroOrLogUniform,
)
from hpsearch.trial import Trial, Value

DISPLAYED = 5
"""Number of columns that the dashboard shows at first.

It sorts columns by name, those marked as differing first. So we can choose the visible columns, but not their order.
"""

_ON_LOG_SCALE = (LogUniform, ZeroOrLogUniform, LogIntUniform, LogNormal)

_STATES = ("complete", "stopped", "failed")

_TYPES = {bool: api_pb2.DATA_TYPE_BOOL, float: api_pb2.DATA_TYPE_FLOAT64, str: api_pb2.DATA_TYPE_STRING}


@dataclass(frozen=True, slots=True)
class Known:
    """Further data of a trial. Fields that are None aren't shown."""

    study: str | None = None
    """Name of the trial's study, if there are several studies."""
    state: str | None = None
    """State in which the trial ended."""
    bracket: int | None = None


class HParams:
    """Encodes studies for the HParams dashboard.

    The dashboard supports numbers, booleans and strings, one type per parameter. A parameter with values of several
    types, or with lists, mappings or None, is shown as strings (JSON for other types). Its domain and all trials use
    the same strings, so that filters match. A parameter on a log scale also has a column for its decimal logarithm, as
    the dashboard's axes are linear by default.

    If trials may be forked, there are two more columns: the parent, and the parent's iteration at the fork. If
    configurations are repeated, there is one more. The repeats of a configuration are a group of sessions, of which the
    dashboard shows one row with the mean of each metric.

    Args:
        spaces: The space of each study.
        forks: Whether trials may be forked.
        brackets: Whether there may be several brackets.
        studies: Names of the studies, if there are several.
        repeats: Whether configurations are repeated.
    """

    def __init__(
        self,
        spaces: Sequence[Space],
        forks: bool = False,
        brackets: bool = False,
        studies: Sequence[str] = (),
        repeats: bool = False,
    ) -> None:
        # Columns are written once, at the beginning. So only the first copies of unbounded blocks have columns.
        names = dict.fromkeys(name for space in spaces for name in space.some_names())
        params_by_name = {
            name: [param for space in spaces if (param := space.find(name)) is not None] for name in names
        }
        self._distributions = {
            name: [param.distribution for param in params] for name, params in params_by_name.items() if params
        }
        self._kinds = {name: _shared_kind(distributions) for name, distributions in self._distributions.items()}
        self._logs = {
            name: self._free(f"log10({name})")
            for name, distributions in self._distributions.items()
            if self._kinds[name] is float and any(isinstance(item, _ON_LOG_SCALE) for item in distributions)
        }
        self._study, self._state, self._bracket, self._parent, self._inherited = map(
            self._free, ("study", "state", "bracket", "parent trial", "inherited iteration")
        )
        self._configuration = self._free("configuration")
        self._forks, self._brackets, self._studies, self._repeats = forks, brackets, studies, repeats

    def experiment(
        self, name: str, metrics: Mapping[str, str], created: float, first: Sequence[str] = ()
    ) -> Summary.Value:
        """Describe the studies.

        Args:
            name: Common name of the studies.
            metrics: Maps each tag to the metric's name in the table.
            created: Time of creation, in seconds since the epoch.
            first: Names of the most important parameters, the most important one first.
        """
        columns = self._columns(first)
        # The dashboard shows columns marked as differing first, by name.
        varying = [column for column in columns if column.differs]
        for column in varying[DISPLAYED:]:
            column.differs = False
        experiment = api_pb2.Experiment(
            name=name,
            time_created_secs=created,
            hparam_infos=columns,
            metric_infos=[
                api_pb2.MetricInfo(name=api_pb2.MetricName(tag=tag), display_name=display_name)
                for tag, display_name in metrics.items()
            ],
        )
        return _summary(metadata.EXPERIMENT_TAG, HParamsPluginData(experiment=experiment))

    def session_start(self, trial: Trial, started: float, facts: Known) -> Summary.Value:
        """Write a trial's params, its parent, and its further data."""
        info = SessionStartInfo(start_time_secs=started)
        if facts.study is not None and self._studies:
            info.hparams[self._study].string_value = facts.study
        if facts.state is not None:
            info.hparams[self._state].string_value = facts.state
        if facts.bracket is not None and self._brackets:
            info.hparams[self._bracket].number_value = facts.bracket
        if trial.configuration is not None and self._repeats:
            info.hparams[self._configuration].number_value = trial.configuration
            info.group_name = f"{facts.study or ''} configuration {trial.configuration}".strip()
        if trial.parent is not None:
            info.hparams[self._parent].number_value = trial.parent.number
        if trial.inherited is not None:
            info.hparams[self._inherited].number_value = trial.inherited
        for name, value in trial.params.items():
            # A user's searcher may suggest values outside the space.
            kind = self._kinds.get(name, _kind([value]))
            if kind is bool and isinstance(value, bool):
                info.hparams[name].bool_value = value
            elif kind is float and _is_number(value):
                info.hparams[name].number_value = value
            else:
                info.hparams[name].string_value = _as_string(value)
            if name in self._logs and _is_number(value) and value > 0:
                info.hparams[self._logs[name]].number_value = math.log10(value)
        return _summary(metadata.SESSION_START_INFO_TAG, HParamsPluginData(session_start_info=info))

    def session_end(self, succeeded: bool, ended: float) -> Summary.Value:
        """Return a trial's end as a record. TensorBoard keeps the first end that it reads, so a trial has only one."""
        status = api_pb2.STATUS_SUCCESS if succeeded else api_pb2.STATUS_FAILURE
        info = SessionEndInfo(status=status, end_time_secs=ended)
        return _summary(metadata.SESSION_END_INFO_TAG, HParamsPluginData(session_end_info=info))

    def _free(self, name: str) -> str:
        """Return a name that no parameter has."""
        while name in self._distributions:
            name += " "
        return name

    def _columns(self, first: Sequence[str]) -> list[api_pb2.HParamInfo]:
        """Return all columns, the most important ones first.

        For a parameter on a log scale, the logarithm is the important column, as the dashboard plots columns linearly.
        The value itself would use up another of the few visible columns.
        """
        columns, plain = [_discrete(self._study, self._studies)] if self._studies else [], []
        rank = {name: number for number, name in enumerate(first)}
        for name in sorted(self._distributions, key=lambda name: rank.get(name, len(rank))):
            distributions = self._distributions[name]
            column = _parameter(name, self._kinds[name], distributions)
            if name in self._logs:
                plain.append(column)
                column = _logarithm(self._logs[name], distributions, column.differs)
            columns.append(column)
        columns.append(_discrete(self._state, _STATES))
        names = [self._bracket] if self._brackets else []
        names += [self._parent, self._inherited] if self._forks else []
        names += [self._configuration] if self._repeats else []
        columns += [api_pb2.HParamInfo(name=name, type=_TYPES[float], differs=True) for name in names]
        return columns + plain


def _parameter(name: str, kind: type, distributions: Sequence[Distribution]) -> api_pb2.HParamInfo:
    values = _values(distributions)
    # The dashboard shows constant columns last.
    info = api_pb2.HParamInfo(name=name, type=_TYPES[kind], differs=values is None or len(values) > 1)
    if values is not None:
        info.domain_discrete.extend(map(_as_string, values) if kind is str else values)
    elif kind is float and (ends := _ends(distributions)) is not None:
        info.domain_interval.min_value, info.domain_interval.max_value = ends
    return info


def _logarithm(name: str, distributions: Sequence[Distribution], differs: bool) -> api_pb2.HParamInfo:
    info = api_pb2.HParamInfo(name=name, type=_TYPES[float], differs=differs)
    ends = _ends(distributions)
    if ends is not None and ends[0] > 0:
        info.domain_interval.min_value, info.domain_interval.max_value = map(math.log10, ends)
    return info


def _discrete(name: str, values: Sequence[str]) -> api_pb2.HParamInfo:
    info = api_pb2.HParamInfo(name=name, type=_TYPES[str], differs=len(values) > 1)
    info.domain_discrete.extend(values)
    return info


def _ends(distributions: Sequence[Distribution]) -> tuple[float, float] | None:
    """Return the bounds of all values; None if there are none, as JSON has no infinity."""
    ends: list[float] = []
    for distribution in distributions:
        if isinstance(distribution, Uniform | LogUniform | IntUniform | LogIntUniform):
            ends += distribution.min, distribution.max
        elif isinstance(distribution, ZeroOrLogUniform):
            ends += distribution.ends
        elif (values := _values([distribution])) is not None:
            ends += values
        else:
            return None
    return (min(ends), max(ends)) if ends else None


def _summary(tag: str, content: HParamsPluginData) -> Summary.Value:
    plugin = metadata.create_summary_metadata(content)
    return Summary.Value(tag=tag, metadata=plugin, tensor=metadata.NULL_TENSOR)


def _values(distributions: Sequence[Distribution]) -> Sequence[Value] | None:
    """Return the distinct values of a parameter over all studies; None if a study samples it from a range."""
    distinct: list[Value] = []
    for distribution in distributions:
        match distribution:
            case Categorical(values=values):
                candidates: Sequence[Value] = values
            case Constant(value=value):
                candidates = [value]
            case _:
                return None
        distinct += [value for value in candidates if not any(_equal(value, former) for former in distinct)]
    return distinct


def _equal(value: Value, other: Value) -> bool:
    return isinstance(value, bool) is isinstance(other, bool) and bool(value == other)


def _kind(values: Sequence[Value]) -> type:
    """Return the type that all these values are shown as: bool, float or str."""
    if all(isinstance(value, bool) for value in values):
        return bool
    return float if all(map(_is_number, values)) else str


def _shared_kind(distributions: Sequence[Distribution]) -> type:
    """Return the type that a parameter's values are shown as in all studies. Values of ranges are floats."""
    return _kind([value for distribution in distributions for value in _values([distribution]) or [0.0]])


def _is_number(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _as_string(value: Value) -> str:
    return value if isinstance(value, str) else json.dumps(value)
