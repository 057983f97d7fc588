"""Horovod's variables that mean something here.

HOROVOD_CYCLE_TIME                 milliseconds after which a rank that others wait for looks again; 1
HOROVOD_FUSION_THRESHOLD           bytes of small tensors that are reduced together; 0 for each by itself; 2 MiB
HOROVOD_STALL_CHECK_DISABLE        1 says nothing of operations that wait for ranks which haven't called them
HOROVOD_STALL_CHECK_TIME_SECONDS   seconds after which that is said; 60
HOROVOD_STALL_SHUTDOWN_TIME_SECONDS   seconds after which such an operation ends the job; 0 for never, as without it
HOROVOD_TIMELINE                   file of a trace that rank 0 writes; DYNAMIC for one that start_timeline() names
HOROVOD_TIMELINE_MARK_CYCLES       1 marks in it when ranks exchange their news
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from hpsearch_comm.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Settings:
    """What the environment says."""

    cycle_seconds: float
    fusion_bytes: int
    stall_seconds: float
    shutdown_seconds: float = math.inf
    timeline: str = ""
    """Empty for none."""
    mark_cycles: bool = False

    @classmethod
    def read(cls, env: Mapping[str, str]) -> Settings:
        """Read the variables. An empty one counts as not set.

        Raises:
            ConfigurationError: One can't be used; names it.
        """
        timeline = env.get("HOROVOD_TIMELINE", "").strip()
        return cls(
            _number(env, "HOROVOD_CYCLE_TIME", 1.0) / 1e3,
            int(_number(env, "HOROVOD_FUSION_THRESHOLD", 2 << 20)),
            math.inf
            if _set(env, "HOROVOD_STALL_CHECK_DISABLE")
            else _number(env, "HOROVOD_STALL_CHECK_TIME_SECONDS", 60.0) or math.inf,
            _number(env, "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", 0.0) or math.inf,
            "" if timeline == "DYNAMIC" else timeline,
            _set(env, "HOROVOD_TIMELINE_MARK_CYCLES"),
        )


def _set(env: Mapping[str, str], name: str) -> bool:
    return env.get(name, "").strip() not in ("", "0")


def _number(env: Mapping[str, str], name: str, default: float) -> float:
    text = env.get(name, "").strip()
    if not text:
        return default
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if 0 <= number < math.inf:
        return number
    raise ConfigurationError(f"expected {name} to be a number of at least 0, got {text!r}")
