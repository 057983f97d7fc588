"""Refuse to search where a launcher has started this process several times: each rank would run the whole sweep."""

from __future__ import annotations

import os

from hpsearch.errors import SweepError
from hpsearch.trainable.current import in_trial
from hpsearch_comm.launchers import launched_rank


def check_launched_once(call: str) -> None:
    """Check that no launcher has started this process as one of several ranks.

    Within a trial this is allowed, as hpsearch sets the same variables for a trial's ranks.

    Args:
        call: The function that the user called.

    Raises:
        SweepError: A launcher has started several ranks.
    """
    launched = None if in_trial() else launched_rank(os.environ)
    if launched is not None:
        rank, size = launched
        raise SweepError(
            f"{call}: must be called in one process, but this one is {rank}, and each rank would run the whole sweep. "
            "Start it without the launcher: hpsearch itself starts the ranks of each trial, as many as "
            "resources.workers_per_trial says (search(..., resources={'workers_per_trial': 4})), on --workers of this "
            f"machine or of a Ray cluster (--address). If only this process runs it, take {size} out of its "
            f"environment: env -u {size} python ..."
        )
