"""Run segments on Ray: the pool of workers, and the messages to and from them. Only this package imports Ray."""

from __future__ import annotations

import logging
import sys
import warnings


def _import_ray_quietly() -> None:
    """Import Ray without its and tqdm's advice to install ipywidgets, which a sweep in a notebook doesn't need.

    Both check for a notebook and its widgets while they are imported.
    """
    ray_widgets = logging.getLogger("ray.widgets.util")
    level = ray_widgets.level
    ray_widgets.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "IProgress not found")
            import ray  # noqa: F401
    finally:
        ray_widgets.setLevel(level)


if "IPython" in sys.modules:
    _import_ray_quietly()
