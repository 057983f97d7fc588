"""Import Ray without its and tqdm's advice to install ipywidgets, which a sweep in a notebook doesn't need."""

from __future__ import annotations

import logging
import warnings

__all__ = ["import_ray_quietly"]


def import_ray_quietly() -> None:
    """Import Ray. Both check for a notebook and its widgets while they are imported."""
    ray_widgets = logging.getLogger("ray.widgets.util")
    level = ray_widgets.level
    ray_widgets.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "IProgress not found")
            import ray  # noqa: F401
    finally:
        ray_widgets.setLevel(level)
