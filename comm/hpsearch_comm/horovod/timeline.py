"""The trace of a job's operations, which rank 0 writes."""

from __future__ import annotations

import os
from pathlib import Path

from hpsearch_comm.errors import ConfigurationError
from hpsearch_comm.horovod.job import rank
from hpsearch_comm.horovod.recording import Recording, record

__all__ = ["start_timeline", "stop_timeline"]


def start_timeline(file_path: str | os.PathLike[str], mark_cycles: bool = False) -> None:
    """Start a trace of this job's operations, which rank 0 writes; a running one ends.

    Args:
        file_path: The file, on rank 0's host.
        mark_cycles: Whether exchanges between ranks are marked.

    Raises:
        ConfigurationError: The file can't be written.
        ValueError: There is no job.
    """
    path = Path(file_path)
    if path.is_dir():
        raise ConfigurationError(f"the timeline's path must be a file, got the directory {path}")
    if rank() == 0:
        record(None)
        record(Recording(path, 0, mark_cycles))


def stop_timeline() -> None:
    """End the trace, if there is one."""
    record(None)
