"""Charts from numbers: shapes on a picture, written as SVG."""

from hpsearch.page.charts.chart import Chart
from hpsearch.page.charts.legend import Key, legend
from hpsearch.page.charts.letters import fitted, width_of
from hpsearch.page.charts.picture import STYLE, Picture, svg
from hpsearch.page.charts.scales import FAR, Linear, Log, Marked, Names, Scale, between, scale_of, scale_of_good

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
    "scale_of_good",
    "svg",
    "width_of",
]
