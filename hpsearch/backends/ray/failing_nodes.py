"""Nodes on which workers fail for other reasons than the trials: a sweep would start workers there for ever."""

from __future__ import annotations

from collections import Counter

from hpsearch.errors import BackendError

__all__ = ["MOST_FAILURES", "FailingNodes"]

MOST_FAILURES = 3
"""Most workers of a node that may fail in a row."""


class FailingNodes:
    """Counts the workers of each node that failed since the last success there.

    Args:
        stage: Where they fail, such as "before they could run anything".
    """

    def __init__(self, stage: str) -> None:
        self._stage = stage
        self._failures: Counter[str] = Counter()

    def failed(self, node: str, name: str, error: str) -> None:
        """Record that a worker failed.

        Args:
            node: Its node; empty if unknown.
            name: Display name of the node.
            error: Its error.

        Raises:
            BackendError: It is one too many.
        """
        self._failures[node] += 1
        if self._failures[node] >= MOST_FAILURES:
            raise BackendError(
                f"{MOST_FAILURES} workers in a row failed on {name} {self._stage}; the last one: {error}. Is hpsearch "
                "installed there, in the same version, and is there room for temporary files? `hpsearch resume` goes "
                "on once that is mended, or the node has left the cluster (`ray stop` there)."
            )

    def did_well(self, node: str) -> None:
        """Record that a worker succeeded on a node."""
        del self._failures[node]
