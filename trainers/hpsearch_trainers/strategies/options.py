"""How a trial is parallel, as the sweep's `parallel` and the trial's own parameters say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from hpsearch_comm.errors import ConfigurationError
from hpsearch_trainers.nearest import nearest

__all__ = ["Options"]


@dataclass(frozen=True, slots=True)
class Options:
    """The `parallel` of a trial."""

    strategy: str = "allreduce"
    values: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """All other keys; those of other strategies may be among them, where the sweep searches over strategies."""

    @classmethod
    def from_dict(cls, parallel: Mapping[str, Any]) -> Options:
        """Read what a trial names; None stands for a key that is left out."""
        values = {key: value for key, value in parallel.items() if value is not None}
        return cls(values.pop("strategy", "allreduce"), MappingProxyType(values))

    def integer(self, key: str, default: int, least: int = 1) -> int:
        """Return a whole number.

        Raises:
            ConfigurationError: It is something else, or less than `least`.
        """
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ConfigurationError(f"parallel.{key} must be a whole number of at least {least}, got {value!r}")
        return value

    def choice(self, key: str, choices: tuple[str, ...]) -> str:
        """Return a word, by default the first of those that are known.

        Raises:
            ConfigurationError: It is none of them.
        """
        value = self.values.get(key, choices[0])
        if value not in choices:
            hint = nearest(value, choices)
            raise ConfigurationError(f"parallel.{key} must be one of {', '.join(choices)}, got {value!r}{hint}")
        return str(value)
