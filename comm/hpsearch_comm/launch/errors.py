"""The launcher's error."""

from __future__ import annotations

from hpsearch_comm.errors import CommError


class LaunchError(CommError):
    """Ranks couldn't be started on a host, or the host was lost. The message names the host and what to do.

    Attributes:
        exit_code: The launcher's exit code.
    """

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code
