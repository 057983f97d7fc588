"""Horovod's environment variables that are supported.

HOROVOD_CYCLE_TIME                 pause in milliseconds of a rank that others wait for, between exchanges; default 1
HOROVOD_FUSION_THRESHOLD           maximum bytes of small tensors that are fused; 0 disables fusion; default 2 MiB
HOROVOD_STALL_CHECK_DISABLE        1 disables warnings about operations that some ranks haven't called
HOROVOD_STALL_CHECK_TIME_SECONDS   seconds before such a warning; default 60
HOROVOD_STALL_SHUTDOWN_TIME_SECONDS   seconds after which a stalled operation ends the job; default 0 (never)
HOROVOD_TIMELINE                   timeline file that rank 0 writes; DYNAMIC if start_timeline() sets the file
HOROVOD_TIMELINE_MARK_CYCLES       1 marks each exchange of the negotiation in the timeline
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from hpsearch_comm.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings from the environment."""

    cycle_seconds: float
    fusion_bytes: int
    stall_seconds: float
    shutdown_seconds: float = math.inf
    timeline: str = ""
    """The timeline file; empty for no timeline."""
    mark_cycles: bool = False

    @classmethod
    def read(cls, env: Mapping[str, str]) -> Settings:
        """Read the variables. An empty variable counts as not set.

        Raises:
            ConfigurationError: A variable is invalid; the error names it.
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
