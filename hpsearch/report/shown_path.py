"""How a path is shown: by its shortest name from where one is."""

from __future__ import annotations

from pathlib import Path

__all__ = ["shown_path"]


def shown_path(path: Path, here: Path) -> str:
    """Give a path by its shortest name from a folder, which a command takes for a path and not for an option.

    Args:
        path: A file or a directory, absolute, or as it is named from here.
        here: The folder, absolute.
    """
    name = str(path.relative_to(here) if path.is_relative_to(here) and path != here else path)
    return f"./{name}" if name.startswith("-") else name
