"""What TensorBoard's HParams dashboard reads: parameters, metrics, and each trial's start and end."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hpsearch.observers.domains import Choices, Domain, Interval
from hpsearch.trial import Params, Value

if TYPE_CHECKING:
    from tensorboard.compat.proto.summary_pb2 import Summary

__all__ = ["HParams"]


class HParams:
    """Encodes a study for the HParams dashboard.

    The dashboard knows numbers, booleans and strings, one of them per parameter. A parameter whose values are
    of several kinds, or lists, mappings or None, is shown as strings (JSON for what is no string), in its
    domain and in every trial alike, so that the dashboard's filters match.

    Args:
        domains: Flat parameter names to what each may be, in the order of the sweep.
    """

    def __init__(self, domains: Mapping[str, Domain]) -> None:
        from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2

        self._api_pb2 = api_pb2
        self._metadata = metadata
        self._plugin_data_pb2 = plugin_data_pb2
        self._domains = domains
        self._kinds = {name: _kind(domain) for name, domain in domains.items()}

    def experiment(self, name: str, metrics: Mapping[str, str], created: float) -> Summary.Value:
        """Describe the study: its parameters, and its metrics as tag → name in the table."""
        api = self._api_pb2
        experiment = api.Experiment(
            name=name,
            time_created_secs=created,
            hparam_infos=[self._parameter(parameter) for parameter in self._domains],
            metric_infos=[
                api.MetricInfo(name=api.MetricName(tag=tag), display_name=display_name)
                for tag, display_name in metrics.items()
            ],
        )
        return self._value(self._metadata.EXPERIMENT_TAG, experiment=experiment)

    def session_start(self, params: Params, started: float) -> Summary.Value:
        """Say with which params a trial began."""
        info = self._plugin_data_pb2.SessionStartInfo(start_time_secs=started)
        for name, value in params.items():
            kind = self._kinds.get(name, _kind(Choices((value,))))
            if kind is bool and isinstance(value, bool):
                info.hparams[name].bool_value = value
            elif kind is float and _is_number(value):
                info.hparams[name].number_value = value
            else:
                info.hparams[name].string_value = _as_string(value)
        return self._value(self._metadata.SESSION_START_INFO_TAG, session_start_info=info)

    def session_end(self, succeeded: bool, ended: float) -> Summary.Value:
        """Say how a trial ended. TensorBoard keeps the first end that it reads, so a trial has only one."""
        api = self._api_pb2
        info = self._plugin_data_pb2.SessionEndInfo(
            status=api.STATUS_SUCCESS if succeeded else api.STATUS_FAILURE, end_time_secs=ended
        )
        return self._value(self._metadata.SESSION_END_INFO_TAG, session_end_info=info)

    def _parameter(self, name: str) -> Any:
        api = self._api_pb2
        domain, kind = self._domains[name], self._kinds[name]
        types = {bool: api.DATA_TYPE_BOOL, float: api.DATA_TYPE_FLOAT64, str: api.DATA_TYPE_STRING}
        info = api.HParamInfo(name=name, type=types[kind], differs=_differs(domain))
        if isinstance(domain, Choices):
            values = domain.values if kind is not str else [_as_string(value) for value in domain.values]
            info.domain_discrete.extend(values)
        elif math.isfinite(domain.low) and math.isfinite(domain.high):
            # An unbounded parameter goes without a domain: JSON, and so the browser, has no infinity.
            info.domain_interval.min_value = domain.low
            info.domain_interval.max_value = domain.high
        return info

    def _value(self, tag: str, **content: object) -> Summary.Value:
        from tensorboard.compat.proto.summary_pb2 import Summary

        plugin_data = self._plugin_data_pb2.HParamsPluginData(**content)
        return Summary.Value(
            tag=tag,
            metadata=self._metadata.create_summary_metadata(plugin_data),
            tensor=self._metadata.NULL_TENSOR,
        )


def _kind(domain: Domain) -> type:
    """Give the one type, of bool, float and str, that all values of a domain are shown as."""
    if isinstance(domain, Interval):
        return float
    if all(isinstance(value, bool) for value in domain.values):
        return bool
    return float if all(_is_number(value) for value in domain.values) else str


def _is_number(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _as_string(value: Value) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _differs(domain: Domain) -> bool:
    """Say whether trials can differ in it; the dashboard hides the columns where they can't."""
    if isinstance(domain, Interval):
        return domain.low != domain.high
    return len(domain.values) > 1
