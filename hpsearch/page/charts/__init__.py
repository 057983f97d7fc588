"""Charts as SVG, drawn from basic shapes."""
