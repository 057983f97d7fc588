"""Charts from numbers: shapes on a picture, written as SVG for pages and as PNG for everything else."""

from hpsearch.charts.chart import Chart
from hpsearch.charts.picture import Picture
from hpsearch.charts.png import png
from hpsearch.charts.scales import Linear, Log, Names, Scale, scale_of
from hpsearch.charts.svg import STYLE, svg

__all__ = ["STYLE", "Chart", "Linear", "Log", "Names", "Picture", "Scale", "png", "scale_of", "svg"]
