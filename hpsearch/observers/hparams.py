"""What TensorBoard's HParams dashboard reads: parameters, metrics, and each trial's start and end."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams import api_pb2, metadata
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo, SessionStartInfo

from hpsearch.space import (
    Categorical,
    Constant,
    Distribution,
    IntUniform,
    LogIntUniform,
    LogUniform,
    Parameter,
    Space,
    Uniform,
)
from hpsearch.trial import Trial, Value

__all__ = ["HParams"]

_PARENT, _INHERITED = "parent trial", "inherited iteration"
"""No parameter should be called so."""

_TYPES = {bool: api_pb2.DATA_TYPE_BOOL, float: api_pb2.DATA_TYPE_FLOAT64, str: api_pb2.DATA_TYPE_STRING}


class HParams:
    """Encodes a study for the HParams dashboard.

    The dashboard knows numbers, booleans and strings, one of them per parameter. A parameter whose values are
    of several kinds, or lists, mappings or None, is shown as strings (JSON for what is no string), in its
    domain and in every trial alike, so that the dashboard's filters match.

    Where trials are forked there are two columns more, which those show that were: the parent, and the iteration whose
    state was taken over.

    Args:
        space: What is searched.
        forks: Trials may be forked from others.
    """

    def __init__(self, space: Space, forks: bool) -> None:
        self._lineage = (_PARENT, _INHERITED) if forks else ()
        # Of blocks without a bound the first copies alone: the columns are said once, at the beginning.
        self._parameters = [found for name in space.some_names() if (found := space.find(name)) is not None]
        self._kinds = {parameter.name: _kind(_values(parameter.distribution)) for parameter in self._parameters}

    def experiment(self, name: str, metrics: Mapping[str, str], created: float) -> Summary.Value:
        """Describe the study: its parameters, and its metrics as tag → name in the table."""
        experiment = api_pb2.Experiment(
            name=name,
            time_created_secs=created,
            hparam_infos=[self._parameter(parameter) for parameter in self._parameters]
            + [api_pb2.HParamInfo(name=name, type=_TYPES[float], differs=True) for name in self._lineage],
            metric_infos=[
                api_pb2.MetricInfo(name=api_pb2.MetricName(tag=tag), display_name=display_name)
                for tag, display_name in metrics.items()
            ],
        )
        return _summary(metadata.EXPERIMENT_TAG, HParamsPluginData(experiment=experiment))

    def session_start(self, trial: Trial, started: float) -> Summary.Value:
        """Say with which params a trial began, and from which other one."""
        info = SessionStartInfo(start_time_secs=started)
        if trial.parent is not None:
            info.hparams[_PARENT].number_value = trial.parent.number
        if trial.inherited is not None:
            info.hparams[_INHERITED].number_value = trial.inherited
        for name, value in trial.params.items():
            # A searcher of one's own may suggest what is no point of the space.
            kind = self._kinds.get(name, _kind([value]))
            if kind is bool and isinstance(value, bool):
                info.hparams[name].bool_value = value
            elif kind is float and _is_number(value):
                info.hparams[name].number_value = value
            else:
                info.hparams[name].string_value = _as_string(value)
        return _summary(metadata.SESSION_START_INFO_TAG, HParamsPluginData(session_start_info=info))

    def session_end(self, succeeded: bool, ended: float) -> Summary.Value:
        """Say how a trial ended. TensorBoard keeps the first end that it reads, so a trial has only one."""
        status = api_pb2.STATUS_SUCCESS if succeeded else api_pb2.STATUS_FAILURE
        info = SessionEndInfo(status=status, end_time_secs=ended)
        return _summary(metadata.SESSION_END_INFO_TAG, HParamsPluginData(session_end_info=info))

    def _parameter(self, parameter: Parameter) -> api_pb2.HParamInfo:
        distribution, kind = parameter.distribution, self._kinds[parameter.name]
        values = _values(distribution)
        # The dashboard hides the columns of parameters in which trials can't differ.
        info = api_pb2.HParamInfo(name=parameter.name, type=_TYPES[kind], differs=values is None or len(values) > 1)
        if values is not None:
            info.domain_discrete.extend(map(_as_string, values) if kind is str else values)
        elif isinstance(distribution, Uniform | LogUniform | IntUniform | LogIntUniform):
            # The others are unbounded and go without a domain: JSON, and so the browser, has no infinity.
            info.domain_interval.min_value = distribution.min
            info.domain_interval.max_value = distribution.max
        return info


def _summary(tag: str, content: HParamsPluginData) -> Summary.Value:
    plugin = metadata.create_summary_metadata(content)
    return Summary.Value(tag=tag, metadata=plugin, tensor=metadata.NULL_TENSOR)


def _values(distribution: Distribution) -> Sequence[Value] | None:
    """Give the values of which a parameter has one; None where it is any number of a range."""
    match distribution:
        case Categorical(values=values):
            return values
        case Constant(value=value):
            return [value]
    return None


def _kind(values: Sequence[Value] | None) -> type:
    """Give the one type, of bool, float and str, that all these values, or all numbers, are shown as."""
    if values is not None and all(isinstance(value, bool) for value in values):
        return bool
    return float if values is None or all(map(_is_number, values)) else str


def _is_number(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _as_string(value: Value) -> str:
    return value if isinstance(value, str) else json.dumps(value)
