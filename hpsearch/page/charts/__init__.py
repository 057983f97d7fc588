"""Charts as SVG, drawn from basic shapes."""

from hpsearch.page.charts.chart import Chart, Key, legend
from hpsearch.page.charts.picture import STYLE, Picture, fitted, svg, width_of
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
