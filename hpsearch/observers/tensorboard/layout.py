"""Layout of TensorBoard's Custom Scalars page: the studies' runs side by side."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.plugins.custom_scalar import metadata
from tensorboard.plugins.custom_scalar.layout_pb2 import (
    Category,
    Chart,
    Layout,
    MarginChartContent,
    MultilineChartContent,
)

from hpsearch.observers.tensorboard.repeats import spread_tags
from hpsearch.observers.tensorboard.study_runs import by_tag, found_by, load_tag
from hpsearch.results.comparison import AXES, Axis
from hpsearch.sweep.sweep import Sweep

__all__ = ["layout"]


def layout(sweeps: Sequence[Sweep], repeated: bool) -> Summary.Value:
    """Return the page for studies.

    Args:
        sweeps: The sweep of each study.
        repeated: Whether some differ only in the seed.
    """
    found = list(dict.fromkeys(what for sweep in sweeps for what in found_by(sweep.objective, ())))
    categories = [Category(title=what, chart=[_lines(by_tag(what, axis)) for axis in AXES]) for what in found]
    if repeated:
        charts = [_margins(what, axis) for what in found for axis in AXES]
        categories.insert(0, Category(title="over seeds: median and quartiles", chart=charts))
    loads = [_lines(tag) for tag in dict.fromkeys(map(load_tag, sweeps))]
    rungs = Chart(title="trials per rung", multiline=MultilineChartContent(tag=["^rungs/"]))
    categories.append(Category(title="course", chart=[*loads, rungs]))
    content = Layout(category=categories).SerializeToString()
    return Summary.Value(
        tag=metadata.CONFIG_SUMMARY_TAG,
        metadata=metadata.create_summary_metadata(),
        tensor=TensorProto(dtype=DT_STRING, string_val=[content]),
    )


def _lines(tag: str) -> Chart:
    return Chart(title=tag, multiline=MultilineChartContent(tag=[f"^{re.escape(tag)}$"]))


def _margins(what: str, axis: Axis) -> Chart:
    median, lower, upper = spread_tags(what, axis)
    series = MarginChartContent.Series(value=median, lower=lower, upper=upper)
    return Chart(title=by_tag(what, axis), margin=MarginChartContent(series=[series]))
