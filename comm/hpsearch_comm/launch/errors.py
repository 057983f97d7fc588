"""What keeps ranks from being started, or from going on."""

from __future__ import annotations

from hpsearch_comm.errors import CommError


class LaunchError(CommError):
    """Ranks couldn't be started on a host, or the host was lost; names it, and what to do.

    Attributes:
        exit_code: What the launcher ends with.
    """

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code
