"""Charts from numbers: shapes on a picture, written as SVG."""

from hpsearch.charts.chart import Chart
from hpsearch.charts.legend import Key, legend
from hpsearch.charts.letters import fitted, width_of
from hpsearch.charts.picture import Picture
from hpsearch.charts.scales import FAR, Linear, Log, Marked, Names, Scale, between, scale_of
from hpsearch.charts.svg import STYLE, svg

__all__ = [
    "FAR",
    "STYLE",
    "Chart",
    "Key",
    "Linear",
    "Log",
    "Marked",
    "Names",
    "Picture",
    "Scale",
    "between",
    "fitted",
    "legend",
    "scale_of",
    "svg",
    "width_of",
]
