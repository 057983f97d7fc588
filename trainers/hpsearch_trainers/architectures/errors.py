"""Errors in an architecture, with their location."""

from __future__ import annotations


class ArchitectureError(ValueError):
    """An architecture from which no network can be built.

    Attributes:
        path: Location in the architecture, such as `layers[2].conv`.
        problem: What must hold, and what was found.
    """

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(path, problem)
        self.path = path
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}"
