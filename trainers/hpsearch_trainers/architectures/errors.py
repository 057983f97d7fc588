"""The mistake in an architecture, with the place where it is."""

from __future__ import annotations

__all__ = ["ArchitectureError"]


class ArchitectureError(ValueError):
    """An architecture that no network can be built from.

    Attributes:
        path: Where in the architecture, such as `layers[2].conv`.
        problem: What must hold, and what was there instead.
    """

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(path, problem)
        self.path = path
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}"
